// Tile sizes; see schedule.hpp.
#include "backends/portable/attention/schedule.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/selected_keys.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div;
using device::is_crowded, device::ScoreConfig;

constexpr std::int32_t kDimStep = 32;
constexpr std::int64_t kFewQueries = 64;  // rows of one tile may then come from several heads

device::BiasType bias_type_of(const Problem& p) {
  switch (p.bias) {
    case BiasKind::none:
      return device::kBiasNone;
    case BiasKind::f32:
      return device::kBiasF32;
    case BiasKind::boolean:
      return device::kBiasBool;
    case BiasKind::query:
      return p.dtype == DType::bf16 ? device::kBiasBf16 : device::kBiasF16;
  }
  return device::kBiasNone;
}

bool has_lengths(const Problem& p) { return p.layout == Layout::thd || p.seqused_q || p.seqused_k || p.leftpad_k; }

/// Fields that a kernel does not read take their defaults, so that problems share it.
void set_rows(device::RowConfig& c, const Problem& p) {
  const device::ElementType element = p.dtype == DType::bf16 ? device::kBf16 : device::kF16;
  c.q_type = c.k_type = c.v_type = c.out_type = element;
  c.vector_rows = has_vector_rows(p);
  c.exact_dims = 0;
  c.lengths = has_lengths(p);
  c.waves = 4;
}

/// What kernels that see scores are specialised on.
void set_scores(ScoreConfig& c, const Problem& p) {
  set_rows(c, p);
  c.head_dim = padded_dim(p.head_dim);
  c.head_dim_v = padded_dim(p.head_dim_v);
  c.exact_dims = c.vector_rows && c.head_dim == p.head_dim && c.head_dim_v == p.head_dim_v;
  set_score_options(c, p);
}

/// Whether scores need more than their scale, which costs registers.
bool is_featured(const ScoreConfig& c) { return c.dropout || !c.plain_scale; }

/// Whether a wave for each key head and batch entry leaves multiprocessors idle, so that keys are split.
bool has_few_blocks(const Problem& p, const DeviceTraits& traits) {
  return !p.batch_invariant && p.batch_size * p.num_heads_k < 2LL * traits.multiprocessors;
}

/// Whether packed heads leave so few tiles of 4 x 32 rows that keys are split for most of the multiprocessors: twice as
/// many of half the rows hide more of each other's latency (to 64 queries on 4,096 keys of 8 heads).
bool has_few_tiles(const Problem& p, const DeviceTraits& traits) {
  constexpr std::int64_t kTileRows = 128;
  const std::int64_t tiles = (p.seqlen_q * group_of(p) + kTileRows - 1) / kTileRows;
  return !p.batch_invariant && group_of(p) > 1 && p.seqlen_q <= kFewQueries &&
         4 * tiles * p.num_heads_k * p.batch_size <= traits.multiprocessors;
}

void shape_sm80_forward(device::ForwardConfig& c, const Problem& p, const DeviceTraits& traits, std::int32_t dim) {
  const std::int64_t rows = p.seqlen_q * group_of(p);
  c.stages = 2;
  // On an H200 4 x 32 rows beat 8 x 32 up to head_dim 128 (by 2 to 25%, most on short causal
  // sequences), and 8 x 16 rows beat 4 x 16 beyond.
  c.waves = dim <= 128 ? 4 : 8;
  c.rows_per_wave = dim <= 128 ? 32 : 16;
  c.rows_in_registers = dim <= 64;
  // 32 rows of 64 scores and what a bias adds pass the registers (88 to 148 bytes spilled), 32 x 32 don't. ALiBi and
  // softcap do everywhere but on sm_90a (68 to 92 bytes at head_dim 128), dropout on sm_100 (80).
  const bool caps = (c.softcap || c.alibi) && traits.architecture != "sm_90a";
  const bool drops = c.dropout && traits.architecture == "sm_100";
  // Functions do on every architecture (168 on sm_90a).
  const bool narrow = c.bias_type != device::kBiasNone || caps || drops || has_functions(p);
  if (dim > 64 && dim <= 128 && rows > 64 && narrow) c.block_n = 32;
  const bool few_blocks = has_few_blocks(p, traits);
  // Rows of 160, 192 and 224 elements are no power of 2 of chunks, each of which has an address of its own: of tiles
  // that one wave copies they pass its registers (132, 300 and 704 bytes spilled; 120 of 32 keys of 224).
  const bool lone_wave = dim <= 128 || dim == 256 || (few_blocks && dim <= 192);
  if (rows <= 16 && lone_wave) {
    c.rows_per_wave = 16;
    c.waves = 1;
    // A wave's latency decides where there are few: twice as many with half the tile take 20% less. Where there are
    // many, rows of 64 elements come 10% faster by larger tiles, and of 128 by smaller ones, of which more are under
    // way at once.
    if (few_blocks || dim > 64) c.block_n = 32;
  } else if (rows <= 64 || (dim <= 128 && has_few_tiles(p, traits))) {
    c.rows_per_wave = 16;
    c.waves = 4;
  }
}

/// One wave of RDNA alone loads whole tiles of keys and values through registers that Q and O nearly fill. 32 keys of
/// head_dim 96 are 96 registers a lane beside 96 of Q and O: 168 to 360 bytes a lane spilled (228 of 64 beside 128),
/// none with 16 keys, of which a wave takes 244. Wider tiles are not held (RdnaOps::kRoomyDims).
void shape_lone_rdna_wave(device::ForwardConfig& c, bool batch_invariant) {
  const std::int32_t dims = c.head_dim + c.head_dim_v;
  const bool holds_tiles = dims > 128 && dims <= 192;
  // Four waves share the copying, three of them idle else: of rows that are not aligned, which come element by element
  // (76 to 104 bytes spilled at 96 and 128), and where batch_invariant asks for tiles of 32.
  if ((!c.vector_rows && c.rows_in_registers && dims > 128) || (batch_invariant && holds_tiles)) {
    c.waves = 4;
  } else if (holds_tiles) {
    c.block_n = 16;
  }
}

/// Few rows of RDNA3 leave their operand in shared memory, and four waves the copying, where bias and more, or elements
/// that come one by one beside options, pass the registers (12 and 160 bytes of scratch at head_dim 80 and 128).
void share_crowded_rows(device::ForwardConfig& c) {
  if (c.head_dim + c.head_dim_v <= 128 || !is_featured(c) || (!is_crowded(c) && c.vector_rows)) return;
  c.waves = 4;
  c.rows_in_registers = 0;
  c.block_n = 32;
}

/// The widest rows of which a wave of RDNA holds 32. RDNA4's operands take half the registers; masks and columns to
/// leave out together pass them (20 and 24 bytes spilled at head_dim 80), and elements that come one by one (8 at 128).
std::int32_t most_dim_of_two_tiles(const device::ForwardConfig& c, Family family) {
  return family == Family::rdna4 && c.vector_rows && (c.exact_dims || !c.ranged) ? 128 : 64;
}

/// Eight waves of CDNA share the copying of a tile where it is large enough, and two a SIMD have 256 registers each:
/// too few for what bias, ALiBi or dropout add beyond head_dim 160, beside elements that come one by one beyond 96 (108
/// bytes of scratch), or all of them or softcap (64) beyond 96.
bool wants_wide_waves(const device::ForwardConfig& c) {
  const std::int32_t dim = c.wider_dim();
  return is_featured(c) && (dim > 160 || (dim > 96 && (is_crowded(c) || c.softcap || !c.vector_rows)));
}

void shape_forward(device::ForwardConfig& c, const Problem& p, const DeviceTraits& traits) {
  const std::int32_t dim = c.wider_dim();
  const std::int64_t rows = p.seqlen_q * group_of(p);
  switch (traits.family) {
    case Family::sm80:
    case Family::sm90:
      shape_sm80_forward(c, p, traits, dim);
      break;
    case Family::cdna:
      c.waves = rows <= 512 || dim <= 64 || wants_wide_waves(c) ? 4 : 8;
      if (rows <= 32) c.waves = 1;
      c.rows_per_wave = 32;
      c.rows_in_registers = 1;
      c.block_n = dim <= 128 && c.waves > 1 ? 64 : 32;
      break;
    case Family::gfx1250:
      // Of its 1,024 registers a lane these take up to 700. Columns to leave out beside 64 keys pass the scalar ones (8
      // bytes of scratch at head_dim 80), and so do the odd shares of rows of 96.
      c.waves = rows <= 16 ? 1 : 4;
      c.rows_per_wave = rows > 64 ? 32 : 16;
      c.rows_in_registers = 1;
      c.block_n = dim <= 128 && dim % 64 == 0 && c.exact_dims ? 64 : 32;
      break;
    case Family::rdna:
    case Family::rdna4:
      // 32 rows a wave halve the reads of shared memory; beyond head_dim 64, or with more to do for a score, they don't
      // fit the registers, nor do 16 rows' own operand beyond 128, and RDNA3's, which is twice as large, beyond 96
      // beside everything that scores may need (8 bytes of scratch on gfx1102).
      c.waves = rows <= 16 ? 1 : 4;
      c.rows_per_wave = dim <= most_dim_of_two_tiles(c, traits.family) && rows > 64 && !is_featured(c) ? 32 : 16;
      c.rows_in_registers = dim <= (traits.family == Family::rdna && c.waves > 1 && is_crowded(c) ? 96 : 128);
      c.block_n = 32;
      if (c.waves == 1) shape_lone_rdna_wave(c, p.batch_invariant);
      if (rows <= 16 && traits.family == Family::rdna) share_crowded_rows(c);
      // What functions look up beside other options spills 200 bytes of a lone wave at head_dim 64.
      if (traits.family == Family::rdna && has_functions(p) && is_featured(c)) c.waves = 4;
      break;
  }
}

struct BwdShape {
  std::int32_t waves, wave_cols, block_m, stages;
};

/// Largest first. dk and dv of 32 keys and a part of the columns fit a wave's registers: half of them up to
/// head_dim 128, a quarter beyond.
constexpr std::array<BwdShape, 4> kBwdNarrow{{{8, 2, 128, 2}, {8, 2, 64, 2}, {4, 2, 64, 2}, {4, 2, 32, 2}}};
constexpr std::array<BwdShape, 4> kBwdMiddle{{{8, 2, 64, 2}, {8, 2, 32, 2}, {4, 2, 64, 2}, {4, 2, 32, 2}}};
constexpr std::array<BwdShape, 2> kBwdWide{{{8, 4, 64, 2}, {8, 4, 64, 1}}};

/// Registers that a wave lacks for the first shapes of a list: dropout's draws and a bias pass them by some hundred
/// bytes a lane at head_dim 64 (functions by 196), everything together at 128.
std::span<const BwdShape> bwd_shapes(const ScoreConfig& c, const DeviceTraits& traits, bool functions) {
  const std::int32_t dim = c.wider_dim();
  const bool has_bias = c.bias_type != device::kBiasNone;
  if (dim <= 64) return std::span(kBwdNarrow).subspan(c.dropout || has_bias || functions ? 1 : 0);
  // Dropout or a bias alone spills 84 bytes of the first middle shape on sm_80, at most 20 elsewhere.
  const bool spills = (c.dropout || has_bias) && traits.architecture == "sm_80";
  if (dim <= 128) return std::span(kBwdMiddle).subspan(spills || (is_crowded(c) && c.lengths) ? 1 : 0);
  return kBwdWide;
}

/// Head dims as the waves' parts need them: whole units of 16 columns for each part of dk, dv and dq.
void pad_for_parts(device::BwdConfig& c) {
  const std::int32_t unit = std::max(kDimStep, 16 * std::max(c.wave_cols, 16 * c.waves / c.block_m));
  c.head_dim = (c.head_dim + unit - 1) / unit * unit;
  c.head_dim_v = (c.head_dim_v + unit - 1) / unit * unit;
}

/// Whether accumulators of dk and dv together would pass a lane's registers: then one kernel after the
/// other, dk's being the larger one.
bool adds_up_apart(const ScoreConfig& c, Family family) {
  return c.head_dim + c.head_dim_v >
         ((family == Family::rdna || family == Family::rdna4) && is_featured(c) ? 128 : 256);
}

/// Reduces a configuration step by step until a block fits, or can't get smaller: first what is streamed at a time.
template <typename Kernel, typename Config>
void shrink_to_fit(Config& c, std::int32_t Config::* streamed, const DeviceTraits& traits) {
  while (!fits<Kernel>(c, traits)) {
    if (c.*streamed > 32) {
      c.*streamed /= 2;
    } else if (c.waves > 1) {
      c.waves /= 2;
    } else {
      return;
    }
  }
}

/// Rows of a wave where a kernel of the backward pass owns rows and keeps two sums.
std::int32_t gradient_rows(Family family) { return family == Family::cdna ? 32 : 16; }

/// Everything decided but `split`, for as many rows as the problem has.
device::ForwardConfig shaped_forward(const Problem& p, const DeviceTraits& traits) {
  device::ForwardConfig c;
  set_scores(c, p);
  // The last query sees every key before it. Without a mask a block has its first key 100 instructions earlier.
  const bool is_last = p.seqlen_q <= 1 && p.alignment == Alignment::bottom_right;
  if (is_last && p.mask == Mask::causal && p.window_left < 0 && p.window_right < 0) c.ranged = 0;
  c.selects = p.top_k > 0;
  c.sink = p.sink != SinkKind::none;
  c.pack_gqa = c.selects || (group_of(p) > 1 && p.seqlen_q <= kFewQueries);
  shape_forward(c, p, traits);
  if (c.selects) shape_selected(c, traits.family);
  shrink_to_fit<Forward>(c, &device::ForwardConfig::block_n, traits);
  return c;
}

}  // namespace

operations::attention::FeatureSet attention_features() {
  using enum operations::attention::Feature;
  return {bf16,          f16,
          forward,       backward,
          gqa,           head_dim_v,
          packed,        window_left,
          window_right,  top_left,
          scale_sign,    softcap,
          bias,          bias_boolean,
          dbias,         alibi,
          sink,          dsink,
          dropout,       seed_tensor,
          seqused_q,     seqused_k,
          leftpad_k,     dlse,
          deterministic, batch_invariant,
          clear_rest,    score_mod,
          mask_mod,      dtables,
          key_indices,   block_mask};
}

void set_score_options(ScoreConfig& c, const Problem& p) {
  c.lengths = has_lengths(p);
  c.ranged = p.mask != Mask::none || p.window_left >= 0 || p.window_right >= 0;
  c.softcap = p.softcap > 0.0;
  c.alibi = p.alibi_slopes != AlibiKind::none;
  c.bias_type = bias_type_of(p);
  c.dropout = p.dropout_p > 0.0;
  c.plain_scale =
      p.softmax_scale > 0.0 && !c.softcap && !c.alibi && c.bias_type == device::kBiasNone && p.score_mod.empty();
}

std::int64_t group_of(const Problem& p) { return p.num_heads_q / std::max<std::int64_t>(p.num_heads_k, 1); }

std::int32_t padded_dim(std::int64_t dim) {
  return static_cast<std::int32_t>((dim + kDimStep - 1) / kDimStep * kDimStep);
}

device::ForwardConfig forward_config(const Problem& p, const DeviceTraits& traits) {
  device::ForwardConfig c = shaped_forward(each_query_of(p), traits);
  // Tiles of keys decide the order of a row's sums: with batch_invariant they are those of many rows, for which shared
  // memory has room for the fewest.
  if (p.batch_invariant && p.seqlen_q < kManyQueries && !c.selects) {
    Problem many = p;
    many.seqlen_q = kManyQueries;
    c.block_n = shaped_forward(many, traits).block_n;
  }
  return c;
}

std::int64_t combine_tiles(const Problem& p, const device::CombineConfig& config, std::int64_t splits,
                           gpu::Family family) {
  constexpr std::int64_t kLaneCols = 4;
  const std::int64_t teams_a_row = core::ceil_div(p.head_dim_v, kLaneCols * gpu::lanes(family));
  return core::ceil_div(p.seqlen_q * teams_a_row, std::int64_t{splits > device::kRowSplits ? 1 : config.waves});
}

device::CombineConfig combine_config(const Problem& p) {
  device::CombineConfig c;
  set_rows(c, p);
  c.sink = p.sink != SinkKind::none;
  return c;
}

device::BwdPreprocessConfig bwd_preprocess_config(const Problem& p) {
  device::BwdPreprocessConfig c;
  set_rows(c, p);
  c.head_dim_v = padded_dim(p.head_dim_v);
  return c;
}

device::BwdDqConfig bwd_dq_config(const Problem& p, const DeviceTraits& traits) {
  device::BwdDqConfig c;
  set_scores(c, p);
  const std::int32_t dim = c.wider_dim();
  c.rows_per_wave = gradient_rows(traits.family);
  c.rows_in_registers = traits.family == Family::cdna;
  c.block_n = 32;
  if (traits.family == Family::sm80) {
    // Fastest of 4 to 6 shapes each on an H200, as for dk and dv below.
    c.stages = 2;
    if (dim > 128) {
      c.waves = 8;
    } else {
      c.rows_per_wave = 32;
      c.block_n = dim <= 64 ? 64 : 32;
    }
  }
  // A bias and more pass RDNA's registers beside elements that come one by one (8 bytes of scratch at head_dim 128, 40
  // at 80 on RDNA4), and RDNA3's beside a function (44 at 64).
  const bool is_rdna3 = traits.family == Family::rdna, is_rdna4 = traits.family == Family::rdna4;
  const bool biased = c.bias_type != device::kBiasNone && (c.softcap || c.alibi || c.dropout);
  const bool one_by_one = !c.vector_rows && dim > 64;
  if (biased && (((is_rdna3 || is_rdna4) && one_by_one) || (is_rdna3 && has_functions(p)))) c.block_n = 16;
  c.selects = p.top_k > 0;
  if (c.selects) shape_selected(c, traits.family, group_of(p));
  shrink_to_fit<BwdDq>(c, &device::BwdDqConfig::block_n, traits);
  return c;
}

device::BwdDkdvConfig bwd_dkdv_config(const Problem& p, const DeviceTraits& traits) {
  device::BwdDkdvConfig c;
  set_scores(c, p);
  const std::int32_t dim = c.wider_dim();
  c.rows_per_wave = gradient_rows(traits.family);
  c.rows_in_registers = traits.family == Family::cdna;
  c.block_m = 32;
  if (traits.family == Family::sm80) {
    // 32 rows a wave halve the reads of shared memory, but dk and dv of 32 rows fit the registers up to head_dim 64
    // only, and there with 32 columns.
    c.stages = 2;
    if (dim > 128) {
      c.waves = 8;
    } else {
      if (dim <= 64) c.rows_per_wave = 32;
      c.block_m = dim <= 64 ? 32 : 64;
    }
  }
  const bool has_few_registers = traits.family == Family::rdna || traits.family == Family::rdna4;
  if (has_few_registers && (dim > 64 || is_featured(c))) c.block_m = 16;
  c.wants_dv = !adds_up_apart(c, traits.family);
  c.selects = p.top_k > 0;
  if (c.selects) shape_selected(c, traits.family, group_of(p));
  shrink_to_fit<BwdDkdv>(c, &device::BwdDkdvConfig::block_m, traits);
  return c;
}

device::BwdConfig bwd_config(const Problem& p, const DeviceTraits& traits) {
  device::BwdConfig unshaped;
  set_scores(unshaped, p);
  unshaped.rows_per_wave = 32;
  device::BwdConfig c = unshaped;
  for (const BwdShape& shape : bwd_shapes(unshaped, traits, has_functions(p))) {
    c = unshaped;
    c.waves = shape.waves;
    c.wave_cols = shape.wave_cols;
    c.block_m = shape.block_m;
    c.stages = shape.stages;
    pad_for_parts(c);
    c.exact_dims = c.exact_dims && c.head_dim == unshaped.head_dim && c.head_dim_v == unshaped.head_dim_v;
    if (fits<Bwd>(c, traits)) break;
  }
  c.wants_dk = p.dk;
  c.wants_dv = p.dv;
  c.wants_dq = accumulates_dq(p);
  return c;
}

device::BwdConvertDqConfig bwd_convert_dq_config(const Problem& p, const device::BwdConfig& bwd) {
  device::BwdConvertDqConfig c;
  set_rows(c, p);
  c.waves = bwd.waves;
  c.block_m = bwd.block_m;
  c.head_dim = bwd.head_dim;
  return c;
}

device::BwdConvertDkdvConfig bwd_convert_dkdv_config(const Problem& p, const device::BwdConfig& bwd) {
  device::BwdConvertDkdvConfig c;
  set_rows(c, p);
  c.waves = bwd.waves;
  c.wave_cols = bwd.wave_cols;
  c.rows_per_wave = bwd.rows_per_wave;
  c.head_dim = bwd.head_dim;
  c.head_dim_v = bwd.head_dim_v;
  return c;
}

device::BwdDbiasConfig bwd_dbias_config(const Problem& p, const DeviceTraits& traits) {
  device::BwdDbiasConfig c;
  set_scores(c, p);
  c.rows_per_wave = gradient_rows(traits.family);
  c.block_n = 32;  // its sums are a third fragment beside S and dP
  shrink_to_fit<BwdDbias>(c, &device::BwdDbiasConfig::block_n, traits);
  return c;
}

device::BwdDtableConfig bwd_dtable_config(const Problem& p, const DeviceTraits& traits) {
  return {bwd_dbias_config(p, traits)};
}

std::int64_t dbias_blocks(const Problem& p, const device::BwdDbiasConfig& config) {
  const auto own = [](bool has, std::int64_t size) { return has ? size : std::int64_t{1}; };
  return own(p.bias_dims.batch, p.batch_size) * own(p.bias_dims.head, p.num_heads_q) *
         own(p.bias_dims.query, ceil_div(p.seqlen_q, config.block_m())) *
         own(p.bias_dims.key, ceil_div(p.seqlen_k, config.block_n));
}

device::BwdDsinkConfig bwd_dsink_config(const Problem& p) {
  device::BwdDsinkConfig c;
  set_rows(c, p);
  return c;
}

device::BwdConvertSelectedConfig bwd_convert_selected_config(const Problem& p) {
  device::BwdConvertSelectedConfig c;
  set_rows(c, p);
  return c;
}

bool fuses_gradients(const Problem& p, const DeviceTraits& traits) {
  if (p.top_k > 0) return false;
  return traits.family == Family::sm80 && (p.dk || p.dv) && fits<Bwd>(bwd_config(p, traits), traits);
}

bool accumulates_dq(const Problem& p) { return p.dq && !p.deterministic && !p.batch_invariant; }

}  // namespace tilewise::backends::portable
