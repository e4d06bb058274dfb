// What the Hopper kernels are specialised on, as device/attention/config.h has it for the portable ones.
#pragma once

#include "device/attention/config.h"

namespace tilewise::device {

/// Keys that one copy loads of a tile of `block_n`: as many as lie in one page wherever a tile begins.
constexpr int32_t keys_of_box(int32_t page_size, int32_t block_n) {
  int32_t box = block_n;
  for (int32_t rest = page_size; rest != 0;) {
    const int32_t next = box % rest;
    box = rest, rest = next;
  }
  return box;
}
/// Pages that boxes can be of: the swizzle repeats every 8 rows.
inline constexpr int32_t kPageUnit = 8;

inline constexpr int32_t kSectorColumns = 16, kPieceColumns = 8;  // of 16 bits, in a sector of L2 and in half of one

/// Of one element of a bias.
constexpr int32_t bias_bytes(const ScoreConfig& config) {
  return config.bias_type == kBiasF32 ? 4 : config.bias_type == kBiasBool ? 1 : 2;
}

/// One warpgroup loads tiles, `waves` / 4 - 1 others compute, each with 64 rows of queries; keys are streamed in tiles
/// of block_n. Here head_dim is padded to multiples of 16 (in fp8 32), head_dim_v of 8 (in fp8 16), and vector_rows
/// is 1.
struct HopperForwardConfig : ScoreConfig {
  int32_t block_n = 128, stages = 2;
  int32_t q_stages = 2;  // tiles of Q held: with 1 the next one comes once the last scores of this one are there
  Flag ping_pong = 1;    // consumer warpgroups take turns at issuing products
  Flag dynamic = 1;      // tiles from a counter in memory, else scheduled beforehand
  Flag watch_sums = 0;   // a row's reference moves when its sum has grown far, else when a score passes it by far; bf16
  Flag watch_weights = 0;  // fp8: when a rounded weight is near the greatest that e4m3 holds, else likewise
  Flag windowed = 0;       // of a ranged config: keys on the left are hidden too
  Flag pack_gqa = 0;       // rows of a block are (query, head of the group) pairs
  Flag split = 0;          // keys come in parts, each of which leaves its own sums for combine; q_stages is 1 then
  Flag sink = 0;
  Flag cached = 0;        // K and V are a cache, whose sequences are found as a KV cache step has them
  int32_t page_size = 0;  // of a cached config; 0: contiguous
  Flag bounded = 0;       // softcap alone keeps scores within what weights in fp32 hold: no reference ever moves; bf16
  Flag bias_boxes = 0;    // a bias comes by TMA beside K, else each score loads its own
  Flag scales_late = 0;   // of a boolean bias alone in boxes: the scale is positive, and the exponent applies it
  Flag normal_bound = 0;  // 65536 * dropout_p is, as bits of bf16, a normal number: dropout_p from 0.002 to 0.498
  Flag turned_columns = 0;  // rows are 16 bytes longer than whole chunks, and lie as column_maps.h has it
  Flag clustered = 0;  // two blocks with neighbouring tiles of queries each load half of every tile of keys, to both

  static constexpr int32_t kRows = 64;                    // of a warpgroup
  static constexpr int32_t kStepBytes = 32;               // of a row of an operand: as deep as one wgmma goes
  constexpr bool fp8() const { return q_type == kE4m3; }  // Q, K and V are; V is transposed on its way
  constexpr bool watches() const { return watch_sums || watch_weights; }  // and compares no score as a rule
  constexpr int32_t element_bytes() const { return fp8() ? 1 : 2; }
  constexpr int32_t depth() const { return kStepBytes / element_bytes(); }
  constexpr int32_t consumers() const { return waves / 4 - 1; }
  constexpr int32_t block_m() const { return consumers() * kRows; }
  constexpr int32_t threads() const { return waves * 32; }
  constexpr int32_t blocks_of_cluster() const { return clustered ? 2 : 1; }
  /// Whether what draws of dropout for a tile of keys have in common comes with its keys: all rows are of one head, and
  /// a warp that loads tiles has nothing else to do. Beyond 80 columns options beside it take 1 to 2% longer so, a
  /// window 5%, and beyond 128 causal calls 3 to 4%.
  constexpr bool shares_draws() const {
    const bool quicker = has_narrow_heads() || (plain_scale && !windowed && head_dim <= 128 && head_dim_v <= 128);
    return dropout && quicker && !pack_gqa && !fp8() && page_size == 0 && !clustered && block_n % 32 == 0;
  }
  constexpr bool has_narrow_heads() const { return head_dim <= 80 && head_dim_v <= 80; }
  /// Of a bias in boxes: no more than a tile's keys have, lest others' come along.
  constexpr int32_t bias_row_bytes() const {
    constexpr int32_t kMost = 128, kUnit = 16;
    const int32_t bytes = block_n * bias_bytes(*this);
    return bytes < kMost && bytes % kUnit == 0 ? bytes : kMost;
  }
  /// Of K and V: all contiguous keys that a block loads of a tile, else those of a page.
  constexpr int32_t keys_of_box() const { return device::keys_of_box(page_size, block_n / blocks_of_cluster()); }

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_score_field(c, visit);
    visit("block_n", c.block_n), visit("stages", c.stages), visit("q_stages", c.q_stages),
        visit("ping_pong", c.ping_pong);
    visit("dynamic", c.dynamic), visit("watch_sums", c.watch_sums), visit("watch_weights", c.watch_weights);
    visit("windowed", c.windowed), visit("pack_gqa", c.pack_gqa), visit("split", c.split), visit("sink", c.sink);
    visit("cached", c.cached), visit("page_size", c.page_size), visit("bounded", c.bounded);
    visit("bias_boxes", c.bias_boxes), visit("scales_late", c.scales_late);
    visit("normal_bound", c.normal_bound), visit("turned_columns", c.turned_columns);
    visit("clustered", c.clustered);
  }
};

/// A block owns block_n() keys and streams queries in tiles of block_m. Two warpgroups compute; a third multiplies what
/// adds up to dq and loads tiles. A fourth makes dropout's draws; for wide heads it loads tiles. Head dims are padded
/// to multiples of 32, vector_rows is 1.
struct HopperBwdConfig : ScoreConfig {
  int32_t block_m = 64, stages = 3;
  Flag windowed = 0;         // of a ranged config: keys on the left are hidden too
  Flag bias_boxes = 0;       // a bias comes by TMA beside Q, else each score loads its own
  Flag partial_rows = 0;     // queries of a sequence may end within a tile
  Flag ordered = 0;          // dq is added up in the order of tiles of keys
  Flag both_ways = 0;        // that order begins with the last keys, but for the last heads with the first ones
  Flag late_preprocess = 0;  // later heads are preprocessed while this kernel works on others
  Flag split = 0;            // queries come in parts, each of which leaves its own sums for bwd_convert_dkdv
  Flag shares_keys = 0;      // both consumer warpgroups have the same 64 keys, the one S and dV, the other dP and dK
  Flag own_dq = 0;           // those that compute multiply dQ too, half of its columns each; of persistent blocks
  Flag persistent = 0;       // a block works on one tile of keys after the other
  Flag grouped = 0;          // of such blocks: a key head has several query heads, of which a tile of keys has some
  Flag rounds = 0;           // of such blocks: those that have no tile left round dq
  Flag last_rounds = 0;  // of such blocks with couriers: the last tile of keys that adds to a tile of queries rounds it
  Flag normal_bound = 0;  // as in HopperForwardConfig

  static constexpr int32_t kRows = 64, kConsumers = 2;  // keys of a warpgroup, and how many compute
  static constexpr int32_t kDqWarps = 4;                // of the warpgroup that multiplies dQ, each with its own rows
  static constexpr int32_t kDrawWarps = 4;              // that make dropout's draws
  static constexpr int32_t kCouriers = 2;               // warps that take dq's sums to memory, every other tile's each
  /// Whether warps of their own take dq's sums to memory: where these have an order and lie in shared memory, no draws
  /// take the warps, and 208 registers are enough for a score (else 70 to 280 bytes of spills).
  constexpr bool couriers() const {
    const bool biased = bias_type != kBiasNone, crowded = softcap ? biased || block_m > 64 : biased && !bias_boxes;
    return ordered && !shares_keys && !own_dq && !dropout && !crowded && plain_scale;
  }
  /// Whether warps beside the one that loads tiles do, of those who multiply dQ beside dk and dv.
  constexpr bool own_couriers() const { return own_dq && ordered; }
  /// Whether there are couriers of either kind.
  constexpr bool carried() const { return couriers() || own_couriers(); }
  /// Whether a warp beside the couriers awaits turns to add to a group's dk and dv, and hands them on: each takes 1,000
  /// cycles and more, for which warps that compute would stand still.
  constexpr bool tells_groups() const { return grouped && couriers(); }
  /// Whether weights come of scores in natural units and of a log-sum-exp in those, as score_mod (!plain_scale) has
  /// them, which takes a biased score no instruction more; else of products and a log-sum-exp in units of log2, one
  /// instruction a score.
  constexpr bool natural_lse() const { return alibi || bias_type != kBiasNone || !plain_scale; }
  /// Whether tiles of queries with a large log-sum-exp, of which units of log2 would lose too much, are told of. Capped
  /// scores are small.
  constexpr bool tells_large() const { return !natural_lse() && !softcap; }
  /// Tiles of dS held: 192 columns of dq on their way to memory leave room for one.
  constexpr int32_t score_stages() const { return own_dq ? 1 : 2; }
  /// Whether a warp does nothing but load tiles, so that it runs ahead to the next tile of keys.
  constexpr bool lone_loader() const { return shares_keys || own_dq || couriers(); }
  /// Whether it then schedules tiles of keys.
  constexpr bool loader_schedules() const { return persistent && lone_loader(); }
  /// Tiles of K held: with two the next one comes while this one is worked on, for which there is room to 64 columns.
  constexpr int32_t key_stages() const { return loader_schedules() && !shares_keys && head_dim <= 64 ? 2 : 1; }
  /// Whether a block's first tile is drawn, too, else it has the block's number. Where sums have an order, or blocks
  /// round dq in the end, a block waits for others' tiles, and these are to have begun: a block that finds no
  /// multiprocessor until others end has none yet.
  constexpr bool draws_first() const { return persistent && (ordered || rounds || grouped); }
  /// The warps that say that they have read where a tile of keys is: all where the loader runs ahead of them, which too
  /// is one of them, else those that draw.
  constexpr int32_t item_readers() const {
    const int32_t carriers = (carried() ? kCouriers : 0) + tells_groups(), dq = (own_dq ? 0 : kDqWarps) + carriers;
    if (loader_schedules()) return 4 * kConsumers + dq + 1;
    return persistent && dropout ? kDrawWarps : 0;
  }
  /// Where chunk i of 64 columns of K lies: of three the outer ones in front of the inner one, of which each warpgroup
  /// that multiplies dQ has a half.
  constexpr int32_t key_chunk(int32_t i) const { return own_dq && i > 0 ? 3 - i : i; }
  /// The warps that add to a tile of dq.
  constexpr int32_t dq_warps() const { return own_dq ? 4 * kConsumers : kDqWarps; }
  /// Words of dq's order that a tile of queries has: a courier's one, or one for each warp that adds.
  constexpr int32_t turns_a_tile() const { return carried() ? 1 : kDqWarps; }
  constexpr int32_t tile_floats() const { return block_m * head_dim; }  // of dq's sums
  /// Those that compute, one for dq, and one that loads tiles of wide heads, makes dropout's draws, or loads tiles
  /// and has the couriers.
  constexpr int32_t warpgroups() const { return kConsumers + (shares_keys || dropout || couriers() ? 2 : 1); }
  constexpr int32_t block_n() const { return shares_keys ? kRows : kRows * kConsumers; }
  constexpr int32_t dq_cols() const { return 64; }  // multiplied at once
  constexpr int32_t threads() const { return waves * 32; }

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_score_field(c, visit);
    visit("block_m", c.block_m), visit("stages", c.stages), visit("windowed", c.windowed);
    visit("bias_boxes", c.bias_boxes), visit("partial_rows", c.partial_rows), visit("ordered", c.ordered);
    visit("both_ways", c.both_ways), visit("late_preprocess", c.late_preprocess);
    visit("split", c.split), visit("shares_keys", c.shares_keys), visit("own_dq", c.own_dq);
    visit("persistent", c.persistent), visit("grouped", c.grouped);
    visit("rounds", c.rounds), visit("last_rounds", c.last_rounds);
    visit("normal_bound", c.normal_bound);
  }
};

/// What the Hopper backward pass begins with; see bwd_preprocess.h. One warp loads tiles; each stage has a warp that
/// tells what is made, and a team of warps that makes it.
struct HopperBwdPreprocessConfig : RowConfig {
  static constexpr int32_t kRows = 128;  // in whole runs of which a head's statistics lie: block_m divides them
  static constexpr int32_t kStages = 3, kTeamWarps = 8, kOtherWarps = 1 + kStages;
  static constexpr int32_t kWaves = kOtherWarps + kStages * kTeamWarps, kThreads = 32 * kWaves;
  static constexpr int32_t kZeros = 2048;  // floats
  Flag natural_lse = 0, tells_large = 0;   // as HopperBwdConfig says

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit), visit("natural_lse", c.natural_lse), visit("tells_large", c.tells_large);
  }

  constexpr int32_t row_bytes() const { return (head_dim_v + 63) / 64 * 128; }
  /// As many as make 64 KB with their dO: a stage.
  constexpr int32_t tile_rows() const { return row_bytes() > 256 ? 64 : row_bytes() > 128 ? 128 : 256; }
  constexpr int32_t stage_bytes() const { return 2 * tile_rows() * row_bytes(); }
};

constexpr HopperBwdPreprocessConfig preprocess_config(const HopperBwdConfig& bwd) {
  HopperBwdPreprocessConfig c;
  c.out_type = bwd.out_type;
  c.head_dim = bwd.head_dim;
  c.head_dim_v = bwd.head_dim_v;
  c.waves = HopperBwdPreprocessConfig::kWaves;
  c.lengths = bwd.lengths;
  c.natural_lse = bwd.natural_lse();
  c.tells_large = bwd.tells_large();
  return c;
}

inline constexpr int32_t kDqRows = 16;  // queries whose sums of dq lie together: those of a warp's accumulators

/// What it ends with where no block rounds dq, of blocks of as many; see bwd_convert_dq.h.
struct HopperBwdConvertDqConfig : RowConfig {
  static constexpr int32_t kRows = HopperBwdPreprocessConfig::kRows;
  Flag own_dq = 0;  // of the kernel that added up

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit), visit("own_dq", c.own_dq);
  }
};

/// A wave looks at a tile of own rows, of so many parts, and streamed ones; see mask_tiles.h.
struct HopperMaskTilesConfig : RowConfig {
  using Functions = NoScoreFunctions;
  int32_t own = 64, streamed = 64;  // own: rows of a part
  int32_t parts = 1;                // of a tile, up to 4, each with a class of its own
  Flag keys_own = 0;
  Flag cached = 0;  // keys are in a cache, whose sequences are found as a KV cache step has them

  static constexpr int32_t kBatchBits = 16;  // of a batch entry, in a word with a head

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit);
    visit("own", c.own), visit("streamed", c.streamed), visit("parts", c.parts);
    visit("keys_own", c.keys_own), visit("cached", c.cached);
  }
};

/// A warp makes a row of what other kernels walk by; see tile_lists.h.
struct HopperTileListsConfig : RowConfig {
  Flag ranges = 0;  // of tiles of queries, for the backward pass, else lists of tiles of keys

  static constexpr int32_t kEnds = 2;    // behind a list's entries, as many as are read ahead
  static constexpr int32_t kRanges = 5;  // of a row: of all warpgroups' keys, and of each one's
  static constexpr int32_t kEntryBytes = 4, kRangeBytes = 8 * kRanges;
  /// Of a row that meets so many tiles; it begins on 8 bytes.
  constexpr int64_t row_bytes(int64_t tiles) const {
    return ((ranges ? kRangeBytes + tiles : (tiles + kEnds) * kEntryBytes) + 7) / 8 * 8;
  }

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit), visit("ranges", c.ranges);
  }
};

/// Registers of a thread of the producer warpgroup, and of consumer ones, as setmaxnreg sets them: multiples of 8,
/// together no more than the block was launched with, which is 168 a thread of three warpgroups, 128 of four and 96 of
/// five. A block that asks for more waits forever.
struct WarpgroupRegisters {
  int32_t producer, consumer;
  int32_t other = 0;  // of a warpgroup that does neither
};
constexpr WarpgroupRegisters warpgroup_registers(const HopperForwardConfig& config) {
  if (config.consumers() == 1) return {56, 256};
  // Warps that transpose need some: of 32 registers they spill, and consumer warpgroups of 96 keys do with 152.
  if (config.fp8() && config.consumers() == 2) return {56, 224};
  if (config.fp8() && config.consumers() == 3) return {56, 152};
  // Of 24 the warps that load tiles spill, 100 bytes where they load a bias too; parts of sequences of any length are
  // found with more.
  const bool alone = !config.split && config.page_size == 0;
  const bool wide = config.head_dim_v > 128 && alone && !config.clustered && config.plain_scale && !config.dropout &&
                    !config.turned_columns;
  if (config.consumers() == 2) return wide ? WarpgroupRegisters{24, 240} : WarpgroupRegisters{40, 232};
  if (config.consumers() == 3) return {32, 160};
  return {32, 112};
}

/// Those of the backward kernel: 504 = 3 x 168 is all there is of three warpgroups, 512 of four. Of wide heads the
/// first loads tiles and another adds up dq, else the first does both, unless there are couriers. Draws of two calls
/// need 32; dq's sums, 32 a thread, do with 64 where somebody needs the rest, but not with 56.
constexpr WarpgroupRegisters warpgroup_registers(const HopperBwdConfig& config) {
  if (config.shares_keys) return config.dropout ? WarpgroupRegisters{32, 208, 64} : WarpgroupRegisters{24, 208, 72};
  if (config.own_dq) return {24, 240};
  if (config.couriers()) return {72, 208, 24};
  return config.dropout ? WarpgroupRegisters{64, 208, 32} : WarpgroupRegisters{72, 216};
}

/// Values are the first head_dim_v columns of the keys, of one head that all query heads share; the rest of a key is
/// one chunk of 64 columns. A block is 64 rows of (query, head) pairs.
struct HopperLatentConfig : ScoreConfig {
  int32_t page_size = 0;    // 0: contiguous
  Flag split = 0;           // keys come in parts, each of which leaves its own sums for combine
  Flag clustered = 0;       // two blocks with the same keys each load half of every tile of them, to both
  Flag schedules_keys = 0;  // of split keys: see kv_cache/key_scheduler.h
  Flag selects = 0;         // a block has heads of one query, and the keys that key_indices give it

  static constexpr int32_t kRows = 64, kKeys = 64, kStages = 2;
  static constexpr int32_t block_n = kKeys;          // as others call it
  static constexpr bool kSchedulesSparingly = true;  // 128 rows of 512 fp32 sums, there and back, are 7 tiles of keys
  constexpr int32_t blocks_of_cluster() const { return clustered ? 2 : 1; }
  static constexpr int32_t kConsumers = 2;  // warpgroups, each with half of the columns of out
  static constexpr int32_t kThreads = 128 * (kConsumers + 1);
  constexpr int32_t keys_of_box() const { return selects ? 1 : device::keys_of_box(page_size, kKeys); }

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_score_field(c, visit);
    visit("page_size", c.page_size), visit("split", c.split), visit("clustered", c.clustered);
    visit("schedules_keys", c.schedules_keys), visit("selects", c.selects);
  }
};

}  // namespace tilewise::device
