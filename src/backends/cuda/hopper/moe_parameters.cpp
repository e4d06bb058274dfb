// What each pointer of an expert layer's kernels points to.
#include "backends/cuda/hopper/moe_kernels.hpp"
#include "backends/portable/product/operand.hpp"

namespace tilewise::backends::hopper {
namespace {

using device::ExpertBias, device::ExpertScales, device::MoeShape, device::PairTensor, device::RowTensor,
    device::SortedPairs;
using gpu::Access, gpu::Region, gpu::RegionVisitor, gpu::visit_pointer;

constexpr std::size_t kElementBytes = 2;

std::size_t bytes_of(std::int32_t number_type) { return number_type == device::kBiasF32 ? 4 : 2; }

/// A part of the workspace. What lanes of other blocks read in the same launch, after they were told that it is there,
/// has no one writer as the table of pointers knows it.
template <typename Params, typename Element>
void visit_part(const Params& p, Element* const& member, std::string_view name, Access access, std::int64_t elements,
                bool one_writer, const RegionVisitor& visit) {
  Region region{.name = name, .workspace = true, .access = access, .element_bytes = sizeof(Element)};
  region.row = elements;
  region.one_writer = one_writer;
  visit_pointer(p, member, region, visit);
}
/// The same of elements of rows, which lanes may read before they write.
template <typename Params>
void visit_elements(const Params& p, void* const& member, std::string_view name, std::int64_t elements,
                    const RegionVisitor& visit, bool one_writer = true, Access access = Access::write) {
  Region region{.name = name, .workspace = true, .access = access, .element_bytes = kElementBytes};
  region.row = elements;
  region.one_writer = one_writer;
  visit_pointer(p, member, region, visit);
}
template <typename Params>
void visit_row_part(const Params& p, const RowTensor& t, std::string_view name, std::int64_t columns, bool one_writer,
                    const RegionVisitor& visit, Access access = Access::write) {
  visit_elements(p, t.data, name, std::int64_t{p.shape.pairs()} * columns, visit, one_writer, access);
}

template <typename Params>
void visit_sorted(const Params& p, Access access, const RegionVisitor& visit) {
  const MoeShape& s = p.shape;
  visit_part(p, p.sorted.offsets, "expert_offsets", access, std::int64_t{s.num_experts} + 1, true, visit);
  visit_part(p, p.sorted.pairs, "sorted_pairs", access, s.pairs(), true, visit);
  visit_part(p, p.sorted.rows, "pair_rows", access, s.pairs(), true, visit);
}
template <typename Params>
void visit_counters(const Params& p, const RegionVisitor& visit) {
  // There are no more groups than pairs.
  visit_part(p, p.counters, "group_counters", Access::add, device::GridCounters<void>::words(p.shape.pairs()), false,
             visit);
}

template <typename Params>
void visit_pairs(const Params& p, const PairTensor& t, std::string_view name, std::size_t element_bytes,
                 const RegionVisitor& visit) {
  visit_pointer(p, t.data,
                {.name = name,
                 .access = Access::read,
                 .element_bytes = element_bytes,
                 .outer = {{{p.shape.tokens, t.token_stride}, {p.shape.top_k, t.slot_stride}}},
                 .rank = 2},
                visit);
}
template <typename Params>
void visit_rows(const Params& p, const RowTensor& t, std::string_view name, Access access, const RegionVisitor& visit) {
  visit_pointer(p, t.data,
                {.name = name,
                 .access = access,
                 .element_bytes = kElementBytes,
                 .outer = {{{p.shape.tokens, t.row_stride}}},
                 .rank = 1,
                 .row = p.shape.hidden},
                visit);
}
/// Without a gate gate_stride is 0.
template <typename Params>
void visit_bias(const Params& p, const ExpertBias& t, std::string_view name, std::int64_t size,
                const RegionVisitor& visit) {
  visit_pointer(p, t.data,
                {.name = name,
                 .access = Access::read,
                 .element_bytes = bytes_of(t.type),
                 .outer = {{{p.shape.num_experts, t.expert_stride}, {2, t.gate_stride}, {size, t.stride}}},
                 .rank = 3},
                visit);
}
/// Strides of scales are in bytes.
template <typename Params>
void visit_scales(const Params& p, const ExpertScales& t, std::string_view name, std::string_view global,
                  const RegionVisitor& visit) {
  Region scales{.name = name, .access = Access::read};
  scales.outer = {{{p.shape.num_experts, t.expert_stride}, {t.row_blocks, t.row_stride}, {t.columns, t.column_stride}}};
  scales.rank = 3;
  scales.row = t.scale_bytes;
  if (t.in_runs != 0) {
    scales.row = static_cast<std::int64_t>(scales.bytes());
    scales.rank = 0;
  }
  visit_pointer(p, t.data, scales, visit);
  visit_pointer(p, t.global,
                {.name = global,
                 .access = Access::read,
                 .element_bytes = sizeof(float),
                 .outer = {{{p.shape.num_experts, t.global_stride}}},
                 .rank = 1},
                visit);
}
template <typename Params>
void visit_row_weights(const Params& p, Access access, const RegionVisitor& visit) {
  visit_part(p, p.row_weights, "row_weights", access, p.shape.pairs(), true, visit);
}
void visit_value_scales(const device::MoeScaledParams& p, const device::RowScales& t, Access access,
                        const RegionVisitor& visit) {
  visit_part(p, t.data, kMoeHScales, access, std::int64_t{t.rows} * t.columns, true, visit);
}
/// What both kernels of whole layers have.
template <typename Params>
void visit_layer(const Params& p, const RegionVisitor& visit) {
  visit_sorted(p, Access::read, visit);
  visit_bias(p, p.gate_up_bias, "gate_up_bias", p.shape.intermediate, visit);
  visit_bias(p, p.down_bias, "down_bias", p.shape.hidden, visit);
  visit_row_part(p, p.h, kMoeH, p.shape.intermediate, false, visit);
  visit_row_part(p, p.parts, kMoeParts, p.shape.hidden, false, visit);
  visit_rows(p, p.out, "out", Access::write, visit);
  visit_counters(p, visit);
}

/// What a product of experts' rows has in the workspace.
template <typename Params>
void visit_product(const Params& p, const device::GemmParams& gemm, std::string_view out, const RegionVisitor& visit) {
  visit_part(p, gemm.offsets, "expert_offsets", Access::read, std::int64_t{gemm.num_experts} + 1, true, visit);
  visit_elements(p, gemm.out, out, std::int64_t{gemm.m} * gemm.n, visit);
  visit_pointer(p, gemm.bias.data, {.name = "bias", .row = 0}, visit);  // there is none
}

/// Pairs' sums of the first product, of a call that saves them.
template <typename Params>
void visit_saved(const Params& p, const RowTensor& t, std::int64_t columns, Access access, const RegionVisitor& visit) {
  visit_pointer(p, t.data,
                {.name = "gate_up_out",
                 .access = access,
                 .element_bytes = kElementBytes,
                 .outer = {{{columns > 0 ? p.shape.pairs() : 0, t.row_stride}}},
                 .rank = 1,
                 .row = columns},
                visit);
}

}  // namespace

void for_each_pointer(const device::MoeSortParams& p, const RegionVisitor& visit) {
  visit_pairs(p, p.topk_ids, "topk_ids", static_cast<std::size_t>(p.topk_ids.type), visit);
  visit_sorted(p, Access::write, visit);
  // One launch writes them and the next one reads them.
  const std::int64_t counts = p.chunks > 1 ? std::int64_t{p.chunks} * p.most_experts : 0;
  visit_part(p, p.counts, "chunk_counts", Access::write, counts, true, visit);
}

void for_each_pointer(const device::MoeGatherParams& p, const RegionVisitor& visit) {
  visit_pairs(p, p.topk_weights, "topk_weights", bytes_of(p.topk_weights.type), visit);
  visit_sorted(p, Access::read, visit);
  visit_rows(p, p.x, "x", Access::read, visit);
  visit_row_part(p, p.rows, kMoeGathered, p.shape.hidden, true, visit);
  visit_row_weights(p, Access::write, visit);
  visit_saved(p, p.cleared, p.cleared_columns, Access::write, visit);
}

void for_each_pointer(const device::MoeLayerParams& p, const RegionVisitor& visit) {
  visit_row_weights(p, Access::read, visit);
  visit_layer(p, visit);
  visit_saved(p, p.sums, p.saved_columns, Access::write, visit);
}

void for_each_pointer(const device::MoeScaledParams& p, const RegionVisitor& visit) {
  const MoeShape& s = p.shape;
  visit_sorted(p, Access::read, visit);
  visit_row_weights(p, Access::read, visit);
  if (is_first(p)) {
    const device::RowScales& x = p.row_scales;
    visit_pointer(p, x.data,
                  {.name = "x_scale",
                   .access = Access::read,
                   .element_bytes = sizeof(float),
                   .outer = {{{x.rows, x.row_stride}, {x.columns, x.column_stride}}},
                   .rank = 2},
                  visit);
    visit_value_scales(p, p.value_scales, Access::write, visit);
    visit_scales(p, p.weight_scales, "gate_up_scale", "gate_up_global_scale", visit);
    visit_bias(p, p.bias, "gate_up_bias", s.intermediate, visit);
    visit_row_part(p, p.out, kMoeH, s.intermediate / 2, true, visit);
  } else {
    visit_value_scales(p, p.row_scales, Access::read, visit);
    visit_scales(p, p.weight_scales, "down_scale", "down_global_scale", visit);
    visit_bias(p, p.bias, "down_bias", s.hidden, visit);
    visit_row_part(p, p.out, kMoeParts, s.hidden, true, visit);
  }
}

void for_each_pointer(const device::MoeCombineParams& p, const RegionVisitor& visit) {
  visit_part(p, p.sorted.rows, "pair_rows", Access::read, p.shape.pairs(), true, visit);
  visit_row_part(p, p.parts, kMoeParts, p.shape.hidden, true, visit, Access::read);
  visit_rows(p, p.out, "out", Access::write, visit);
}

void for_each_pointer(const device::MoeDecodeParams& p, const RegionVisitor& visit) {
  visit_pairs(p, p.topk_ids, "topk_ids", static_cast<std::size_t>(p.topk_ids.type), visit);
  visit_pairs(p, p.topk_weights, "topk_weights", bytes_of(p.topk_weights.type), visit);
  visit_rows(p, p.x, "x", Access::read, visit);
  visit_scales(p, p.gate_up_scales, "gate_up_scale", "gate_up_global_scale", visit);
  visit_scales(p, p.down_scales, "down_scale", "down_global_scale", visit);
  visit_layer(p, visit);
}

void for_each_pointer_of_dout(const device::MoeGatherParams& p, const RegionVisitor& visit) {
  visit_pairs(p, p.topk_weights, "topk_weights", bytes_of(p.topk_weights.type), visit);
  visit_sorted(p, Access::read, visit);
  visit_rows(p, p.x, "dout", Access::read, visit);
  visit_row_part(p, p.rows, kMoeGatheredDout, p.shape.hidden, true, visit);
  visit_part(p, p.row_weights, "row_weights", Access::write, p.shape.pairs(), true, visit);
  visit_saved(p, p.cleared, p.cleared_columns, Access::write, visit);
}

void for_each_pointer_of_product(const device::GroupedGemmParams& p, std::string_view out, const RegionVisitor& visit) {
  visit_product(p, p.gemm, out, visit);
}

void for_each_pointer(const device::MoeSlopesParams& p, const RegionVisitor& visit) {
  const std::int64_t pairs = p.gemm.m;
  visit_product(p, p.gemm, kMoeProducts, visit);
  visit_part(p, p.row_weights, "row_weights", Access::read, pairs, true, visit);
  visit_elements(p, p.h.data, kMoeH, pairs * p.intermediate, visit);
  visit_part(p, p.terms, "weight_terms", Access::write, pairs * p.num_terms, true, visit);
  visit_pointer(p, p.gate_up_bias.data,
                {.name = "gate_up_bias",
                 .access = Access::read,
                 .element_bytes = bytes_of(p.gate_up_bias.type),
                 .outer = {{{p.gemm.num_experts, p.gate_up_bias.expert_stride},
                            {2, p.gate_up_bias.gate_stride},
                            {p.intermediate, p.gate_up_bias.stride}}},
                 .rank = 3},
                visit);
}

void for_each_pointer(const device::MoeSavedSlopesParams& p, const RegionVisitor& visit) {
  const MoeShape& s = p.shape;
  visit_part(p, p.offsets, "expert_offsets", Access::read, std::int64_t{s.num_experts} + 1, true, visit);
  visit_row_weights(p, Access::read, visit);
  visit_saved(p, p.sums, p.products.row_stride, Access::read, visit);
  visit_row_part(p, p.h, kMoeH, s.intermediate, true, visit);
  visit_row_part(p, p.products, kMoeProducts, p.products.row_stride, true, visit);
  visit_part(p, p.terms, "weight_terms", Access::write, s.pairs(), true, visit);
  visit_bias(p, p.gate_up_bias, "gate_up_bias", s.intermediate, visit);
}

void for_each_pointer(const device::MoeDweightsParams& p, const RegionVisitor& visit) {
  visit_pairs(p, p.topk_ids, "topk_ids", static_cast<std::size_t>(p.topk_ids.type), visit);
  visit_sorted(p, Access::read, visit);
  visit_part(p, p.terms, "weight_terms", Access::read, std::int64_t{p.shape.pairs()} * p.num_terms, true, visit);
  visit_row_part(p, p.dout, kMoeGatheredDout, p.shape.hidden, true, visit);
  visit_bias(p, p.down_bias, "down_bias", p.shape.hidden, visit);
  visit_pointer(p, p.out,
                {.name = "dtopk_weights",
                 .access = Access::write,
                 .element_bytes = bytes_of(p.out_type),
                 .outer = {{{p.shape.tokens, p.token_stride}, {p.shape.top_k, p.slot_stride}}},
                 .rank = 2},
                visit);
}

void for_each_pointer(const device::MoeDwParams& p, const RegionVisitor& visit) {
  visit_part(p, p.offsets, "expert_offsets", Access::read, std::int64_t{p.num_experts} + 1, true, visit);
  visit_pointer(p, p.out,
                {.name = p.of_down != 0 ? "ddown" : "dgate_up",
                 .access = Access::write,
                 .element_bytes = kElementBytes,
                 .outer = {{{p.num_experts, p.expert_stride}, {p.rows, p.row_stride}}},
                 .rank = 2,
                 .row = p.columns},
                visit);
}

void for_each_pointer(const device::ExpertDbiasParams& p, const RegionVisitor& visit) {
  const bool of_down = p.out_role == device::kExpertDdownBias;
  const std::int64_t pairs = p.shape.pairs();
  visit_part(p, p.routed.offsets, "expert_offsets", Access::read, std::int64_t{p.shape.num_experts} + 1, true, visit);
  visit_part(p, p.routed.tokens, "row_tokens", Access::read, 0, true, visit);
  visit_part(p, p.routed.weights, "row_weights", Access::read, pairs, true, visit);
  visit_part(p, p.routed.rows, "pair_rows", Access::read, 0, true, visit);
  Region from{.name = of_down ? kMoeGatheredDout : kMoeProducts, .workspace = true, .element_bytes = kElementBytes};
  from.row = pairs * p.columns;
  visit_pointer(p, p.from, from, visit);
  visit_pointer(p, p.out,
                {.name = of_down ? "ddown_bias" : "dgate_up_bias",
                 .access = Access::write,
                 .element_bytes = portable::bytes_of_number(p.out_type),
                 .outer = {{{p.shape.num_experts, p.expert_stride}, {p.columns, p.stride}}},
                 .rank = 2},
                visit);
}

void for_each_pointer_of_dx(const device::MoeCombineParams& p, const RegionVisitor& visit) {
  visit_sorted(p, Access::read, visit);
  visit_row_part(p, p.parts, kMoeParts, p.shape.hidden, true, visit);
  visit_rows(p, p.out, "dx", Access::write, visit);
}

}  // namespace tilewise::backends::hopper
