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
  reason.clear();
  for (const std::string& name : names) {
    if (void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    const char* message = dlerror();
    reason += (reason.empty() ? "" : "; ") + (message ? std::string(message) : name + ": not found");
  }
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
