// See selected_keys.hpp.
#include "backends/portable/attention/selected_keys.hpp"

#include "backends/portable/attention/schedule.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"

namespace tilewise::backends::portable {

using core::ceil_div;

Problem each_query_of(const Problem& p) {
  if (p.top_k == 0) return p;
  Problem each = p;
  const bool packed = p.layout == Layout::thd;
  each.batch_size = packed ? p.total_q : p.batch_size * p.seqlen_q;
  each.seqlen_q = 1;
  each.seqlen_k = p.top_k;
  if (packed) each.total_k = p.total_q * p.top_k;
  each.mask = Mask::none;  // the selection has it
  each.window_left = each.window_right = -1;
  return each;
}

std::int64_t row_tiles(const Problem& p, const device::ForwardConfig& config) {
  const std::int64_t block_m = config.block_m();
  if (config.selects) return p.seqlen_q * ceil_div(group_of(p), block_m);
  return ceil_div(p.seqlen_q * (config.pack_gqa ? group_of(p) : 1), block_m);
}

std::int64_t row_tiles(const Problem& p, const device::BwdDqConfig& config) {
  return config.selects ? p.seqlen_q * ceil_div(group_of(p), config.block_m()) : ceil_div(p.seqlen_q, config.block_m());
}

std::string_view rows_word(const device::ForwardConfig& config) {
  if (config.selects) return ", keys selected";
  return config.pack_gqa ? ", heads packed" : "";
}

std::string selection_refusal(std::int64_t top_k) {
  constexpr std::int64_t kMost = std::int64_t{1} << 29;
  if (top_k <= kMost) return {};
  return core::concat("key_indices: top_k must be <= 2^29 (got ", top_k, ")");
}

std::string selected_gradients_refusal(const Problem& p) {
  if (p.top_k == 0 || p.operation != Operation::attention_backward) return {};
  if (p.dbias) return "dbias must not be wanted with key_indices, of which the patches that make it know nothing";
  if (p.dtables != 0)
    return "dtables must not be wanted with key_indices, of which the patches that make them know nothing";
  const auto word = [](bool deterministic) { return deterministic ? "deterministic" : "batch_invariant"; };
  if ((p.dk || p.dv) && (p.deterministic || p.batch_invariant))
    return core::concat("dk and dv of key_indices must not be ", word(p.deterministic),
                        ", since the queries that select a key add to its sums in any order");
  return {};
}

void shape_selected(device::ForwardConfig& c, gpu::Family family) {
  const bool is_rdna = family == gpu::Family::rdna || family == gpu::Family::rdna4;
  // The keys of a tile's columns take registers, and with dropout each draws for itself: 32 rows with every option
  // spill 132 bytes at head_dim 64 on sm_90a and 68 on gfx1250, and without any 44 at 128, as on RDNA4 (32).
  const bool is_wide = c.wider_dim() > 64, is_featured = c.dropout || !c.plain_scale;
  const bool crowded = (is_rdna && is_wide) || (family == gpu::Family::gfx1250 && is_featured) ||
                       (family == gpu::Family::sm80 && (is_wide || is_featured));
  if (c.rows_per_wave > 16 && crowded) c.rows_per_wave = 16, c.waves *= 2;
  // A lone wave of RDNA, which copies alone, spills 120 bytes.
  if (is_rdna && c.waves == 1 && c.dropout) c.waves = 4, c.block_n = 32;
  // Of 32 keys that come element by element beside a bias RDNA3's waves spill 116 bytes at head_dim 64.
  if (family == gpu::Family::rdna && !c.vector_rows && is_featured) c.block_n = 16;
}

void shape_selected(device::BwdDqConfig& c, gpu::Family family, std::int64_t group) {
  c.ranged = 0;  // the selection has the mask
  const bool is_rdna = family == gpu::Family::rdna || family == gpu::Family::rdna4;
  // Of RDNA gathered tiles of 32 keys on their way spill 848 bytes at head_dim 128, of 16 none.
  if (is_rdna) c.block_n = 16;
  // 32 rows of 64 keys with every option spill 352 to 504 bytes at head_dim 64 on NVIDIA's.
  if (family == gpu::Family::sm80 && c.rows_per_wave > 16 && (c.dropout || !c.plain_scale)) {
    c.rows_per_wave = 16, c.waves *= 2, c.block_n = 32;
  }
  // Keys of 256 that come element by element pass the registers of a wave of CDNA that copies alone.
  const std::int32_t fewest = family == gpu::Family::cdna && !c.vector_rows && c.wider_dim() > 192 ? 4 : 1;
  while (c.waves > fewest && c.block_m() / 2 >= group) c.waves /= 2;
}

void shape_selected(device::BwdDkdvConfig& c, gpu::Family family, std::int64_t group) {
  c.ranged = 0;
  // Of a product that sums over the tile.
  const std::int32_t least = family == gpu::Family::cdna || family == gpu::Family::gfx1250 ? 32 : 16;
  while (c.block_m > least && c.block_m / 2 >= group) c.block_m /= 2;
}

}  // namespace tilewise::backends::portable
