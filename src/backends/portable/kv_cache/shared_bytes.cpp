// Shared memory of each kernel's blocks, in bytes. The generated stub asserts it against the kernel's own struct.
#include <algorithm>

#include "backends/portable/attention/kernels.hpp"
#include "backends/portable/kv_cache/kernels.hpp"

namespace tilewise::backends::portable {

std::uint32_t KvCacheForward::shared_bytes(const Config& c, gpu::Family family) {
  // Rotated rows pass through shared memory on every machine.
  const std::int32_t rotated = c.rotary != 0 ? 2 * c.block_m() * c.head_dim : 0;
  return std::max(Forward::shared_bytes(c, family, bytes_beside_tiles(c)), static_cast<std::uint32_t>(rotated));
}

std::uint32_t KvCacheCombine::shared_bytes(const Config& c, gpu::Family family) {
  return Combine::shared_bytes(c, family);
}

}  // namespace tilewise::backends::portable
