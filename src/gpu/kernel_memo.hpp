// The kernels a Runtime has loaded, found by KernelKey without hashing any source: what makes a new
// Plan on a known kernel cheap. Grows only, without locks, so that a fork() beside it is harmless.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "gpu/kernel.hpp"
#include "jit/compiled_kernel.hpp"

namespace tilewise::gpu {

/// A kernel loaded on one device; opaque to everyone but its Runtime.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;
};

struct KnownKernel {
  KernelKey key;
  std::shared_ptr<const LoadedKernel> loaded;
  jit::KernelResources resources;
};

class KernelMemo {
 public:
  KernelMemo() = default;
  ~KernelMemo();
  KernelMemo(const KernelMemo&) = delete;
  KernelMemo& operator=(const KernelMemo&) = delete;

  /// Null where no kernel of this key is loaded.
  [[nodiscard]] const KnownKernel* find(const KernelKey& key) const;
  const KnownKernel& insert(KnownKernel kernel);

 private:
  struct Node;
  static constexpr std::size_t kBuckets = 256;
  std::array<std::atomic<const Node*>, kBuckets> buckets_{};
};

}  // namespace tilewise::gpu
