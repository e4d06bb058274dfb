// Loads a kernel compiled for the host (TargetKind::host) into this process.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tilewise::jit {

class HostModule {
 public:
  /// `image`: a shared object's bytes. Throws Error (runtime) with the loader's message.
  explicit HostModule(std::span<const std::byte> image);
  ~HostModule();
  HostModule(const HostModule&) = delete;
  HostModule& operator=(const HostModule&) = delete;

  /// Address of an extern "C" symbol. Throws Error (runtime) where there is none.
  [[nodiscard]] void* find(const std::string& symbol) const;

 private:
  void* handle_;
  int file_;  // open as long as the library is: the loader tells libraries apart by the name /proc/self/fd/N
};

}  // namespace tilewise::jit
