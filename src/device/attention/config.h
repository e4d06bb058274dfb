// What each attention kernel is specialised on: a small value that the host chooses and prints and the kernel takes as
// a template argument. No lengths, batch, heads or strides stand in it. A config is 32-bit integers alone, so that the
// host keeps one as an array; for_each_field() lists them in the order of memory.
#pragma once

#include <stdint.h>

#include "device/common/tensors.h"

namespace tilewise::device {

using Flag = int32_t;  // 0 or 1

/// Matrix instructions by family; each has its ops_*.h.
enum Machine : int32_t { kSm80 = 0, kCdna = 1, kRdna = 2 };

/// Of every kernel that touches rows of tensors.
struct RowConfig {
  int32_t q_type = kBf16, k_type = kBf16, v_type = kBf16;  // ElementType; dq, dk and dv likewise
  int32_t out_type = kBf16;                                // and dout
  int32_t head_dim = 64, head_dim_v = 64;                  // padded to multiples of 32
  int32_t waves = 4;
  Flag vector_rows = 1;  // rows start on 16 bytes and head dims are multiples of 8
  Flag exact_dims = 0;   // head dims equal their padded values
  Flag lengths = 0;      // cu_seqlens, seqused or leftpad_k are given

  constexpr int32_t wider_dim() const { return head_dim > head_dim_v ? head_dim : head_dim_v; }

  template <class Config, class Visit>
  static constexpr void for_each_row_field(Config& c, const Visit& visit) {
    visit("q_type", c.q_type), visit("k_type", c.k_type), visit("v_type", c.v_type), visit("out_type", c.out_type);
    visit("head_dim", c.head_dim), visit("head_dim_v", c.head_dim_v), visit("waves", c.waves);
    visit("vector_rows", c.vector_rows), visit("exact_dims", c.exact_dims), visit("lengths", c.lengths);
  }
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit);
  }
};

/// Of kernels whose scores no function changes or hides. kSloped: score_mod's derivative is not 1; kSkips: classes of
/// tiles are known.
struct NoScoreFunctions {
  static constexpr bool kModifies = false, kSloped = false, kHides = false, kSkips = false;
  template <class Params>
  using ParamsOf = Params;
};

/// Of kernels that see scores.
struct ScoreConfig : RowConfig {
  using Functions = NoScoreFunctions;
  Flag plain_scale = 1;  // scores are softmax_scale * q.k with a positive scale, nothing else
  Flag ranged = 0;       // a causal mask or a window
  Flag softcap = 0, alibi = 0, dropout = 0;
  int32_t bias_type = kBiasNone;

  template <class Config, class Visit>
  static constexpr void for_each_score_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit);
    visit("plain_scale", c.plain_scale), visit("ranged", c.ranged), visit("softcap", c.softcap);
    visit("alibi", c.alibi), visit("dropout", c.dropout), visit("bias_type", c.bias_type);
  }
};

/// A config whose scores functions of the problem's change: a stub brings their source, see score_functions.h.
template <class Config, class ScoreFunctions>
struct WithFunctions : Config {
  using Functions = ScoreFunctions;
};
template <auto C>
using FunctionsOf = typename decltype(C)::Functions;

/// A block of `waves` waves owns block_m rows of queries and streams keys in tiles of block_n.
struct ForwardConfig : ScoreConfig {
  int32_t rows_per_wave = 16, block_n = 64, stages = 1;
  Flag rows_in_registers = 0;  // Q, else it stays in shared memory
  Flag pack_gqa = 0;           // rows of a block are (query, head of the group) pairs
  Flag idle_waves = 0;         // some of a block's waves have no rows: they only copy
  Flag split = 0;              // keys are split over blocks, which combine merges
  Flag sink = 0;
  Flag staggered = 0;      // one half of the waves multiplies while the other weighs scores
  Flag direct_keys = 0;    // then: tiles of keys are copied straight to shared memory
  Flag direct_values = 0;  // and of values, which are read transposed
  Flag selects = 0;        // a block has heads of one query, and the keys that key_indices give it

  constexpr int32_t block_m() const { return waves * rows_per_wave; }
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_score_field(c, visit);
    visit("rows_per_wave", c.rows_per_wave), visit("block_n", c.block_n), visit("stages", c.stages);
    visit("rows_in_registers", c.rows_in_registers), visit("pack_gqa", c.pack_gqa);
    visit("idle_waves", c.idle_waves), visit("split", c.split), visit("sink", c.sink);
    visit("staggered", c.staggered), visit("direct_keys", c.direct_keys);
    visit("direct_values", c.direct_values), visit("selects", c.selects);
  }
};

/// Tiles of selected keys whose places a stage holds: those of a tile may still be read while the next one's are
/// written. Of a config with stages.
template <class Config>
constexpr int32_t selected_places(const Config& c) {
  return c.stages == 1 ? 2 : 1;
}

/// A wave looks at a tile of own rows, of so many parts, and streamed ones.
struct MaskTilesConfig : RowConfig {
  using Functions = NoScoreFunctions;
  int32_t own = 64, streamed = 64;  // own: rows of a part
  int32_t parts = 1;                // of a tile, up to 4, each with a class of its own
  Flag keys_own = 0;
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit);
    visit("own", c.own), visit("streamed", c.streamed), visit("parts", c.parts), visit("keys_own", c.keys_own);
  }
};

/// A wave writes the states of a row of blocks.
struct BlockStatesConfig : RowConfig {};

struct CombineConfig : RowConfig {
  Flag sink = 0;
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit);
    visit("sink", c.sink);
  }
};

struct BwdPreprocessConfig : RowConfig {};

/// A block owns block_m queries and streams keys in tiles of block_n.
struct BwdDqConfig : ScoreConfig {
  int32_t rows_per_wave = 16, block_n = 64, stages = 1;
  Flag rows_in_registers = 0;  // Q and dO, else they stay in shared memory
  Flag selects = 0;            // as ForwardConfig has it

  constexpr int32_t block_m() const { return waves * rows_per_wave; }
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_score_field(c, visit);
    visit("rows_per_wave", c.rows_per_wave), visit("block_n", c.block_n), visit("stages", c.stages);
    visit("rows_in_registers", c.rows_in_registers), visit("selects", c.selects);
  }
};

/// A block owns block_n keys and streams queries in tiles of block_m.
struct BwdDkdvConfig : ScoreConfig {
  int32_t rows_per_wave = 16, block_m = 64, stages = 1;
  Flag rows_in_registers = 0;  // K and V, else they stay in shared memory
  Flag wants_dk = 1, wants_dv = 1;
  Flag selects = 0;  // a block has keys that one query selects, and streams its heads: sums of dk and dv grow

  constexpr int32_t block_n() const { return waves * rows_per_wave; }
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_score_field(c, visit);
    visit("rows_per_wave", c.rows_per_wave), visit("block_m", c.block_m), visit("stages", c.stages);
    visit("rows_in_registers", c.rows_in_registers), visit("wants_dk", c.wants_dk), visit("wants_dv", c.wants_dv);
    visit("selects", c.selects);
  }
};

/// A block owns block_n keys and streams queries in tiles of block_m. wave_cols waves, a power of 2, share rows of
/// keys, each with a part of the columns.
struct BwdConfig : ScoreConfig {
  int32_t rows_per_wave = 32, wave_cols = 1, block_m = 64, stages = 1;
  Flag split = 0;  // queries are split over blocks, which bwd_convert_dkdv adds up
  Flag wants_dk = 1, wants_dv = 1, wants_dq = 0;

  constexpr int32_t block_n() const { return waves / wave_cols * rows_per_wave; }
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_score_field(c, visit);
    visit("rows_per_wave", c.rows_per_wave), visit("wave_cols", c.wave_cols), visit("block_m", c.block_m);
    visit("stages", c.stages), visit("split", c.split), visit("wants_dk", c.wants_dk), visit("wants_dv", c.wants_dv);
    visit("wants_dq", c.wants_dq);
  }
};

/// From dq_accum to dq. `waves` and block_m are those of the kernel that added up.
struct BwdConvertDqConfig : RowConfig {
  int32_t block_m = 64;
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit);
    visit("block_m", c.block_m);
  }
};

/// From dk_accum and dv_accum to dk and dv. `waves`, rows_per_wave and wave_cols are those of the kernel that added up.
struct BwdConvertDkdvConfig : RowConfig {
  int32_t rows_per_wave = 32, wave_cols = 1;

  constexpr int32_t block_n() const { return waves / wave_cols * rows_per_wave; }
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit);
    visit("rows_per_wave", c.rows_per_wave), visit("wave_cols", c.wave_cols);
  }
};

/// From the sums of selected keys to dk and dv.
struct BwdConvertSelectedConfig : RowConfig {};

/// A block owns block_m x block_n positions of dbias and adds up what reaches them.
struct BwdDbiasConfig : ScoreConfig {
  int32_t rows_per_wave = 16, block_n = 32;

  constexpr int32_t block_m() const { return waves * rows_per_wave; }
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_score_field(c, visit);
    visit("rows_per_wave", c.rows_per_wave), visit("block_n", c.block_n);
  }
};

/// A block owns block_m queries of a head and streams keys in tiles of block_n.
struct BwdDtableConfig : BwdDbiasConfig {};

/// Of captured tensors.
enum TableElement : int32_t {
  kTableF32,
  kTableBf16,
  kTableF16,
  kTableF64,
  kTableE4m3,
  kTableE5m2,
  kTableBool,
  kTableU8,
  kTableI32,
  kTableI64
};

/// Of the sums of a table's gradient.
struct BwdTableSumsConfig : RowConfig {
  Flag stores = 0;      // them into the gradient; else clears them
  int32_t element = 0;  // TableElement, of the gradient

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    for_each_row_field(c, visit);
    visit("stores", c.stores), visit("element", c.element);
  }
};

struct BwdDsinkConfig : RowConfig {};
struct ClearRestConfig : RowConfig {};

/// Whether scores need draws and a bias: what costs most registers.
constexpr bool is_crowded(const ScoreConfig& config) { return config.dropout && config.bias_type != kBiasNone; }

/// Whether operands and accumulators of a wave leave few registers for tiles on their way.
template <class Ops>
constexpr bool has_few_registers(const RowConfig& config) {
  return config.head_dim + config.head_dim_v > Ops::kRoomyDims;
}

/// Whether sums alone are most of a wave's registers.
template <class Ops>
constexpr bool has_wide_sums(const RowConfig& config) {
  return has_few_registers<Ops>(config) && config.head_dim > 192;
}

/// Whether products of a backward kernel stream: of scores without options, where the machine has streams.
template <class Ops, class Scores>
constexpr bool streams_products(const ScoreConfig& config) {
  if constexpr (requires { Ops::kStepsAhead; }) {
    return config.plain_scale && !config.dropout && !has_few_registers<Ops>(config);
  } else {
    return false;
  }
}

/// Steps of such a stream whose operands are read ahead: `most`, or as many as products have.
constexpr int steps_ahead(const ScoreConfig& config, int most) {
  const int32_t dim = config.head_dim < config.head_dim_v ? config.head_dim : config.head_dim_v;
  return dim / 16 < most ? dim / 16 : most;
}

/// Parts that the keys of a row may be split into.
inline constexpr int32_t kMostSplits = 128;

/// Up to so many of them are merged by one wave a row, all read at once; more by a block a row.
inline constexpr int32_t kRowSplits = 8;

/// Lanes that share a row of bwd_preprocess: as many as its 16-byte chunks need, up to a wave.
constexpr int32_t lanes_a_delta_row(const RowConfig& config, int32_t wave_lanes) {
  int32_t lanes = 1;
  while (lanes < wave_lanes && lanes * 8 < config.head_dim_v) lanes *= 2;
  return lanes;
}

/// Rows of a query tile that a wave sums up for dq in the backward pass: 32 where its share of the columns is then
/// whole units of 16. Of a config with waves, head_dim and block_m.
template <class Config>
constexpr int32_t dq_accum_rows(const Config& config) {
  const int32_t parts = 32 * config.waves / config.block_m;
  return parts >= 1 && config.head_dim % (16 * parts) == 0 ? 32 : 16;
}

}  // namespace tilewise::device
