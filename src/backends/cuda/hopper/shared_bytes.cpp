// Shared memory of a block, in bytes. The generated stub asserts it against the kernel's own struct.
#include <algorithm>

#include "backends/cuda/hopper/kernels.hpp"

namespace tilewise::backends::hopper {

std::uint32_t Forward::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kPattern = 1024;  // that swizzles repeat in, which the struct is aligned to
  constexpr std::int32_t kRowBytes = 128, kBarrier = 8, kWorkStages = 4, kWorkTile = 48;
  const auto chunks = [](std::int32_t dim) { return (dim + 63) / 64; };
  const auto rings = [](std::int32_t stages) { return 2 * kBarrier * stages; };
  const std::int32_t columns = std::max(chunks(c.head_dim), chunks(c.head_dim_v));
  const std::int32_t rows = c.q_stages * c.block_m() * columns * kRowBytes;
  const std::int32_t stages = c.stages * c.block_n * (chunks(c.head_dim) + chunks(c.head_dim_v)) * kRowBytes;
  const std::int32_t barriers = c.consumers() * rings(c.q_stages) + 2 * rings(c.stages) + rings(kWorkStages) + kBarrier;
  const std::int32_t bytes = rows + stages + kWorkStages * kWorkTile + barriers;
  return static_cast<std::uint32_t>((bytes + kPattern - 1) / kPattern * kPattern);
}

}  // namespace tilewise::backends::hopper
