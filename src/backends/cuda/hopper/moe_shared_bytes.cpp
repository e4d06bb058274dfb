// Shared memory of an expert layer's kernels.
#include "backends/cuda/hopper/block_bytes.hpp"
#include "backends/cuda/hopper/moe_kernels.hpp"

namespace tilewise::backends::hopper {

std::uint32_t MoeSort::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kId = 4, kTotal = 16;  // bytes of a pair's expert, and of a warp's total
  return static_cast<std::uint32_t>(kId * Config::kChunk + kTotal * c.warps);
}

std::uint32_t MoeLayer::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kWeightRows = 128, kConsumers = 2, kFloat = 4;
  const std::int32_t tiles = c.stages * (kWeightRows + c.block_n) * kRowBytes;
  const std::int32_t stored = kConsumers * c.block_n / 2 * kRowBytes;
  const std::int32_t weights = kConsumers * c.block_n * kFloat;
  const std::int32_t barriers = ring_bytes(c.stages) + kBarrierBytes + kConsumers * (ring_bytes(1) + kBarrierBytes);
  return whole_patterns(tiles + stored + weights + barriers);
}

std::uint32_t MoeScaledProduct::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kRows = 128, kWeightRows = 256, kWord = 4, kPiece = 16, kBlocks = 2, kExchanged = 256;
  const std::int32_t scales = kRows * kWord + kBlocks * kPiece;
  constexpr std::int32_t kTold = 4;  // tiles that the warp that finds them may be ahead
  const std::int32_t rings = ring_bytes(c.stages) + ring_bytes(kTold) + kTold * kPiece;
  return whole_patterns(c.stages * ((kRows + kWeightRows) * kRowBytes + scales) + kExchanged * kPiece + rings);
}

std::uint32_t MoeSlopes::shared_bytes(const Config& c, gpu::Family) {
  return whole_patterns(c.stages * (c.gemm().block_m + Config::kBlockN) * kRowBytes + ring_bytes(c.stages));
}

std::uint32_t MoeDw::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kElement = 2, kStoredRows = 16;
  const std::int32_t tiles = c.stages * c.depth * (Config::kBlockM + c.block_n) * kElement;
  const std::int32_t stored = 4 * Config::kConsumers * c.store_buffers * kStoredRows * kRowBytes;
  return whole_patterns(tiles + stored + ring_bytes(c.stages) + kBarrierBytes * c.stages);
}

std::uint32_t MoeDecode::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kTold = 4;     // tiles that consumers may be ahead of the warp that tells of them
  constexpr std::int32_t kElement = 2;  // bytes
  const std::int32_t weights = c.block_m() * c.weight_columns() * (c.quantised() ? 1 : kElement);
  const std::int32_t tiles = c.stages * (weights + c.block_n * c.depth * kElement);
  const std::int32_t scales = c.quantised() ? c.all_scale_bytes() + ring_bytes(c.scale_windows) : 0;
  return whole_patterns(tiles + ring_bytes(c.stages) + kBarrierBytes + ring_bytes(kTold) + scales);
}

}  // namespace tilewise::backends::hopper
