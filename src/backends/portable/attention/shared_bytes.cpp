// Shared memory of each kernel's blocks, in bytes. The generated stub asserts it against the kernel's own struct.
#include <algorithm>

#include "backends/portable/attention/kernels.hpp"

namespace tilewise::backends::portable {
namespace {

constexpr std::int32_t kHalf = 2, kFloat = 4;

std::int32_t tile(std::int32_t rows, std::int32_t cols) { return kHalf * rows * cols; }
std::int32_t whole_lines(std::int32_t bytes) { return (bytes + 127) / 128 * 128; }
std::uint32_t size(std::int32_t bytes) { return static_cast<std::uint32_t>(bytes); }

/// A stream tile that both products read is kept twice where the machine can't read it transposed.
std::int32_t copies(Family family) { return family == Family::sm80 ? 1 : 2; }

/// Whether a block's own rows stay in shared memory, pass through it on their way to registers, and whether its output
/// leaves through it: kDirectRows, kStoresDirectly.
template <typename Config>
std::int32_t kept(const Config& c) {
  return c.rows_in_registers ? 0 : 1;
}
template <typename Config>
std::int32_t passing(const Config& c, Family family) {
  return c.rows_in_registers && family == Family::sm80 ? 1 : 0;
}
std::int32_t leaving(Family family) {
  return family == Family::sm80 || family == Family::rdna ? 1 : 0;  // lanes of the others hold adjacent columns
}

/// log-sum-exp and delta of a tile's queries.
std::int32_t statistics(std::int32_t queries) { return 2 * kFloat * queries; }

}  // namespace

std::uint32_t Forward::shared_bytes(const Config& c, Family family, std::int32_t beside_tiles) {
  const std::int32_t own = tile(c.block_m(), c.head_dim), out = tile(c.block_m(), c.head_dim_v);
  const std::int32_t stage = whole_lines(tile(c.block_n, c.head_dim) + tile(c.block_n, c.head_dim_v) + beside_tiles);
  return size(std::max({kept(c) * own + c.stages * stage, passing(c, family) * own, leaving(family) * out}));
}

std::uint32_t Combine::shared_bytes(const Config& c, Family family) {
  constexpr std::int32_t kLaneCols = 4;
  // Weights of the splits, and the waves' parts of 4 columns a lane.
  return size(kFloat * c.waves * device::kMostSplits) + size(kFloat * kLaneCols * c.waves) * gpu::lanes(family);
}

std::uint32_t BwdDq::shared_bytes(const Config& c, Family family) {
  const std::int32_t own = tile(c.block_m(), c.head_dim), own_v = tile(c.block_m(), c.head_dim_v);
  const std::int32_t tiles = copies(family) * tile(c.block_n, c.head_dim) + tile(c.block_n, c.head_dim_v);
  const std::int32_t stage = whole_lines(tiles + selected_bytes(c));
  return size(std::max({kept(c) * (own + own_v) + c.stages * stage, passing(c, family) * own,
                        passing(c, family) * own_v, leaving(family) * own}));
}

std::uint32_t BwdDkdv::shared_bytes(const Config& c, Family family) {
  const std::int32_t own = tile(c.block_n(), c.head_dim), own_v = tile(c.block_n(), c.head_dim_v);
  // A second copy serves accumulation alone: queries' for dk, douts' for dv.
  const std::int32_t query_copies = c.wants_dk ? copies(family) : 1;
  const std::int32_t dout_copies = c.wants_dk && c.wants_dv ? copies(family) : 1;
  const std::int32_t stage = whole_lines(query_copies * tile(c.block_m, c.head_dim) +
                                         dout_copies * tile(c.block_m, c.head_dim_v) + statistics(c.block_m));
  const std::int32_t keys = c.selects ? whole_lines(c.block_n() * static_cast<std::int32_t>(sizeof(std::int32_t))) : 0;
  return size(keys + std::max({kept(c) * (own + own_v) + c.stages * stage, passing(c, family) * own,
                               passing(c, family) * own_v, leaving(family) * own, leaving(family) * own_v}));
}

std::uint32_t Bwd::shared_bytes(const Config& c, Family) {
  const std::int32_t own = tile(c.block_n(), c.head_dim) + tile(c.block_n(), c.head_dim_v);
  const std::int32_t stage =
      whole_lines(tile(c.block_m, c.head_dim) + tile(c.block_m, c.head_dim_v) + statistics(c.block_m));
  const std::int32_t handed_over = 2 * tile(c.block_n(), c.block_m);  // P and dS
  return size(own + c.stages * stage + handed_over);
}

std::uint32_t BwdConvertDq::shared_bytes(const Config& c, Family) { return size(tile(c.block_m, c.head_dim)); }

std::uint32_t BwdConvertDkdv::shared_bytes(const Config& c, Family) { return size(tile(c.block_n(), c.wider_dim())); }

std::uint32_t BwdDbias::shared_bytes(const Config& c, Family) {
  const std::int32_t own = tile(c.block_m(), c.head_dim) + tile(c.block_m(), c.head_dim_v);
  const std::int32_t streamed = tile(c.block_n, c.head_dim) + tile(c.block_n, c.head_dim_v);
  return size(std::max(own + streamed, kFloat * c.block_m() * c.block_n));
}

std::uint32_t BwdDtable::shared_bytes(const Config& c, Family) {
  return size(tile(c.block_m(), c.head_dim) + tile(c.block_m(), c.head_dim_v) + tile(c.block_n, c.head_dim) +
              tile(c.block_n, c.head_dim_v));
}

std::uint32_t BwdDsink::shared_bytes(const Config& c, Family family) {
  return size(kFloat * c.waves) * gpu::lanes(family);
}

std::uint32_t ClearRest::shared_bytes(const Config&, Family) { return 0; }

}  // namespace tilewise::backends::portable
