// dlopen from a file that lives in memory alone.
#include "jit/host_module.hpp"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/message.hpp"

namespace tilewise::jit {
namespace {

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::runtime, core::concat("loading a kernel for the host: ", what ? what : "unknown error"));
}

bool write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    if (count <= 0 && errno != EINTR) return false;
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

/// The name that the loader knows the module by.
std::string path_of(int file) { return core::concat("/proc/self/fd/", file); }

}  // namespace

HostModule::HostModule(std::span<const std::byte> image)
    : handle_(nullptr), file_(memfd_create("tilewise-kernel", MFD_CLOEXEC)) {
  std::string error;
  if (file_ < 0 || !write_all(file_, image)) {
    error = std::strerror(errno);
  } else {
    handle_ = dlopen(path_of(file_).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!handle_) error = dlerror();
  }
  if (handle_) return;
  if (file_ >= 0) close(file_);
  fail(error.c_str());
}

HostModule::~HostModule() {
  dlclose(handle_);
  // The loader keeps modules with unique symbols, and would take the next file of this number for this module.
  void* kept = dlopen(path_of(file_).c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (kept == nullptr) {
    close(file_);
  } else {
    dlclose(kept);
  }
}

void* HostModule::find(const std::string& symbol) const {
  dlerror();
  void* address = dlsym(handle_, symbol.c_str());
  if (!address) fail(dlerror());
  return address;
}

}  // namespace tilewise::jit
