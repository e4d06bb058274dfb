// dlopen and dlsym behind the tables of functions.
#include "jit/dynamic_library.hpp"

#include <dlfcn.h>

#include <algorithm>

#if defined(__GLIBC__)
#include <link.h>
#endif

namespace tilewise::jit {

void* open_library(std::span<const std::string> names, std::string& reason) {
  for (const std::string& name : names) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return library;
  }
  std::string absent, others;
  for (const std::string& name : names) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* text = dlerror();
    const std::string message = text ? text : name + ": no reason given";
    const bool is_absent = message.starts_with(name + ": cannot open shared object file: No such file");
    std::string& list = is_absent ? absent : others;
    list += (list.empty() ? "" : is_absent ? ", " : "; ") + (is_absent ? name : message);
  }
  if (!absent.empty()) absent += ": not found by the loader";
  reason = others + (others.empty() || absent.empty() ? "" : "; ") + absent;
  return nullptr;
}

std::string library_path(void* library, const std::string& otherwise) {
#if defined(__GLIBC__)
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map && *map->l_name) return map->l_name;
#else
  static_cast<void>(library);
#endif
  return otherwise;
}

std::string look_up_functions(void* library, std::string_view library_name, std::span<const FunctionEntry> entries) {
  for (const FunctionEntry& entry : entries) {
    *entry.slot = nullptr;
    for (std::string_view rest = entry.names; !rest.empty() && *entry.slot == nullptr;) {
      const std::size_t end = std::min(rest.find('|'), rest.size());
      *entry.slot = dlsym(library, std::string(rest.substr(0, end)).c_str());
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    if (*entry.slot == nullptr && entry.required) {
      return std::string(library_name) + ": function " + std::string(entry.names) + " is missing";
    }
  }
  return {};
}

}  // namespace tilewise::jit
