// What each pointer of a parameter block points to, and a call's tensors in a block.
#include "backends/portable/quantize/kernels.hpp"

#include <algorithm>

#include "core/ceil_div.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div;
using device::QuantizeRows, device::QuantizeScales, device::QuantizeShape, device::QuantizeWhole;
using gpu::Access, gpu::RegionVisitor;
using HostParams = operations::quantize::QuantizeParams;

/// Visits the pointers of one block.
template <typename Params>
class Table {
 public:
  Table(const Params& params, const RegionVisitor& visit) : p_(params), s_(params.shape), visit_(visit) {}

  void numbers(const QuantizeRows& t, std::string_view name, Access access) const {
    rows(t, name, access, s_.number_type == device::kNumberF32 ? 4 : 2, s_.columns);
  }
  void elements(const QuantizeRows& t, Access access) const {
    rows(t, "elements", access, 1, s_.e2m1 != 0 ? ceil_div(s_.columns, 2) : s_.columns);
  }
  void scales(const QuantizeScales& t, Access access) const {
    gpu::visit_pointer(
        p_, t.data,
        {.name = "scales",
         .access = access,
         .element_bytes = s_.scale_type == device::kScaleF32 ? sizeof(float) : 1,
         .outer = {{{s_.num_experts, t.expert_stride},
                    {ceil_div(s_.rows, s_.block_rows), t.row_stride},
                    {ceil_div(std::max<std::int64_t>(s_.columns, 1), s_.block_columns), t.column_stride}}},
         .rank = 3},
        visit_);
  }
  void whole(const QuantizeWhole& t, Access access) const {
    gpu::visit_pointer(p_, t.data,
                       {.name = s_.e2m1 != 0 ? "global_scale" : "scales",
                        .access = access,
                        .element_bytes = sizeof(float),
                        .outer = {{{s_.num_experts, t.expert_stride}}},
                        .rank = 1},
                       visit_);
  }
  template <typename Pointer>
  void amax(Pointer* const& member, Access access, std::int64_t parts) const {
    gpu::visit_pointer(p_, member, gpu::float_workspace("amax", access, s_.num_experts * parts), visit_);
  }

 private:
  void rows(const QuantizeRows& t, std::string_view name, Access access, std::size_t bytes, std::int64_t row) const {
    gpu::visit_pointer(p_, t.data,
                       {.name = name,
                        .access = access,
                        .element_bytes = bytes,
                        .outer = {{{s_.num_experts, t.expert_stride}, {s_.rows, t.row_stride}}},
                        .rank = 2,
                        .row = row},
                       visit_);
  }

  const Params& p_;
  const QuantizeShape& s_;
  const RegionVisitor& visit_;
};

/// Of a tensor with or without the dimension of experts.
std::int64_t expert_stride(const TensorView& view, int own_rank) { return view.rank > own_rank ? view.strides[0] : 0; }
std::int64_t stride_from_last(const TensorView& view, int axis) {
  return view.strides[static_cast<std::size_t>(view.rank - axis)];
}

QuantizeRows numbers_of(const HostParams& call) {
  const TensorView& view = call.numbers;
  return {view.data, expert_stride(view, 2), stride_from_last(view, 2)};
}
QuantizeRows elements_of(const HostParams& call) {
  const TensorView& view = call.quantized.elements;
  const auto bytes = [&](std::int64_t elements) {
    return elements * static_cast<std::int64_t>(bits_of(view.dtype)) / 8;
  };
  return {view.data, bytes(expert_stride(view, 2)), bytes(stride_from_last(view, 2))};
}
QuantizeScales scales_of(const HostParams& call) {
  const TensorView& view = call.quantized.scales;
  return {view.data, expert_stride(view, 2), stride_from_last(view, 2), stride_from_last(view, 1)};
}
QuantizeWhole whole_of(const HostParams& call) {
  const bool global = call.format.global;
  const TensorView& view = global ? call.quantized.global : call.quantized.scales;
  return {static_cast<float*>(view.data), expert_stride(view, global ? 0 : 2)};
}

}  // namespace

std::int32_t number_type_of(DType dtype) {
  return dtype == DType::bf16 ? device::kNumberBf16 : dtype == DType::f16 ? device::kNumberF16 : device::kNumberF32;
}

void for_each_pointer(const device::QuantizeExtremesParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.numbers(p.x, "x", Access::read);
  table.amax(p.amax, Access::write, p.parts);
}

void for_each_pointer(const device::QuantizeWholeParams& p, const RegionVisitor& visit) {
  const Table table(p, visit);
  table.amax(p.amax, Access::read, p.parts);
  table.whole(p.whole, Access::write);
}

void for_each_pointer(const device::QuantizeParams& p, bool quantizes, const RegionVisitor& visit) {
  const Table table(p, visit);
  const Access access = quantizes ? Access::write : Access::read;
  table.numbers(p.numbers, quantizes ? "x" : "out", quantizes ? Access::read : Access::write);
  table.elements(p.elements, access);
  table.scales(p.scales, access);
  table.whole(p.whole, Access::read);
}

void bind(const HostParams& call, device::QuantizeExtremesParams& params) { params.x = numbers_of(call); }
void bind(const HostParams& call, device::QuantizeWholeParams& params) { params.whole = whole_of(call); }
void bind(const HostParams& call, bool quantizes, device::QuantizeParams& params) {
  params.numbers = numbers_of(call);
  params.elements = elements_of(call);
  const bool one = quantizes && call.format.block_rows == BlockFormat::kAll;  // is there already
  if (!one) params.scales = scales_of(call);
  if (one || call.format.global) params.whole = whole_of(call);
}

}  // namespace tilewise::backends::portable
