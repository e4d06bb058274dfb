// Shared memory of each kernel's blocks, in bytes. The generated stub asserts it against the kernel's own struct.
#include "backends/portable/attention/kernels.hpp"
#include "backends/portable/kv_cache/kernels.hpp"

namespace tilewise::backends::portable {

std::uint32_t KvCacheForward::shared_bytes(const Config& c, gpu::Family family) {
  if (c.scales != device::kTokenScales) return Forward::shared_bytes(c, family);
  return Forward::shared_bytes(c, family, token_scale_bytes(c.block_n));
}

std::uint32_t KvCacheCombine::shared_bytes(const Config& c, gpu::Family family) {
  return Combine::shared_bytes(c, family);
}

}  // namespace tilewise::backends::portable
