// What each pointer of a linear layer's kernels points to, a call's tensors in their blocks, maps and shared memory.
#include <algorithm>
#include <cstddef>
#include <initializer_list>

#include "backends/cuda/hopper/block_bytes.hpp"
#include "backends/cuda/hopper/linear_kernels.hpp"
#include "backends/cuda/hopper/tensor_maps.hpp"
#include "backends/portable/product/schedule.hpp"
#include "core/ceil_div.hpp"

namespace tilewise::backends::hopper {
namespace {

using device::GemmParams, device::GemmPrepareParams, device::GemmScales, device::GroupedGemmParams,
    device::ScaledGemmParams;
using gpu::Access, gpu::Region, gpu::RegionVisitor, gpu::visit_pointer;
using operations::BlockScales, operations::linear::LinearParams;

constexpr std::size_t kOutBytes = 2;

/// Where there are groups.
Region offsets_region(std::int32_t groups, Access access) {
  Region region{.name = kRowOffsets, .workspace = true, .access = access, .element_bytes = sizeof(std::int32_t)};
  region.row = groups > 0 ? std::int64_t{groups} + 1 : 0;
  return region;
}
void visit_scales(const GemmPrepareParams& p, const GemmScales& s, std::string_view name, std::int64_t experts,
                  std::int64_t rows, const RegionVisitor& visit) {
  visit_pointer(p, s.data,
                {.name = name,
                 .access = Access::read,
                 .element_bytes = s.e8m0 ? sizeof(std::uint8_t) : sizeof(float),
                 .outer = {{{experts, s.expert_stride}, {rows, s.row_stride}, {p.k_blocks, s.column_stride}}},
                 .rank = 3},
                visit);
}
template <typename Params>
void visit_product(const Params& p, const GemmParams& gemm, const RegionVisitor& visit) {
  // Members of a part of the block: where they stand counts from the block's beginning.
  const auto visit_member = [&](auto* const& member, const Region& region) { visit_pointer(p, member, region, visit); };
  visit_member(gemm.offsets, offsets_region(gemm.num_experts, Access::read));
  visit_member(gemm.out, {.name = "out",
                          .access = Access::write,
                          .element_bytes = kOutBytes,
                          .outer = {{{gemm.m, gemm.out_stride}}},
                          .rank = 1,
                          .row = gemm.n});
  visit_member(gemm.bias.data,
               {.name = "bias",
                .access = Access::read,
                .element_bytes = gemm.bias.type == device::kBiasF32 ? sizeof(float) : 2,
                .outer = {{{std::max(gemm.num_experts, 1), gemm.bias.expert_stride}, {gemm.n, gemm.bias.stride}}},
                .rank = 2});
}

GemmScales scales_of(const BlockScales& s) {
  return {s.data, s.expert_stride, s.row_stride, s.column_stride, s.dtype == DType::fp8_e8m0 ? 1 : 0, 0};
}

const LinearParams& linear_call_of(const void* call) { return *static_cast<const LinearParams*>(call); }

void bind_matrix(const operations::Matrix& m, gpu::TensorMap& map) {
  map.address = m.data;
  map.dims = {u(m.columns), u(m.rows)};
  map.strides = {stride_bytes(m.rows, m.row_stride, map.dtype)};
}
void bind_x(const void* call, gpu::TensorMap& map) { bind_matrix(linear_call_of(call).x, map); }
void bind_out(const void* call, gpu::TensorMap& map) { bind_matrix(linear_call_of(call).out, map); }
void bind_w(const void* call, gpu::TensorMap& map) {
  const operations::ExpertMatrices& w = linear_call_of(call).w;
  map.address = w.data;
  const bool by_depth = w.column_stride == 1;
  map.dims = {u(by_depth ? w.columns : w.rows), u(by_depth ? w.rows : w.columns), u(w.num_experts)};
  map.strides = {stride_bytes(by_depth ? w.rows : w.columns, by_depth ? w.row_stride : w.column_stride, map.dtype),
                 stride_bytes(w.num_experts, w.expert_stride, map.dtype)};
}
/// As GemmPrepare leaves them: [k_blocks, m], padded to 16 bytes.
void bind_x_scales(const void* call, gpu::TensorMap& map) {
  const LinearParams& p = linear_call_of(call);
  const std::int64_t blocks = core::ceil_div(p.x.columns, std::int64_t{kScaleBlock});
  map.dims = {u(p.x.rows), u(blocks)};
  map.strides = {u(padded_rows(p.x.rows)) * sizeof(float)};
}

gpu::TensorMapParameter map_of(std::size_t offset, DType dtype, std::initializer_list<std::int32_t> box,
                               void (*bind)(const void*, gpu::TensorMap&)) {
  gpu::TensorMap map{.dtype = dtype, .rank = static_cast<int>(box.size())};
  std::ranges::transform(box, map.box.begin(), [](std::int32_t x) { return static_cast<std::uint32_t>(x); });
  return {static_cast<std::uint32_t>(offset), map, bind};
}

constexpr std::int32_t kStoredRows = 16, kScaleRun = 16;
/// Stages, what consumers' warps store, and barriers.
std::int32_t product_bytes(const device::GemmConfig& c) {
  const std::int32_t tiles = c.stages * (c.block_m + c.block_n) * kRowBytes;
  return tiles + 4 * c.kConsumers * c.store_buffers * kStoredRows * kRowBytes;
}

}  // namespace

void for_each_pointer(const GemmPrepareParams& p, const RegionVisitor& visit) {
  const bool counted = p.groups.counted != 0;
  visit_pointer(p, p.groups.data,
                {.name = counted ? "counts" : "offsets",
                 .access = Access::read,
                 .element_bytes = static_cast<std::size_t>(std::max(p.groups.bytes, 1)),
                 .outer = {{{std::int64_t{p.num_experts} + (counted ? 0 : 1), p.groups.stride}}},
                 .rank = 1},
                visit);
  visit_scales(p, p.x_scale, "x_scale", 1, p.m, visit);
  visit_scales(p, p.w_scale, "w_scale", p.num_experts, p.n_blocks, visit);
  visit_pointer(p, p.offsets, offsets_region(p.groups.bytes > 0 ? p.num_experts : 0, Access::write), visit);
  visit_pointer(p, p.x_scales, gpu::float_workspace(kXScales, Access::write, std::int64_t{p.k_blocks} * p.m_padded),
                visit);
  visit_pointer(p, p.w_scales,
                gpu::float_workspace(kWScales, Access::write, p.num_experts * (std::int64_t{p.n_blocks} * p.w_stride)),
                visit);
}

void for_each_pointer(const GemmParams& p, const RegionVisitor& visit) { visit_product(p, p, visit); }

void for_each_pointer(const GroupedGemmParams& p, const RegionVisitor& visit) { visit_product(p, p.gemm, visit); }

void for_each_pointer(const ScaledGemmParams& p, const RegionVisitor& visit) {
  visit_product(p, p.gemm, visit);
  visit_pointer(p, p.w_scale,
                gpu::float_workspace(kWScales, Access::read, std::max(p.gemm.num_experts, 1) * p.w_scale_expert_stride),
                visit);
}

void bind(const LinearParams& call, GemmPrepareParams& params) {
  params.groups.data = call.groups.data, params.groups.stride = call.groups.stride;
  if (params.k_blocks == 0) return;
  params.x_scale = scales_of(call.x_scales);
  params.w_scale = scales_of(call.w.scales);
}
void bind(const LinearParams& call, GemmParams& params) {
  params.out = call.out.data, params.out_stride = call.out.row_stride;
  params.bias = {call.bias.data, call.bias.expert_stride, call.bias.stride, portable::bias_type_of(call.bias.dtype), 0};
}
void bind(const LinearParams& call, GroupedGemmParams& params) { bind(call, params.gemm); }
void bind(const LinearParams& call, ScaledGemmParams& params) { bind(call, params.gemm); }

void add_linear_maps(const device::GemmConfig& c, DType dtype, DType out_dtype, bool scaled, gpu::Launch& launch) {
  constexpr std::int32_t kStoredColumns = 64;
  const std::int32_t w_columns = c.w_mn_major != 0 ? kStoredColumns : c.block_k();
  launch.tensor_maps = {map_of(offsetof(GemmParams, x_map), dtype, {c.block_k(), c.x_box()}, bind_x),
                        map_of(offsetof(GemmParams, w_map), dtype, {w_columns, c.w_box(), 1}, bind_w),
                        map_of(offsetof(GemmParams, out_map), out_dtype, {kStoredColumns, kStoredRows}, bind_out)};
  if (!scaled) return;
  gpu::TensorMapParameter scales =
      map_of(offsetof(ScaledGemmParams, x_scale_map), DType::f32, {c.x_scale_box(), 1}, bind_x_scales);
  scales.map.swizzle = gpu::Swizzle::none;
  scales.part = kXScales;
  launch.tensor_maps.push_back(scales);
}

void add_grouped_maps(const device::GemmConfig& c, DType dtype, DType out_dtype, gpu::Launch& launch) {
  add_linear_maps(c, dtype, out_dtype, false, launch);
  for (std::int32_t box = 0; box < device::kRowBoxes; ++box) {
    const std::size_t offset = box == 0 ? offsetof(GroupedGemmParams, gemm) + offsetof(GemmParams, x_map)
                                        : offsetof(GroupedGemmParams, more_x_maps) +
                                              static_cast<std::size_t>(box - 1) * sizeof(device::TensorMap);
    const gpu::TensorMapParameter map = map_of(offset, dtype, {c.block_k(), device::kMostBoxRows >> box}, bind_x);
    if (box == 0) {
      launch.tensor_maps.front() = map;
    } else {
      launch.tensor_maps.push_back(map);
    }
  }
}

std::uint32_t Gemm::shared_bytes(const Config& c, gpu::Family) {
  return whole_patterns(product_bytes(c) + ring_bytes(c.stages));
}

std::uint32_t GroupedGemm::shared_bytes(const Config& c, gpu::Family) {
  const std::int32_t tiles = c.stages * (c.block_m + c.block_n) * kRowBytes;
  const std::int32_t stored = c.kConsumers * c.block_m / 2 * kRowBytes;
  return whole_patterns(tiles + stored + ring_bytes(c.stages) + c.kConsumers * ring_bytes(1));
}

std::uint32_t ScaledGemm::shared_bytes(const Config& c, gpu::Family) {
  const std::int32_t scales = c.stages * (c.x_scale_room() * static_cast<std::int32_t>(sizeof(float)) + kScaleRun);
  return whole_patterns(product_bytes(c) + scales + ring_bytes(c.stages));
}

}  // namespace tilewise::backends::hopper
