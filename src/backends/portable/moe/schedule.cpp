// See schedule.hpp.
#include "backends/portable/moe/schedule.hpp"

#include <algorithm>
#include <string_view>

#include "backends/portable/product/schedule.hpp"
#include "backends/portable/quantize/kernels.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "formats/scales.hpp"
#include "operations/activation.hpp"
#include "operations/elements.hpp"
#include "operations/moe/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div, core::concat;
using device::ExpertDwConfig, device::ExpertRowsConfig, device::ExpertUpConfig, device::OperandConfig,
    device::ProductConfig;
using operations::moe::gate_up_rows, operations::moe::weight_dtype;

static_assert(static_cast<std::int32_t>(MoeClamp::before) == static_cast<std::int32_t>(device::ActivationClamp::before),
              "clamps have the device's numbers");
static_assert(static_cast<std::int32_t>(MoeClamp::after) == static_cast<std::int32_t>(device::ActivationClamp::after));

/// Whether rows of that length are moved by 16 bytes of 16-bit elements.
bool is_whole(std::int64_t columns) { return columns % device::kLaneColumns == 0; }

/// Rows of a tile: what experts have on average, since few rows leave wider tiles idle.
std::int64_t rows_of_expert(const MoeProblem& p) {
  return ceil_div(p.tokens * p.top_k, std::max<std::int64_t>(p.num_experts, 1));
}

device::GateLayout layout_of(MoeGate gate) {
  if (gate == MoeGate::none) return device::GateLayout::none;
  return gate == MoeGate::concatenated ? device::GateLayout::concatenated : device::GateLayout::interleaved;
}

/// Halves of a wave's columns, which are gates and ups, must be whole instructions.
void set_halves(ProductConfig& c, const DeviceTraits& traits) {
  const std::int32_t least = traits.family == gpu::Family::cdna ? 64 : gpu::has_wmma(traits.family) ? 32 : 16;
  if (c.in_f32()) {
    c.waves_n = 2;
    if (c.block_m == 32) {
      c.waves = 2;
    } else {
      c.block_n = 128;
    }
  } else if (c.wave_columns() < least && c.block_m >= 128) {
    c.waves_n /= 2;
  } else if (c.wave_columns() < least) {
    c.block_n *= 2;
    c.block_k = std::min(c.block_k, 32 * (c.in_bytes() ? 2 : 1));
  }
  c.b.halves = c.wave_columns();
}

/// Weights as both products of the forward pass read them.
void set_weights(OperandConfig& o, const MoeProblem& p, bool transposed, std::int32_t element) {
  o.type = product_type_of(weight_dtype(p));
  o.transposed = transposed;
  set_scales(o, p.w_format, element);
}
void set_weights_back(OperandConfig& o, const MoeProblem& p, bool transposed) {
  o.type = product_type_of(weight_dtype(p));
  o.transposed = !transposed;
  set_scales_back(o, p.w_format);
}

ExpertDwConfig dw_config(const MoeProblem& p, const DeviceTraits& traits, bool transposed, OperandConfig rows,
                         OperandConfig columns, std::int64_t num_rows, std::int64_t num_columns) {
  ExpertDwConfig c;
  c.element = product_element_of(p.dtype);
  for (OperandConfig* operand : {&rows, &columns}) operand->transposed = 1;
  rows.vectors = has_vectors(rows, p.unaligned && rows.gathered != 0, num_rows);
  columns.vectors = has_vectors(columns, p.unaligned && columns.gathered != 0, num_columns);
  c.a = transposed ? columns : rows;
  c.b = transposed ? rows : columns;
  set_tiles(c, std::min(num_rows, num_columns), traits);
  c.block_k = 32;
  set_stages(c, traits);
  c.out_type = number_type_of(p.dtype);
  c.vector_out = !p.unaligned && is_whole(transposed ? num_rows : num_columns);
  return c;
}

/// Rows of tokens, each times the weight of its pair.
void set_weighed(OperandConfig& o, bool weighed) {
  o.gathered = 1;
  if (!weighed) return;
  o.scale_use = device::kScaleElements;
  o.scale_type = device::kScaleF32;
  o.scale_rows = 0, o.scale_depth = 1;
}

}  // namespace

std::string refusal_of(const MoeProblem& p) {
  constexpr std::int64_t kMostPairs = std::int64_t{1} << 28, kMostColumns = std::int64_t{1} << 24, kMostExperts = 1024;
  if (p.top_k > 0 && p.tokens > kMostPairs / p.top_k)
    return concat("tokens * top_k must be <= 2^28 (got ", p.tokens, " * ", p.top_k, ")");
  if (p.tokens > kMostPairs) return concat("tokens must be <= 2^28 (got ", p.tokens, ")");
  if (p.top_k > kMostPairs) return concat("top_k must be <= 2^28 (got ", p.top_k, ")");
  if (p.num_experts > kMostExperts)
    return concat("num_experts must be <= ", kMostExperts, " (got ", p.num_experts, ")");
  for (const auto& [name, size] : {std::pair{"hidden", p.hidden}, std::pair{"intermediate", p.intermediate}})
    if (size > kMostColumns) return concat(name, " must be <= 2^24 (got ", size, ")");
  const bool back = p.pass == MoePass::moe_backward && p.w_format.block_rows == 1;
  for (const auto& [name, transposed] :
       {std::pair{"gate_up", p.gate_up_transposed}, std::pair{"down", p.down_transposed}}) {
    if (back && transposed)
      return concat(name,
                    " with scales of its rows must have contiguous rows in the backward pass (got it transposed, ",
                    "w_format=", to_string(p.w_format), ")");
  }
  return {};
}

DType row_dtype(const MoeProblem& p) { return p.x_format.defined() ? DType::bf16 : p.dtype; }

ExpertUpConfig up_config(const MoeProblem& p, const DeviceTraits& traits) {
  ExpertUpConfig c;
  c.element = product_element_of(p.dtype);
  c.a.type = product_type_of(p.dtype);
  c.a.gathered = 1;
  set_scales(c.a, p.x_format, c.element);
  set_weights(c.b, p, p.gate_up_transposed, c.element);
  c.a.vectors = has_vectors(c.a, p.unaligned, p.hidden);
  c.b.vectors =
      p.gate_up_transposed ? has_vectors(c.b, p.unaligned, p.intermediate) : has_vectors(c.b, p.unaligned, p.hidden);
  set_bytes(c, p.hidden, traits);
  set_tiles(c, rows_of_expert(p), traits);
  // Rows of two halves share their scales where both begin at such.
  if (c.scaled_depth() == 0 || p.gate != MoeGate::concatenated || p.intermediate % 32 == 0)
    set_direct(c, p.tokens * p.top_k, gate_up_rows(p), p.hidden, p.batch_invariant, traits);
  if (p.gate == MoeGate::concatenated) set_halves(c, traits);
  set_stages(c, traits);
  c.row_scale = p.x_format.defined() && is_end(p.x_format);
  c.column_scale = p.w_format.defined() && is_end(p.w_format);
  c.expert_scale = p.w_format.global;
  c.bias_type = bias_type_of(p.gate_up_bias);
  c.weighs = p.weight_on_input;
  c.gate = static_cast<std::int32_t>(layout_of(p.gate));
  c.activation = static_cast<std::int32_t>(operations::kind_of(p.activation));
  c.clamp = static_cast<std::int32_t>(p.clamp);
  c.h_type = p.h_format.defined() ? std::int32_t{device::kNumberF32} : number_type_of(row_dtype(p));
  c.vector_h = is_whole(p.intermediate);
  c.gradient = p.pass == MoePass::moe_backward;
  return c;
}

device::QuantizeConfig quantize_config(const MoeProblem& p) {
  constexpr std::int32_t kWaves = 4, kWavesTogether = 8;
  device::QuantizeConfig c;
  c.number_type = device::kNumberF32;
  c.scale_type = formats::scale_type_of(p.h_format.scale);
  c.scope = is_end(p.h_format) ? device::kScopeRow : device::kScopeBlock;
  c.lanes_a_block = is_end(p.h_format) ? 1 : static_cast<std::int32_t>(p.h_format.block_columns) / device::kLaneColumns;
  c.vector_rows = is_whole(p.intermediate);
  c.waves = c.together() ? kWavesTogether : kWaves;
  return c;
}

ExpertRowsConfig down_config(const MoeProblem& p, const DeviceTraits& traits) {
  ExpertRowsConfig c;
  c.element = product_element_of(p.dtype);
  c.a.type = product_type_of(p.h_format.defined() ? p.h_format.element : row_dtype(p));
  set_scales(c.a, p.h_format, c.element);
  set_weights(c.b, p, p.down_transposed, c.element);
  c.a.vectors = has_vectors(c.a, false, p.intermediate);
  c.b.vectors = has_vectors(c.b, p.unaligned, p.down_transposed ? p.hidden : p.intermediate);
  set_bytes(c, p.intermediate, traits);
  set_tiles(c, rows_of_expert(p), traits);
  set_direct(c, p.tokens * p.top_k, p.hidden, p.intermediate, p.batch_invariant, traits);
  set_stages(c, traits);
  c.row_scale = p.h_format.defined() && is_end(p.h_format);
  c.column_scale = p.w_format.defined() && is_end(p.w_format);
  c.expert_scale = p.w_format.global;
  c.bias_type = bias_type_of(p.down_bias);
  // What is yet to be normalised is neither weighed nor rounded.
  const bool norm = p.norm != MoeVector::none;
  c.weighs = !p.weight_on_input && !norm;
  c.out_type = norm ? std::int32_t{device::kNumberF32} : number_type_of(row_dtype(p));
  c.vector_out = is_whole(p.hidden);
  return c;
}

ExpertRowsConfig dh_config(const MoeProblem& p, const DeviceTraits& traits) {
  ExpertRowsConfig c;
  c.element = product_element_of(p.dtype);
  c.a.type = product_type_of(p.out_dtype);
  c.a.gathered = 1;
  set_weights_back(c.b, p, p.down_transposed);
  c.a.vectors = has_vectors(c.a, p.unaligned, p.hidden);
  c.b.vectors = has_vectors(c.b, p.unaligned, p.down_transposed ? p.hidden : p.intermediate);
  set_tiles(c, rows_of_expert(p), traits);
  set_stages(c, traits);
  c.expert_scale = p.w_format.global;
  c.out_type = device::kNumberF32;
  c.vector_out = is_whole(p.intermediate);
  return c;
}

ExpertRowsConfig dx_config(const MoeProblem& p, const DeviceTraits& traits) {
  ExpertRowsConfig c;
  c.element = product_element_of(p.dtype);
  c.a.type = product_type_of(p.dtype);
  set_weights_back(c.b, p, p.gate_up_transposed);
  c.a.vectors = has_vectors(c.a, false, gate_up_rows(p));
  c.b.vectors = has_vectors(c.b, p.unaligned, p.gate_up_transposed ? gate_up_rows(p) : p.hidden);
  set_tiles(c, rows_of_expert(p), traits);
  set_stages(c, traits);
  c.expert_scale = p.w_format.global;
  c.weighs = p.weight_on_input;
  c.out_type = number_type_of(p.dtype);
  c.vector_out = is_whole(p.hidden);
  return c;
}

ExpertDwConfig dgate_up_config(const MoeProblem& p, const DeviceTraits& traits) {
  OperandConfig products, x;
  products.type = x.type = product_type_of(p.dtype);
  set_weighed(x, p.weight_on_input);
  return dw_config(p, traits, p.dgate_up_transposed, products, x, gate_up_rows(p), p.hidden);
}

ExpertDwConfig ddown_config(const MoeProblem& p, const DeviceTraits& traits) {
  OperandConfig dout, h;
  dout.type = product_type_of(p.out_dtype);
  h.type = product_type_of(p.dtype);
  set_weighed(dout, !p.weight_on_input);
  return dw_config(p, traits, p.ddown_transposed, dout, h, p.hidden, p.intermediate);
}

}  // namespace tilewise::backends::portable
