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

std::string_view rows_word(const device::ForwardConfig& config) {
  if (config.selects) return ", keys selected";
  return config.pack_gqa ? ", heads packed" : "";
}

std::string selection_refusal(std::int64_t top_k) {
  constexpr std::int64_t kMost = std::int64_t{1} << 29;
  if (top_k <= kMost) return {};
  return core::concat("key_indices: top_k must be <= 2^29 (got ", top_k, ")");
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
}

}  // namespace tilewise::backends::portable
