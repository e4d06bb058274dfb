// What each pointer of an expert layer's kernels points to, a call's tensors in their blocks, and their shared memory.
#include "backends/cuda/hopper/moe_kernels.hpp"
#include "backends/portable/product/schedule.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::hopper {
namespace {

using device::ExpertBias, device::ExpertScales, device::MoeShape, device::PairTensor, device::RowTensor,
    device::SortedPairs;
using gpu::Access, gpu::Region, gpu::RegionVisitor, gpu::visit_pointer;
using operations::ExpertMatrices, operations::ExpertVectors, operations::Matrix, operations::moe::MoeParams;

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
template <typename Params>
void visit_row_part(const Params& p, const RowTensor& t, std::string_view name, std::int64_t columns, bool one_writer,
                    const RegionVisitor& visit) {
  Region region{.name = name, .workspace = true, .access = Access::write, .element_bytes = kElementBytes};
  region.row = std::int64_t{p.shape.pairs()} * columns;
  region.one_writer = one_writer;
  visit_pointer(p, t.data, region, visit);
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
void visit_scales(const device::MoeDecodeParams& p, const ExpertScales& t, std::string_view name,
                  std::string_view global, const RegionVisitor& visit) {
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

RowTensor rows_of(const Matrix& m) { return {m.data, m.row_stride}; }
PairTensor ids_of(const Matrix& m) {
  return {m.data, m.row_stride, m.column_stride, static_cast<std::int32_t>(size_of(m.dtype)), 0};
}
PairTensor weights_of(const Matrix& m) {
  return {m.data, m.row_stride, m.column_stride, portable::bias_type_of(m.dtype), 0};
}
ExpertBias bias_of(const ExpertVectors& v) {
  return {v.data, v.expert_stride, 0, v.stride, portable::bias_type_of(v.dtype), 0};
}
ExpertBias gate_up_bias_of(const MoeParams& call) {
  ExpertBias bias = bias_of(call.gate_up_bias);
  if (call.gate_layout == device::GateLayout::concatenated) bias.gate_stride = call.down.columns * bias.stride;
  if (call.gate_layout == device::GateLayout::interleaved) bias.gate_stride = bias.stride, bias.stride *= 2;
  return bias;
}

/// Whether scales can be loaded 16 bytes at a time, those around a row's included.
bool lie_in_runs(const ExpertScales& s, std::int64_t experts) {
  constexpr std::int64_t kRun = 16;
  const std::int64_t row = s.columns * s.scale_bytes, expert = row * s.row_blocks;
  const bool gaps = (s.columns > 1 && s.column_stride != s.scale_bytes) || (s.row_blocks > 1 && s.row_stride != row) ||
                    (experts > 1 && s.expert_stride != expert);
  return !gaps && reinterpret_cast<std::uintptr_t>(s.data) % kRun == 0 && experts * expert % kRun == 0;
}
void bind_scales(const ExpertMatrices& w, device::GateLayout layout, ExpertScales& to) {
  const operations::BlockScales& s = w.scales;
  if (s.data == nullptr) return;
  const bool interleaved = layout == device::GateLayout::interleaved;
  const auto bytes = static_cast<std::int64_t>(size_of(s.dtype));
  to.data = s.data;
  to.global = static_cast<const float*>(w.expert_scales.data), to.global_stride = w.expert_scales.stride;
  to.expert_stride = s.expert_stride * bytes, to.row_stride = s.row_stride * bytes;
  to.column_stride = s.column_stride * bytes;
  to.gate_rows = interleaved ? 1 : static_cast<std::int32_t>(w.rows / 2), to.value_rows = interleaved ? 2 : 1;
  to.row_blocks = static_cast<std::int32_t>(core::ceil_div(w.rows, s.block_rows));
  to.scale_bytes = static_cast<std::int32_t>(bytes);
  to.in_runs = lie_in_runs(to, w.num_experts);
}

template <typename Params>
void bind_layer(const MoeParams& call, Params& params) {
  params.gate_up_bias = gate_up_bias_of(call);
  params.down_bias = bias_of(call.down_bias);
  params.out = rows_of(call.out);
}

constexpr std::int32_t kPattern = 1024;  // that swizzles repeat in, which the structs are aligned to
constexpr std::int32_t kRowBytes = 128, kBarrier = 8;
std::int32_t ring(std::int32_t stages) { return 2 * kBarrier * stages; }
std::uint32_t whole_patterns(std::int32_t bytes) {
  return static_cast<std::uint32_t>((bytes + kPattern - 1) / kPattern * kPattern);
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
  visit_part(p, p.row_weights, "row_weights", Access::write, p.shape.pairs(), true, visit);
}

void for_each_pointer(const device::MoeLayerParams& p, const RegionVisitor& visit) {
  visit_part(p, p.row_weights, "row_weights", Access::read, p.shape.pairs(), true, visit);
  visit_layer(p, visit);
}

void for_each_pointer(const device::MoeDecodeParams& p, const RegionVisitor& visit) {
  visit_pairs(p, p.topk_ids, "topk_ids", static_cast<std::size_t>(p.topk_ids.type), visit);
  visit_pairs(p, p.topk_weights, "topk_weights", bytes_of(p.topk_weights.type), visit);
  visit_rows(p, p.x, "x", Access::read, visit);
  visit_scales(p, p.gate_up_scales, "gate_up_scale", "gate_up_global_scale", visit);
  visit_scales(p, p.down_scales, "down_scale", "down_global_scale", visit);
  visit_layer(p, visit);
}

void bind(const MoeParams& call, device::MoeSortParams& params) { params.topk_ids = ids_of(call.topk_ids); }

void bind(const MoeParams& call, device::MoeGatherParams& params) {
  params.topk_weights = weights_of(call.topk_weights);
  params.x = rows_of(call.x);
}

void bind(const MoeParams& call, device::MoeLayerParams& params) { bind_layer(call, params); }

void bind(const MoeParams& call, device::MoeDecodeParams& params) {
  params.topk_ids = ids_of(call.topk_ids);
  params.topk_weights = weights_of(call.topk_weights);
  params.x = rows_of(call.x);
  bind_scales(call.gate_up, call.gate_layout, params.gate_up_scales);
  bind_scales(call.down, device::GateLayout::none, params.down_scales);
  bind_layer(call, params);
}

std::uint32_t MoeSort::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kId = 4, kTotal = 16;  // bytes of a pair's expert, and of a warp's total
  return static_cast<std::uint32_t>(kId * Config::kChunk + kTotal * c.warps);
}

std::uint32_t MoeLayer::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kWeightRows = 128, kConsumers = 2, kFloat = 4;
  const std::int32_t tiles = c.stages * (kWeightRows + c.block_n) * kRowBytes;
  const std::int32_t stored = kConsumers * c.block_n / 2 * kRowBytes;
  const std::int32_t weights = kConsumers * c.block_n * kFloat;
  return whole_patterns(tiles + stored + weights + ring(c.stages) + kBarrier + kConsumers * ring(1));
}

std::uint32_t MoeDecode::shared_bytes(const Config& c, gpu::Family) {
  constexpr std::int32_t kTold = 4;     // tiles that consumers may be ahead of the warp that tells of them
  constexpr std::int32_t kElement = 2;  // bytes
  const std::int32_t weights = c.block_m() * c.weight_columns() * (c.quantised() ? 1 : kElement);
  const std::int32_t tiles = c.stages * (weights + c.block_n * c.depth * kElement);
  const std::int32_t scales = c.quantised() ? c.all_scale_bytes() + ring(c.scale_windows) : 0;
  return whole_patterns(tiles + ring(c.stages) + kBarrier + ring(kTold) + scales);
}

}  // namespace tilewise::backends::hopper
