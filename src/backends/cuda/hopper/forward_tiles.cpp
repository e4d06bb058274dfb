// The table of the forward kernel's tiles, and which of them a problem takes.
#include "backends/cuda/hopper/forward_tiles.hpp"

#include <algorithm>

#include "backends/portable/attention/functions.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div, device::HopperForwardConfig;

/// Longest sequence a tile is chosen for. Of packed sequences the longest depends on the batch.
std::int64_t chosen_length(const Problem& p) {
  constexpr std::int64_t kTypical = 4096;
  return p.batch_invariant && p.layout == Layout::thd ? kTypical : p.seqlen_q;
}

constexpr Tile kDropout{2, 96, 2, 2, true};          // dropout alone: registers for its draws
constexpr Tile kDropoutNarrow{2, 128, 3, 2, true};   // to head_dim 64
constexpr Tile kDropoutWidest{2, 64, 2, 1, false};   // beyond 192
constexpr Tile kCrowded{2, 64, 4, 2, false};         // several options, or scores' own loads of a bias
constexpr Tile kCrowdedMost{2, 32, 4, 2, false};     // scores' own loads beside dropout's draws
constexpr Tile kCrowdedWide{2, 64, 2, 2, false};     // likewise, dropout and any bias beyond head_dim 128
constexpr Tile kCrowdedWidest{2, 32, 4, 1, false};   // and beyond 192, where a bias in fp32 is crowded too
constexpr Tile kWidest{2, 64, 2, 1, false};          // head_dim 256
constexpr Tile kWide192{2, 80, 2, 2, false};         // head_dim_v to 192
constexpr Tile kWide128{2, 96, 2, 2, false};         // head_dim to 192 with head_dim_v to 128
constexpr Tile kMiddle{3, 64, 4, 2, false};          // head_dim 128, and from 65 with a window, softcap or ALiBi
constexpr Tile kMiddleLong{3, 80, 3, 2, false};      // full from 16k, or with ALiBi or softcap: it spills beside masks
constexpr Tile kMiddle96{3, 80, 3, 2, true};         // head_dim to 96: a stage is as large as one of 128
constexpr Tile kMiddle80{3, 112, 2, 2, false};       // full to 80
constexpr Tile kMiddle80Causal{3, 96, 2, 2, false};  // and with a mask
constexpr Tile kBoxedBias{3, 64, 3, 1, true};        // to 128, with a bias in boxes
constexpr Tile kBoxedBool{3, 80, 3, 1, true};        // 128, full, a boolean one alone: beside masks it would spill
constexpr Tile kNarrowBias{4, 48, 5, 2, true};       // to 64, of 16 bits or booleans: more keys would spill
constexpr Tile kNarrowBiasFew{3, 64, 4, 2, true};    // where tiles of 256 queries would be a quarter empty and more
constexpr Tile kNarrowFew{2, 64, 3, 2, false};       // head_dim 64, to 128 queries
constexpr Tile kNarrowShort{4, 64, 5, 2, false};     // head_dim 64, full to 1k, causal to 4k, with a window
constexpr Tile kNarrow{3, 128, 3, 2, false};         // and the rest
constexpr Tile kNarrowLengths{3, 96, 6, 2, true};    // with lengths or packed heads, causal or from 8k
constexpr Tile kNarrowWindow{3, 64, 8, 2, true};     // with a window and lengths
constexpr Tile kNarrowModified{3, 64, 8, 2, false};  // scores that are more than a scale
constexpr Tile kNarrowSlopes{3, 96, 4, 2, false};    // ALiBi or score_mod alone: larger ones would spill

// Where two blocks may share keys: beyond 192, and to it where rows begin between sectors.
constexpr Tile kWidestShared{2, 64, 2, 1, false, true};    // head_dim 200 to 256
constexpr Tile kWide192Shared{2, 80, 2, 2, false, true};   // 136 to 184
constexpr Tile kMiddle88Shared{3, 96, 3, 1, true, true};   // 88
constexpr Tile kMiddle72Shared{3, 112, 3, 1, true, true};  // 72

// Where tiles of queries are few.
constexpr Tile kMiddlePair{2, 128, 2, 2, true};    // to head_dim 128
constexpr Tile kNarrowPair{2, 128, 4, 2, true};    // to 64
constexpr Tile kWindowPair{2, 128, 2, 2, false};   // from 65 to 128, with a window
constexpr Tile kModifiedPair{2, 64, 4, 2, false};  // to 128, scores that are more than a scale, or a window at 64

// fp8: keys in multiples of 32, the K of a wgmma. V takes room twice, as it comes and transposed.
constexpr Tile kFp8Narrow{3, 128, 3, 2, false};  // head_dim to 64
constexpr Tile kFp8Middle{3, 96, 3, 2, false};   // to 128
constexpr Tile kFp8Crowded{2, 64, 3, 2, false};  // to 128, with scores that are more than a scale
constexpr Tile kFp8Wide{2, 96, 2, 1, false};     // to 256
constexpr Tile kFp8WideCrowded{2, 64, 2, 1, false};
constexpr Tile kFp8WidestCrowded{2, 32, 3, 1, false};  // with several options

/// What is done to scores and weights beside their scale.
int options_of(const HopperForwardConfig& c) {
  return c.softcap + c.alibi + c.dropout + (c.bias_type != device::kBiasNone);
}

const Tile& fp8_tile_for(const HopperForwardConfig& c) {
  const std::int32_t dim = c.wider_dim();
  const bool crowded = !c.plain_scale || c.dropout;
  if (dim > 128 && options_of(c) > 1) return kFp8WidestCrowded;
  if (dim > 128) return crowded ? kFp8WideCrowded : kFp8Wide;
  if (crowded) return kFp8Crowded;
  return dim > 64 ? kFp8Middle : kFp8Narrow;
}

/// Whether two blocks, each with such a tile of queries, are to load each tile of keys for both. All queries see all
/// keys, of which there are enough to be worth it, and where pairs of tiles end behind the last query no more than a
/// 16th of their rows is idle: a warpgroup without rows walks at the pace of the other block.
bool shares_keys(const Problem& p, const HopperForwardConfig& c, const Tile& tile) {
  constexpr std::int64_t kFewestKeys = 1024, kMostIdle = 16;
  if (!c.plain_scale || c.dropout || c.ranged || c.lengths || c.pack_gqa || p.seqlen_k < kFewestKeys) return false;
  const std::int64_t pair = 2 * tile.consumers * HopperForwardConfig::kRows;
  const std::int64_t rows = ceil_div(p.seqlen_q, pair) * pair;
  return kMostIdle * (rows - p.seqlen_q) <= rows;
}
/// A row of an odd number of 16 bytes begins between sectors in every other head: it costs L2 one of them more.
bool begins_between_sectors(const Problem& p) {
  return p.head_dim % device::kSectorColumns != 0 || p.head_dim_v % device::kSectorColumns != 0;
}
/// Where it takes two blocks; null where each is better alone.
const Tile* shared_tile_for(const Problem& p, const HopperForwardConfig& c) {
  const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
  const Tile* tile = nullptr;
  if (dim > 192) {
    tile = &kWidestShared;
  } else if (begins_between_sectors(p)) {
    const bool bf16 = c.q_type == device::kBf16;
    if (dim > 128 && c.head_dim_v > 128) tile = &kWide192Shared;
    if (dim == 88 && bf16) tile = &kMiddle88Shared;
    if (dim == 72 && bf16) tile = &kMiddle72Shared;
  }
  return tile != nullptr && shares_keys(p, c, *tile) ? tile : nullptr;
}

/// Whether tiles of one kind cover a quarter less of what all queries and all keys are than those of another: few of
/// either are, and their ends tell (10 to 21% less time). A tenth less is no gain.
bool covers_less(const Problem& p, const HopperForwardConfig& c, const Tile& tile, const Tile& than) {
  const auto covered = [&p](const Tile& t) {
    const std::int64_t rows = std::int64_t{t.consumers} * HopperForwardConfig::kRows;
    return ceil_div(p.seqlen_q, rows) * rows * ceil_div(p.seqlen_k, std::int64_t{t.block_n}) * t.block_n;
  };
  return !c.ranged && !c.lengths && !c.pack_gqa && 4 * covered(tile) <= 3 * covered(than);
}

/// Few queries to head_dim 64 take 3 to 7% less in tiles of 128 than of 256, with ALiBi 12%.
bool has_narrow_few(const Problem& p, const HopperForwardConfig& c) {
  constexpr std::int64_t kFew = 128;
  return p.seqlen_q <= kFew && !c.lengths && !c.pack_gqa && !c.windowed;
}

/// With a bias to head_dim 64, 128, 320 and 384 queries take 10% less in tiles of 192 rows than of 256.
const Tile& narrow_bias_tile_for(const Problem& p, const HopperForwardConfig& c) {
  return covers_less(p, c, kNarrowBiasFew, kNarrowBias) ? kNarrowBiasFew : kNarrowBias;
}

/// To head_dim 64, for scores that are no more than scaled.
const Tile& narrow_tile_for(const Problem& p, const HopperForwardConfig& c, std::int64_t length) {
  constexpr std::int64_t kOneTile = 192;  // of 256 rows it takes no longer
  if (!c.lengths && !c.pack_gqa) {
    const Tile& tile = c.windowed || length <= (c.ranged ? 4096 : 1024) ? kNarrowShort : kNarrow;
    return p.seqlen_q > kOneTile && covers_less(p, c, kNarrowLengths, tile) ? kNarrowLengths : tile;
  }
  if (c.windowed) return kNarrowWindow;
  return c.ranged || length >= 8192 ? kNarrowLengths : kNarrow;
}

/// From 65 to 128, likewise.
const Tile& middle_tile_for(const Problem& p, const HopperForwardConfig& c, std::int64_t length) {
  const std::int32_t dim = c.wider_dim();
  const Tile* tile = c.ranged ? &kMiddle80Causal : &kMiddle80;
  if (dim > 80) tile = &kMiddle96;
  if (dim > 96) tile = !c.ranged && length >= 16384 ? &kMiddleLong : &kMiddle;
  return covers_less(p, c, kMiddlePair, *tile) ? kMiddlePair : *tile;
}

/// Of a config as it looks at masks and lengths.
const Tile& chosen_tile(const Problem& p, const HopperForwardConfig& c) {
  if (c.fp8()) return fp8_tile_for(c);
  if (const Tile* shared = shared_tile_for(p, c)) return *shared;
  const std::int32_t dim = c.wider_dim();
  const std::int64_t length = chosen_length(p);
  const bool loads_bias = c.bias_type != device::kBiasNone && !c.bias_boxes;
  // What functions look up beside a window of pages spills 176 bytes with three warpgroups.
  const bool looks_up = c.windowed && c.page_size != 0 && portable::has_functions(p);
  const bool crowded = c.dropout || loads_bias || looks_up || options_of(c) + !p.score_mod.empty() > 1;
  const bool plain = c.plain_scale && !c.dropout, plain_but_dropped = c.plain_scale && c.dropout;
  if (dim > 192 && plain_but_dropped) return kDropoutWidest;
  if (dim > 192) return crowded || c.bias_type == device::kBiasF32 ? kCrowdedWidest : kWidest;
  if (dim > 128) return crowded || c.bias_boxes ? kCrowdedWide : c.head_dim_v <= 128 ? kWide128 : kWide192;
  if (c.dropout && loads_bias) return kCrowdedMost;
  if (crowded && plain_but_dropped) return dim > 64 ? kDropout : kDropoutNarrow;
  if (crowded) return kCrowded;
  if (c.scales_late && dim > 96 && !c.ranged && !c.lengths) return kBoxedBool;
  // In fp32 narrower tiles take 8% longer, beside a window 5%, and beside lengths they spill.
  const bool narrow_bias = dim <= 64 && !c.windowed && !c.lengths && c.bias_type != device::kBiasF32;
  if (c.bias_boxes) return narrow_bias ? narrow_bias_tile_for(p, c) : kBoxedBias;
  if (dim <= 64 && (plain || c.alibi) && has_narrow_few(p, c)) return kNarrowFew;
  if ((c.alibi || !p.score_mod.empty()) && dim <= 64) return kNarrowSlopes;
  if ((c.alibi || c.bounded) && dim > 64 && !c.ranged && !c.lengths) return kMiddleLong;
  if (dim <= 64) return plain ? narrow_tile_for(p, c, length) : kNarrowModified;
  return !plain || c.windowed ? kMiddle : middle_tile_for(p, c, length);
}

}  // namespace

/// What mask_mod hides lies anywhere, as the ends of sequences do.
const Tile& tile_for(const Problem& p, const HopperForwardConfig& c) {
  HopperForwardConfig masked = c;
  if (!p.mask_mod.empty()) masked.ranged = masked.lengths = 1;
  return chosen_tile(p, masked);
}

Tile pair_for(const Tile& tile, const HopperForwardConfig& c) {
  if (tile.consumers <= 2) return tile;
  Tile pair = tile;
  pair.consumers = 2;
  if (c.fp8()) return pair;
  const bool narrow = c.wider_dim() <= 64;
  if (!c.plain_scale || c.dropout) return kModifiedPair;
  if (c.windowed) return narrow ? kModifiedPair : kWindowPair;
  return narrow ? kNarrowPair : kMiddlePair;
}

std::vector<Tile> tiles_to_try(const Problem& p, const HopperForwardConfig& c) {
  Tile alone = tile_for(p, c);
  alone.clustered = false;
  std::vector<Tile> tiles{tile_for(p, c), alone, pair_for(alone, c)};
  const std::int32_t dim = c.wider_dim();
  if (c.fp8() || !c.plain_scale || c.dropout || dim > 128) return tiles;
  if (dim <= 64) {
    tiles.insert(tiles.end(), {kNarrow, kNarrowLengths, kNarrowPair});
    if (!c.lengths && !c.pack_gqa) tiles.push_back(kNarrowShort);
  } else {
    tiles.insert(tiles.end(), {kMiddle, kMiddleLong, kMiddlePair, kWide128});
    if (dim <= 96) tiles.insert(tiles.end(), {kMiddle96, kMiddle80, kMiddle80Causal});
  }
  return tiles;
}

}  // namespace tilewise::backends::hopper
