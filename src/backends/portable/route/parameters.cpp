// What each pointer of a parameter block points to, and a call's tensors in a block.
#include "backends/portable/route/kernels.hpp"

#include "operations/matrices.hpp"

namespace tilewise::backends::portable {
namespace {

using device::RouteTensor;
using gpu::Access, gpu::RegionVisitor;
using operations::Matrix, operations::Vector, operations::route::RouteParams;

std::size_t bytes_of(std::int32_t type) {
  return type == device::kRouteI64 ? 8 : type == device::kRouteF32 || type == device::kRouteI32 ? 4 : 2;
}

template <typename Params>
void visit_tensor(const Params& p, const RouteTensor& t, std::string_view name, Access access, std::int64_t rows,
                  std::int64_t columns, const RegionVisitor& visit) {
  gpu::visit_pointer(p, t.data,
                     {.name = name,
                      .access = access,
                      .element_bytes = bytes_of(t.type),
                      .outer = {{{rows, t.row_stride}, {columns, t.column_stride}}},
                      .rank = 2},
                     visit);
}

RouteTensor tensor(const Matrix& m) { return {m.data, m.row_stride, m.column_stride, route_type_of(m.dtype), 0}; }
RouteTensor tensor(const Vector& v) { return {v.data, 0, v.stride, route_type_of(v.dtype), 0}; }

}  // namespace

std::int32_t route_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return device::kRouteF32;
    case DType::bf16:
      return device::kRouteBf16;
    case DType::f16:
      return device::kRouteF16;
    case DType::i32:
      return device::kRouteI32;
    case DType::i64:
      return device::kRouteI64;
    default:
      return device::kRouteNone;
  }
}

void for_each_pointer(const device::RouteForwardParams& p, const RegionVisitor& visit) {
  const device::RouteShape& s = p.shape;
  visit_tensor(p, p.logits, "logits", Access::read, s.tokens, s.num_experts, visit);
  visit_tensor(p, p.bias, "bias", Access::read, 1, s.num_experts, visit);
  visit_tensor(p, p.scale_of_expert, "scale_of_expert", Access::read, 1, s.num_experts, visit);
  visit_tensor(p, p.topk_ids, "topk_ids", Access::write, s.tokens, s.top_k, visit);
  visit_tensor(p, p.topk_weights, "topk_weights", Access::write, s.tokens, s.top_k, visit);
}

void for_each_pointer(const device::RouteBwdParams& p, const RegionVisitor& visit) {
  const device::RouteShape& s = p.shape;
  visit_tensor(p, p.logits, "logits", Access::read, s.tokens, s.num_experts, visit);
  visit_tensor(p, p.scale_of_expert, "scale_of_expert", Access::read, 1, s.num_experts, visit);
  visit_tensor(p, p.topk_ids, "topk_ids", Access::read, s.tokens, s.top_k, visit);
  visit_tensor(p, p.dtopk_weights, "dtopk_weights", Access::read, s.tokens, s.top_k, visit);
  visit_tensor(p, p.dlogits, "dlogits", Access::write, s.tokens, s.num_experts, visit);
}

void bind(const RouteParams& call, device::RouteForwardParams& params) {
  params.logits = tensor(call.logits);
  params.bias = tensor(call.bias);
  params.scale_of_expert = tensor(call.scale_of_expert);
  params.topk_ids = tensor(call.topk_ids);
  params.topk_weights = tensor(call.topk_weights);
}

void bind(const RouteParams& call, device::RouteBwdParams& params) {
  params.logits = tensor(call.logits);
  params.scale_of_expert = tensor(call.scale_of_expert);
  params.topk_ids = tensor(call.topk_ids);
  params.dtopk_weights = tensor(call.dtopk_weights);
  params.dlogits = tensor(call.dlogits);
}

}  // namespace tilewise::backends::portable
