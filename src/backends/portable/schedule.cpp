// Tile sizes; see schedule.hpp.
#include "backends/portable/schedule.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace tilewise::backends::portable {
namespace {

using device::is_crowded, device::KernelConfig;

constexpr std::int32_t kDimStep = 32;

std::int64_t group_of(const Problem& p) { return p.num_heads_q / std::max<std::int64_t>(p.num_heads_k, 1); }

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

bool is_ranged(const Problem& p) { return p.mask != Mask::none || p.window_left >= 0 || p.window_right >= 0; }

bool has_lengths(const Problem& p) { return p.layout == Layout::thd || p.seqused_q || p.seqused_k || p.leftpad_k; }

/// What kernels that see scores are specialised on.
KernelConfig score_config(const Problem& p) {
  KernelConfig c;
  c.element = p.dtype == DType::bf16 ? device::kBf16 : device::kF16;
  c.head_dim = padded_dim(p.head_dim);
  c.head_dim_v = padded_dim(p.head_dim_v);
  c.vector_rows = !p.unaligned && p.head_dim % 8 == 0 && p.head_dim_v % 8 == 0;
  c.exact_dims = c.vector_rows && c.head_dim == p.head_dim && c.head_dim_v == p.head_dim_v;
  c.lengths = has_lengths(p);
  c.ranged = is_ranged(p);
  c.softcap = p.softcap > 0.0;
  c.alibi = p.alibi_slopes != AlibiKind::none;
  c.bias_type = bias_type_of(p);
  c.dropout = p.dropout_p > 0.0;
  c.plain_scale = p.softmax_scale > 0.0 && !c.softcap && !c.alibi && c.bias_type == device::kBiasNone;
  return c;
}

/// Whether scores need more than their scale, which costs registers.
bool is_featured(const KernelConfig& c) { return c.dropout || !c.plain_scale; }

/// Whether a wave for each key head and batch entry leaves multiprocessors idle, so that keys are split.
bool has_few_blocks(const Problem& p, const DeviceTraits& traits) {
  return !p.batch_invariant && p.batch_size * p.num_heads_k < 2LL * traits.multiprocessors;
}

void shape_forward(KernelConfig& c, const Problem& p, const DeviceTraits& traits) {
  const device::Machine machine = traits.machine;
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  const std::int64_t rows = p.seqlen_q * group_of(p);
  switch (machine) {
    case device::kSm80:
      c.stages = 2;
      // On an H200 4 x 32 rows beat 8 x 32 up to head_dim 128 (by 2 to 25%, most on short causal
      // sequences), and 8 x 16 rows beat 4 x 16 beyond.
      c.waves = dim <= 128 ? 4 : 8;
      c.rows_per_wave = dim <= 128 ? 32 : 16;
      c.rows_in_registers = dim <= 64;
      if (rows <= 16) {
        c.rows_per_wave = 16;
        c.waves = 1;
        // A wave's latency decides where there are few: twice as many with half the tile take 19 us instead of 24
        // for 4096 keys of 8 heads on an H200; where there are many, larger tiles come 5% faster.
        if (has_few_blocks(p, traits)) c.tile_cols = 32;
      } else if (rows <= 64) {
        c.rows_per_wave = 16;
        c.waves = 4;
      }
      break;
    case device::kCdna:
      // Eight waves share the copying of a tile where it is large enough, and two a SIMD have 256
      // registers each: too few for what bias, ALiBi or dropout add beyond head_dim 160, or all of them beyond 96.
      c.waves = rows <= 512 || dim <= 64 || (dim > 160 && is_featured(c)) || (dim > 96 && is_crowded(c)) ? 4 : 8;
      if (rows <= 32) c.waves = 1;
      c.rows_per_wave = 32;
      c.rows_in_registers = true;
      c.tile_cols = dim <= 128 && c.waves > 1 ? 64 : 32;
      break;
    case device::kRdna:
      // 32 rows a wave halve the reads of shared memory; beyond head_dim 64, or with more to do for a
      // score, they don't fit the registers, nor do 16 rows' own operand beyond 128.
      c.waves = rows <= 16 ? 1 : 4;
      c.rows_per_wave = dim <= 64 && rows > 64 && !is_featured(c) ? 32 : 16;
      c.rows_in_registers = dim <= 128;
      c.tile_cols = 32;
      break;
  }
}

/// Fastest of 4 to 6 shapes each on an H200. 32 rows a wave halve the reads of shared memory, but dk
/// and dv of 32 rows fit the registers up to head_dim 64 only, and there with 32 columns.
void shape_sm80_gradient(KernelConfig& c, KernelKind kind, std::int32_t dim) {
  if (dim > 128) {
    c.waves = 8;
    return;
  }
  const bool wide = kind == KernelKind::query_gradient;
  if (wide || dim <= 64) c.rows_per_wave = 32;
  c.tile_cols = wide == (dim <= 64) ? 64 : 32;
}

struct FusedShape {
  std::int32_t waves, wave_cols, tile_cols, stages;
};

/// Largest first. dk and dv of 32 keys and a part of the columns fit a wave's registers: half of them up to
/// head_dim 128, a quarter beyond.
constexpr std::array<FusedShape, 4> kFusedNarrow{{{8, 2, 128, 2}, {8, 2, 64, 2}, {4, 2, 64, 2}, {4, 2, 32, 2}}};
constexpr std::array<FusedShape, 4> kFusedMiddle{{{8, 2, 64, 2}, {8, 2, 32, 2}, {4, 2, 64, 2}, {4, 2, 32, 2}}};
constexpr std::array<FusedShape, 2> kFusedWide{{{8, 4, 64, 2}, {8, 4, 64, 1}}};

/// Registers that a wave lacks for the first shapes of a list: dropout's draws and a bias pass them by some hundred
/// bytes a lane at head_dim 64, everything together at 128.
std::span<const FusedShape> fused_shapes(const KernelConfig& c) {
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  const bool has_bias = c.bias_type != device::kBiasNone;
  if (dim <= 64) return std::span(kFusedNarrow).subspan(c.dropout || has_bias ? 1 : 0);
  if (dim <= 128) return std::span(kFusedMiddle).subspan(is_crowded(c) && c.lengths ? 1 : 0);
  return kFusedWide;
}

/// Head dims as the waves' parts need them: whole units of 16 columns for each part of dk, dv and dq.
void pad_for_parts(KernelConfig& c) {
  const std::int32_t unit = std::max(kDimStep, 16 * std::max(c.wave_cols, 16 * c.waves / c.tile_cols));
  c.head_dim = (c.head_dim + unit - 1) / unit * unit;
  c.head_dim_v = (c.head_dim_v + unit - 1) / unit * unit;
}

void shape_fused_gradient(KernelConfig& c, const DeviceTraits& traits) {
  const KernelConfig unshaped = c;
  for (const FusedShape& shape : fused_shapes(c)) {
    c = unshaped;
    c.rows_per_wave = 32;
    c.waves = shape.waves;
    c.wave_cols = shape.wave_cols;
    c.tile_cols = shape.tile_cols;
    c.stages = shape.stages;
    pad_for_parts(c);
    c.exact_dims = c.exact_dims && c.head_dim == unshaped.head_dim && c.head_dim_v == unshaped.head_dim_v;
    if (fits(KernelKind::fused_gradient, c, traits)) return;
  }
}

void shape_gradient(KernelConfig& c, KernelKind kind, device::Machine machine) {
  const std::int32_t dim = std::max(c.head_dim, c.head_dim_v);
  c.stages = machine == device::kSm80 ? 2 : 1;
  c.rows_per_wave = machine == device::kCdna ? 32 : 16;
  c.rows_in_registers = machine == device::kCdna;
  c.waves = 4;
  c.tile_cols = machine == device::kSm80 && dim <= 128 ? 64 : 32;
  if (machine == device::kSm80) shape_sm80_gradient(c, kind, dim);
  if (machine == device::kRdna && kind == KernelKind::key_gradient && (dim > 64 || is_featured(c))) c.tile_cols = 16;
  if (kind == KernelKind::bias_gradient) {
    c.stages = 1;
    c.waves = 4;
    c.rows_per_wave = std::min(c.rows_per_wave, machine == device::kSm80 ? 16 : c.rows_per_wave);
    c.tile_cols = std::min(c.tile_cols, 32);  // its sums are a third fragment beside scores and gradients
    c.rows_in_registers = false;
  }
}

/// Whether accumulators of dk and dv together would pass a lane's registers: then one kernel after the
/// other, dk's being the larger one.
bool adds_up_apart(const KernelConfig& c, device::Machine machine) {
  return c.head_dim + c.head_dim_v > (machine == device::kRdna && is_featured(c) ? 128 : 256);
}

/// Reduces a configuration step by step until a block fits, or can't get smaller.
void shrink_to_fit(KernelKind kind, KernelConfig& c, const DeviceTraits& traits) {
  while (!fits(kind, c, traits)) {
    if (c.tile_cols > 32) {
      c.tile_cols /= 2;
    } else if (c.waves > 1 && c.waves * c.rows_per_wave > 32) {
      c.waves /= 2;
    } else if (c.waves > 1) {
      c.waves /= 2;
    } else {
      return;
    }
  }
}

/// Fields that a kernel does not read take their defaults, so that problems share it.
KernelConfig row_config(const Problem& p) {
  KernelConfig c;
  c.element = p.dtype == DType::bf16 ? device::kBf16 : device::kF16;
  c.vector_rows = !p.unaligned && p.head_dim % 8 == 0 && p.head_dim_v % 8 == 0;
  c.exact_dims = false;
  c.lengths = has_lengths(p);
  c.waves = 4;
  return c;
}

}  // namespace

std::int32_t padded_dim(std::int64_t dim) {
  return static_cast<std::int32_t>((dim + kDimStep - 1) / kDimStep * kDimStep);
}

KernelConfig configure(KernelKind kind, const Problem& problem, const DeviceTraits& traits) {
  KernelConfig c;
  switch (kind) {
    case KernelKind::forward:
      c = score_config(problem);
      c.sink = problem.sink != SinkKind::none;
      shape_forward(c, problem, traits);
      break;
    case KernelKind::query_gradient:
    case KernelKind::key_gradient:
    case KernelKind::bias_gradient:
      c = score_config(problem);
      shape_gradient(c, kind, traits.machine);
      if (kind == KernelKind::key_gradient) c.wants_dv = !adds_up_apart(c, traits.machine);
      break;
    case KernelKind::fused_gradient:
      c = score_config(problem);
      shape_fused_gradient(c, traits);
      c.wants_dk = problem.dk;
      c.wants_dv = problem.dv;
      c.wants_dq = adds_query_sums(problem);
      return c;
    case KernelKind::store_key_sums: {
      const KernelConfig fused = configure(KernelKind::fused_gradient, problem, traits);
      c = row_config(problem);
      c.waves = fused.waves;
      c.wave_cols = fused.wave_cols;
      c.rows_per_wave = fused.rows_per_wave;
      c.head_dim = fused.head_dim;
      c.head_dim_v = fused.head_dim_v;
      return c;
    }
    case KernelKind::store_query_sums: {
      const KernelConfig fused = configure(KernelKind::fused_gradient, problem, traits);
      c = row_config(problem);
      c.waves = fused.waves;
      c.tile_cols = fused.tile_cols;
      c.head_dim = fused.head_dim;
      return c;
    }
    case KernelKind::merge_splits:
      c = row_config(problem);
      c.sink = problem.sink != SinkKind::none;
      break;
    case KernelKind::row_delta:
      c = row_config(problem);
      c.head_dim_v = padded_dim(problem.head_dim_v);
      break;
    case KernelKind::sink_gradient:
      c = row_config(problem);
      break;
  }
  shrink_to_fit(kind, c, traits);
  return c;
}

bool fuses_gradients(const Problem& p, const DeviceTraits& traits) {
  if (traits.machine != device::kSm80 || !(p.dk || p.dv)) return false;
  return fits(KernelKind::fused_gradient, configure(KernelKind::fused_gradient, p, traits), traits);
}

bool adds_query_sums(const Problem& p) { return p.dq && !p.deterministic && !p.batch_invariant; }

bool fits(KernelKind kind, const KernelConfig& config, const DeviceTraits& traits) {
  return shared_bytes(kind, config, traits.machine) <= traits.shared_bytes;
}

std::uint32_t dynamic_shared_bytes(const KernelKey& key, device::Machine machine) {
  return machine == device::kSm80 ? shared_bytes(key.kind, key.config, machine) : 0;
}

std::uint32_t shared_bytes(KernelKind kind, const KernelConfig& c, device::Machine machine) {
  const bool transposes = machine != device::kSm80;
  const auto tile = [](std::int32_t rows, std::int32_t cols) { return 2 * rows * cols; };
  // A stream tile that both products read is kept twice where the machine can't read it transposed.
  const std::int32_t copies = transposes ? 2 : 1, rows = c.waves * c.rows_per_wave;
  const std::int32_t keys = tile(c.tile_cols, c.head_dim), values = tile(c.tile_cols, c.head_dim_v);
  // A block's own rows and its output pass through shared memory, or not: kDirectRows, kStoresDirectly.
  const std::int32_t own = tile(rows, c.head_dim), own_v = tile(rows, c.head_dim_v);
  const std::int32_t kept = c.rows_in_registers ? 0 : 1, passing = c.rows_in_registers && !transposes ? 1 : 0;
  const std::int32_t leaving = machine == device::kCdna ? 0 : 1;
  const auto whole_lines = [](std::int32_t bytes) { return (bytes + 127) / 128 * 128; };
  const auto size = [](std::int32_t bytes) { return static_cast<std::uint32_t>(bytes); };
  switch (kind) {
    case KernelKind::forward:
      return size(std::max({kept * own + c.stages * (keys + values), passing * own, leaving * own_v}));
    case KernelKind::query_gradient:
      return size(std::max(
          {kept * (own + own_v) + c.stages * (copies * keys + values), passing * own, passing * own_v, leaving * own}));
    case KernelKind::key_gradient: {
      // A second copy serves accumulation alone: queries' for dk, douts' for dv.
      const std::int32_t queries = keys * (transposes && c.wants_dk ? 2 : 1);
      const std::int32_t douts = values * (transposes && c.wants_dk && c.wants_dv ? 2 : 1);
      const std::int32_t stage = whole_lines(queries + douts + 2 * 4 * c.tile_cols);
      return size(std::max(
          {kept * (own + own_v) + c.stages * stage, passing * own, passing * own_v, leaving * own, leaving * own_v}));
    }
    case KernelKind::fused_gradient: {
      const std::int32_t stage = whole_lines(keys + values + 2 * 4 * c.tile_cols), owned = rows / c.wave_cols;
      const std::int32_t handed_over = 2 * tile(owned, c.tile_cols);  // weights and score gradients
      return size((own + own_v) / c.wave_cols + c.stages * stage + handed_over);
    }
    case KernelKind::store_key_sums:
      return size(std::max(own, own_v) / c.wave_cols);
    case KernelKind::store_query_sums:
      return size(tile(c.tile_cols, c.head_dim));
    case KernelKind::bias_gradient:
      return size(std::max({own + own_v + keys + values, 4 * rows * c.tile_cols}));
    case KernelKind::sink_gradient:
      return size(4 * c.waves) * lanes(machine);
    case KernelKind::merge_splits:
      // Weights of the splits, and the waves' parts of 4 columns a lane.
      return size(4 * c.waves * device::kMostSplits) + size(4 * 4 * c.waves) * lanes(machine);
    case KernelKind::row_delta:
      return 0;
  }
  return 0;
}

}  // namespace tilewise::backends::portable
