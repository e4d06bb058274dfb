// Tile sizes and element types; see schedule.hpp.
#include "backends/portable/kv_cache/schedule.hpp"

#include <algorithm>

#include "backends/portable/attention/functions.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "operations/kv_cache/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using operations::kv_cache::is_fp8, operations::kv_cache::is_packed, operations::kv_cache::is_paged,
    operations::kv_cache::rotates_in_chunks;

device::ElementType element_of(DType dtype) { return dtype == DType::bf16 ? device::kBf16 : device::kF16; }

device::ScaleKind scales_of(const KvCacheProblem& p) {
  if (p.scales == CacheScales::none) return device::kNoScales;
  return p.scales == CacheScales::token ? device::kTokenScales : device::kBlockScale;
}

/// Beyond, blocks share the columns of v and out: a wave's registers do not hold them beside wider keys.
constexpr std::int64_t kMostWholeDim = 256, kPartDim = 128;

/// What a forward kernel appends of a sequence's new keys at most: units of a lane, or whole rows of a wave, one after
/// the other. A kernel of its own is quicker for more.
constexpr std::int64_t kMostUnits = 2, kMostRows = 4;

bool appends_little(const KvCacheProblem& p, const device::AppendKvConfig& c, std::int64_t lanes) {
  if (!c.vector_rows) return p.seqlen_k_new * (p.mla ? 1 : 2) <= kMostRows * c.waves;
  return p.seqlen_k_new * append_units_of(p) <= kMostUnits * c.waves * lanes;
}

bool has_seqlens_alone(const KvCacheProblem& p) {
  return p.cache_seqlens && !is_packed(p) && !p.cache_batch_idx && !p.cache_leftpad;
}

bool has_vector_tables(const KvCacheProblem& p) {
  return rotates_in_chunks(p.rotary_dim, p.rotary_offset) && !p.unaligned;
}

template <typename Config>
void set_rotary(Config& c, const KvCacheProblem& p) {
  c.rotary = p.rotary_dim > 0;
  c.interleaved = c.rotary && p.rotary_interleaved;
  c.float_tables = c.rotary && p.rotary == RotaryKind::f32;
}

/// Whether one wave multiplies the bytes of fp8 tiles as they are. More waves would widen the same bytes each, and with
/// batch_invariant rows have the bits that they have among many.
bool multiplies_bytes(const device::KvCacheForwardConfig& c, const DeviceTraits& traits, std::int64_t rows,
                      bool batch_invariant) {
  return traits.unpacks_e4m3 && c.exact_dims && rows <= 16 && !batch_invariant && device::fits_byte_tile(c.head_dim) &&
         device::fits_byte_tile(c.head_dim_v);
}

/// Tiles of 32 keys take 11% less than of 64, and less than half of what widening in shared memory takes. Q fills 32
/// registers at head_dim 128.
void shape_byte_tiles(device::KvCacheForwardConfig& c) {
  c.multiplies_bytes = 1;
  if (c.scales != device::kTokenScales) c.v_type = device::kF16;
  c.rows_per_wave = 16, c.waves = 1;
  c.rows_in_registers = c.head_dim + c.head_dim_v <= 256;
  c.block_n = 32, c.stages = 2;
}

/// Whether a wave of CDNA is alone with its keys and values, which then come straight to the registers that it
/// multiplies: a tile in shared memory is read by nobody else, and takes the place of more waves. With batch_invariant
/// tiles are those of many rows.
bool loads_operands(const device::KvCacheForwardConfig& c, const KvCacheProblem& p, const DeviceTraits& traits) {
  return traits.family == gpu::Family::cdna && c.waves == 1 && !c.selects && c.exact_dims && !p.batch_invariant &&
         c.scales != device::kTokenScales && c.head_dim_v % 64 == 0;
}

void shape_fp8(device::KvCacheForwardConfig& c, const DeviceTraits& traits, std::int64_t rows, bool batch_invariant) {
  const bool is_sm80 = traits.family == gpu::Family::sm80;
  // e4m3 is exact in bf16 and in f16, but a weight times the scale of a token may leave f16's range.
  if (c.scales == device::kTokenScales) c.v_type = device::kBf16;
  if (multiplies_bytes(c, traits, rows, batch_invariant)) return shape_byte_tiles(c);
  // Widening takes more than one wave's instructions; tiles on their way through registers take those of more than one.
  c.waves = std::max(c.waves, 4);
  c.keeps_bytes = is_sm80 && c.exact_dims;
  if (c.keeps_bytes) c.stages = 1;
  // 64 keys of 128 elements beside 32 rows, or of more, spill 84 to 104 bytes on sm_90a.
  const bool crowded = c.rows_per_wave > 16 || c.head_dim + c.head_dim_v > 256;
  if (is_sm80 && !c.keeps_bytes && c.head_dim + c.head_dim_v > 128 && crowded) c.block_n = 32;
  // Options, and scales of tokens, pass the registers of 32 rows (80 bytes spilled at head_dim 128 on sm_90a, 12 and 36
  // at 64 on gfx1100).
  const bool is_rdna = traits.family == gpu::Family::rdna || traits.family == gpu::Family::rdna4,
             has_token_scales = c.scales == device::kTokenScales;
  // So does widening rows of 128 elements beside 32 on RDNA4 (128 bytes).
  const bool widens_many = has_token_scales || c.head_dim + c.head_dim_v > 128;
  if (c.rows_per_wave > 16 && ((is_sm80 && (!c.plain_scale || has_token_scales)) || (is_rdna && widens_many))) {
    c.rows_per_wave = 16, c.waves = 8;
  }
  // One wave computes, two copy and widen: 578 us for 64 sequences of 8,192 keys, 719 with 4 waves and 64 keys (H200).
  if (c.keeps_bytes && rows <= c.rows_per_wave) c.waves = 2, c.block_n = 32;
  // 32 keys of 256 elements spill 92 to 128 bytes on RDNA, 16 none.
  if (is_rdna && c.head_dim + c.head_dim_v > 384) c.block_n = 16;
}

/// A lone wave of RDNA that holds tiles in its registers has none left for addresses of pages (8 bytes of scratch at
/// head_dim 80 and 96): four share the copying.
void shape_rdna_pages(device::KvCacheForwardConfig& c) {
  const std::int32_t dims = c.head_dim + c.head_dim_v;
  if (c.waves == 1 && dims > 128 && dims <= 192) c.waves = 4, c.block_n = 32;
}

std::int32_t page_size_of(const KvCacheProblem& p) { return static_cast<std::int32_t>(p.page_size); }

/// For as many queries as `attention` has.
device::KvCacheForwardConfig shaped_forward(const KvCacheProblem& p, const Problem& attention,
                                            const DeviceTraits& traits) {
  device::KvCacheForwardConfig c;
  Problem part = attention;
  if (p.head_dim > kMostWholeDim || p.head_dim_v > kMostWholeDim) {
    c.v_parts = static_cast<std::int32_t>((p.head_dim_v + kPartDim - 1) / kPartDim);
    // The last part's rows need not be whole chunks, whatever its padded width.
    part.unaligned |= !has_vector_rows(p);
    if (c.v_parts > 1) part.head_dim_v = kPartDim;
  }
  static_cast<device::ForwardConfig&>(c) = forward_config(part, traits);
  c.exact_dims = c.exact_dims && c.v_parts * c.head_dim_v >= p.head_dim_v && p.head_dim_v % c.head_dim_v == 0;
  c.lengths = 1;
  c.seqlens_alone = has_seqlens_alone(p);
  c.page_size = page_size_of(p);
  c.scales = scales_of(p);
  c.cache_type = is_fp8(p) ? device::kE4m3 : element_of(p.dtype);
  set_rotary(c, p);
  c.vector_tables = has_vector_tables(p);
  const std::int64_t rows = (c.selects ? 1 : attention.seqlen_q) * (c.pack_gqa ? group_of(part) : 1);
  c.direct_operands = loads_operands(c, p, traits);
  if (c.direct_operands) c.block_n = 32;
  if (is_fp8(p) && !c.direct_operands) shape_fp8(c, traits, rows, p.batch_invariant);
  const bool has_addresses = is_paged(p) || c.selects;
  if (has_addresses && (traits.family == gpu::Family::rdna || traits.family == gpu::Family::rdna4)) shape_rdna_pages(c);
  // Functions, and keys that are selected, beside Q's operand pass RDNA3's registers (24 to 72 bytes at head_dim 96 and
  // 128).
  if (traits.family == gpu::Family::rdna && (c.selects || has_functions(part)) && c.head_dim + c.head_dim_v > 128)
    c.rows_in_registers = 0;
  // Addresses of pages beside 32 rows of 256 elements pass gfx1250's scalar registers (8 bytes of scratch).
  if (has_addresses && traits.family == gpu::Family::gfx1250 && c.head_dim + c.head_dim_v > 384) c.rows_per_wave = 16;
  while (!fits<KvCacheForward>(c, traits) && (c.block_n > 32 || c.waves > 1 || c.stages > 1)) {
    (c.block_n > 32 ? c.block_n : c.waves > 1 ? c.waves : c.stages) /= 2;
  }
  c.idle_waves = is_fp8(p) && rows <= (c.waves - 1) * c.rows_per_wave;
  // One block has all queries that see a new key, in the last tiles: another's would not see it before the kernel's
  // end. Without queries there is none.
  const bool is_alone =
      rows > 0 && !c.selects && rows <= c.block_m() && c.v_parts == 1 && (c.pack_gqa || p.num_heads_q == p.num_heads_k);
  // What new keys' places, rotation and a scale for each of them are made of, beside the block's own, passes gfx1250's
  // scalar registers (80 of 106 spilled, 68 bytes of scratch).
  const bool is_crowded = traits.family == gpu::Family::gfx1250 && c.scales == device::kTokenScales && c.rotary != 0;
  c.appends =
      p.append && is_alone && !is_crowded && appends_little(p, device::append_config(c), gpu::lanes(traits.family));
  return c;
}

}  // namespace

operations::kv_cache::FeatureSet kv_cache_features() {
  using enum operations::kv_cache::Feature;
  return {attend,
          append,
          bf16,
          f16,
          fp8,
          scale_tensor,
          scale_head,
          scale_batch_head,
          scale_token,
          paged,
          packed,
          mla,
          slots,
          cache_seqlens,
          cache_batch_idx,
          cache_leftpad,
          rotary,
          rotary_interleaved,
          gqa,
          head_dim_v,
          window_left,
          window_right,
          scale_sign,
          softcap,
          alibi,
          sink,
          num_splits,
          batch_invariant,
          score_mod,
          mask_mod,
          key_indices,
          block_mask};
}

std::int64_t append_units_of(const KvCacheProblem& p) {
  return device::append_units(p.head_dim, p.mla ? 0 : p.head_dim_v, p.rotary_dim);
}

Problem attention_of(const KvCacheProblem& problem) {
  const KvCacheProblem p = operations::with_block_table(problem, operations::kv_cache::blocked_scores(problem));
  Problem a;
  a.operation = Operation::attention_forward;
  a.dtype = p.dtype;
  a.device = p.device;
  a.layout = p.layout;
  a.batch_size = p.batch_size;
  a.seqlen_q = p.seqlen_q;
  a.total_q = p.total_q;
  a.seqlen_k = operations::kv_cache::capacity_of(p);
  a.total_k = is_packed(p) ? p.batch_size * a.seqlen_k : 0;
  a.num_heads_q = p.num_heads_q;
  a.num_heads_k = p.num_heads_k;
  a.head_dim = p.head_dim;
  a.head_dim_v = p.head_dim_v;
  a.mask = p.mask;
  a.window_left = p.window_left;
  a.window_right = p.window_right;
  a.softmax_scale = p.softmax_scale;
  a.softcap = p.softcap;
  a.alibi_slopes = p.alibi_slopes;
  a.sink = p.sink;
  a.softmax_lse = p.softmax_lse;
  a.batch_invariant = p.batch_invariant;
  a.unaligned = p.unaligned;
  a.score_mod = p.score_mod;
  a.mask_mod = p.mask_mod;
  a.tables = p.tables;
  a.top_k = p.top_k;
  a.key_indices_per_head = p.key_indices_per_head;
  a.block_mask = p.block_mask;
  return a;
}

device::KvCacheForwardConfig kv_cache_forward_config(const KvCacheProblem& p, const DeviceTraits& traits) {
  const Problem attention = attention_of(p);
  device::KvCacheForwardConfig c = shaped_forward(p, attention, traits);
  // As attention's: with batch_invariant tiles of keys are those of many rows.
  if (p.batch_invariant && p.seqlen_q < kManyQueries) {
    Problem many = attention;
    many.seqlen_q = kManyQueries;
    c.block_n = shaped_forward(p, many, traits).block_n;
  }
  return c;
}

device::KvCacheCombineConfig kv_cache_combine_config(const Problem& attention) {
  device::KvCacheCombineConfig c;
  static_cast<device::CombineConfig&>(c) = combine_config(attention);
  c.lengths = 1;
  return c;
}

device::AppendKvConfig append_kv_config(const KvCacheProblem& p) {
  device::AppendKvConfig c;
  c.type = element_of(p.dtype);
  c.cache_type = is_fp8(p) ? device::kE4m3 : element_of(p.dtype);
  c.scales = scales_of(p);
  set_rotary(c, p);
  c.slot_bytes = p.slots == SlotKind::none ? 0 : p.slots == SlotKind::i64 ? 8 : 4;
  c.page_size = c.slot_bytes == 0 ? page_size_of(p) : 0;
  c.seqlens_alone = has_seqlens_alone(p);
  c.vector_rows = device::appends_chunks(has_vector_rows(p), c.rotary, has_vector_tables(p), c.scales);
  return c;
}

device::AppendKvConfig rotate_queries_config(const KvCacheProblem& p) {
  device::AppendKvConfig c;
  c.type = c.cache_type = element_of(p.dtype);
  set_rotary(c, p);
  c.vector_rows = 1;
  return c;
}

}  // namespace tilewise::backends::portable
