// Shared memory of a block, in bytes. The generated stub asserts it against the kernel's own struct.
#include <algorithm>

#include "backends/cuda/hopper/kernels.hpp"

namespace tilewise::backends::hopper {

std::uint32_t Forward::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kPattern = 1024;  // that swizzles repeat in, which the struct is aligned to
  constexpr std::int32_t kRowBytes = 128, kBarrier = 8, kWorkStages = 4, kWorkTile = 64;
  constexpr std::int32_t kRawStages = 2;  // of V in fp8, which is transposed
  const auto chunks = [](std::int32_t bytes) { return (bytes + kRowBytes - 1) / kRowBytes; };
  const auto rings = [](std::int32_t stages) { return 2 * kBarrier * stages; };
  const std::int32_t element = c.element_bytes(), queries = chunks(element * c.head_dim);
  const std::int32_t columns = c.q_stages > 1 ? std::max(queries, chunks(2 * c.head_dim_v)) : queries;
  const std::int32_t rows = c.q_stages * c.block_m() * columns * kRowBytes;
  const std::int32_t keys = c.block_n * chunks(element * c.head_dim) * kRowBytes;
  const std::int32_t raw = c.block_n * chunks(element * c.head_dim_v) * kRowBytes;
  const std::int32_t values = c.fp8() ? c.head_dim_v * chunks(c.block_n) * kRowBytes : raw;
  const std::int32_t bias_row = c.bias_row_bytes();
  const std::int32_t bias_rows = c.block_m() * ((c.block_n * device::bias_bytes(c) + bias_row - 1) / bias_row);
  const std::int32_t bias = c.bias_boxes ? bias_rows * bias_row : 0;
  const std::int32_t tiles = c.stages * (keys + values + bias) + (c.fp8() ? kRawStages * raw : 0);
  const std::int32_t barriers =
      c.consumers() * rings(c.q_stages) + 2 * rings(c.stages) + rings(kRawStages) + rings(kWorkStages) + kBarrier;
  constexpr std::int32_t kKeysOfPair = 8, kColumn = 16;  // of what draws have in common
  const std::int32_t draws = c.shares_draws() ? c.stages * c.block_n / kKeysOfPair * kColumn : 0;
  const std::int32_t bytes = rows + tiles + draws + kWorkStages * kWorkTile + barriers;
  return static_cast<std::uint32_t>((bytes + kPattern - 1) / kPattern * kPattern);
}

std::uint32_t Bwd::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kPattern = 1024, kRowBytes = 128, kChunk = 64, kBarrier = 8, kFloat = 4;
  // Of four warps two parts of 16 x 64 sums each, or all of a tile of dq, or a barrier for each stage of dS, and one
  // more on 16 bytes.
  const std::int32_t sums = c.own_dq ? c.tile_floats() * kFloat : 4 * 2 * 16 * 64 * kFloat;
  const std::int32_t handover = c.shares_keys ? (4 * c.score_stages() + 2) * kBarrier : sums;
  const auto tile = [](std::int32_t rows, std::int32_t cols) {
    return rows * ((cols + kChunk - 1) / kChunk) * kRowBytes;
  };
  const std::int32_t keys = c.key_stages() * tile(c.block_n(), c.head_dim) + tile(c.block_n(), c.head_dim_v);
  const std::int32_t bias = c.bias_boxes ? tile(c.block_m, c.block_n() * device::bias_bytes(c) / 2) : 0;
  const std::int32_t queries =
      tile(c.block_m, c.head_dim) + tile(c.block_m, c.head_dim_v) + 2 * c.block_m * kFloat + bias;
  const std::int32_t scores = c.score_stages() * tile(c.block_n(), c.block_m);
  const std::int32_t kept = c.dropout ? c.block_n() * c.block_m / 8 : 0;  // a bit each
  const std::int32_t couriers = c.couriers()       ? (Config::kCouriers + 2) * 2 * kBarrier
                                : c.own_couriers() ? (Config::kCouriers + 2) * kBarrier
                                                   : 0;
  const std::int32_t rings = c.stages + c.score_stages() + c.key_stages() + 1;
  const std::int32_t barriers = 2 * kBarrier * rings + 10 * kBarrier + couriers;
  const std::int32_t numbers = 2 * 32 + 2 * 16;  // of tiles of keys
  const std::int32_t bytes = keys + c.stages * queries + scores + handover + kept + barriers + numbers;
  return static_cast<std::uint32_t>((bytes + kPattern - 1) / kPattern * kPattern);
}

std::uint32_t BwdPreprocess::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kPattern = 1024, kBarrier = 8, kFloat = 4;
  const std::int32_t bytes = Config::kStages * (c.stage_bytes() + 3 * kBarrier) + Config::kZeros * kFloat;
  return static_cast<std::uint32_t>((bytes + kPattern - 1) / kPattern * kPattern);
}

std::uint32_t Latent::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kPattern = 1024, kBarrier = 8, kElement = 2, kSeen = 16;
  constexpr std::int32_t kRecord = 16, kRecords = 2;  // of each row, by each consumer warpgroup
  const std::int32_t tiles = (Config::kRows + Config::kStages * Config::kKeys) * c.head_dim * kElement;
  const std::int32_t statistics = kRecords * Config::kConsumers * Config::kRows * kRecord;
  const std::int32_t rings = (Config::kConsumers + 1) * 2 * Config::kStages;
  const std::int32_t bytes =
      tiles + statistics + (1 + rings + Config::kConsumers) * kBarrier + 2 * Config::kStages * kSeen;
  return static_cast<std::uint32_t>((bytes + kPattern - 1) / kPattern * kPattern);
}

}  // namespace tilewise::backends::hopper
