// Addresses, extents and strides of an expert layer's tensor maps.
#include "backends/cuda/hopper/moe_maps.hpp"

#include <cstddef>
#include <string_view>

#include "backends/cuda/hopper/moe_kernels.hpp"
#include "backends/cuda/hopper/tensor_maps.hpp"

namespace tilewise::backends::hopper {
namespace {

using operations::ExpertMatrices, operations::moe::MoeParams;

constexpr std::uint32_t kBoxColumns = 64, kOctet = 8;  // elements of a swizzled row; rows that gate or up have at once
constexpr std::uint32_t kLayerRows = 128;              // of weights in a tile of Sm90MoeLayer
constexpr std::uint32_t kLayerStoredRows = 16;         // that it stores at once
constexpr std::uint32_t kScaledRows = 64, kScaledWeightRows = 128;  // of half a tile of Sm90MoeScaledProduct

const MoeParams& moe_call_of(const void* call) { return *static_cast<const MoeParams*>(call); }
std::uint64_t bytes(const ExpertMatrices& w, std::int64_t elements) { return u(elements) * bits_of(w.dtype) / 8; }
/// Of a row, as its map has them.
std::uint64_t columns(const ExpertMatrices& w, const gpu::TensorMap& map) {
  return bytes(w, w.columns) / size_of(map.dtype);
}

/// An only expert may have whatever stride; the driver wants one on 16 bytes.
std::uint64_t expert_bytes(const ExpertMatrices& w) { return w.num_experts > 1 ? bytes(w, w.expert_stride) : kMapUnit; }

/// [num_experts, intermediate / 8, gate and up, 8, hidden]: a box has eight rows of each in turns.
void bind_gate_up(const void* call, gpu::TensorMap& map) {
  const ExpertMatrices& w = moe_call_of(call).gate_up;
  const bool interleaved = moe_call_of(call).gate_layout == device::GateLayout::interleaved;
  const std::int64_t gates = moe_call_of(call).gate_layout == device::GateLayout::none ? 1 : 2, size = w.rows / gates;
  const std::int64_t row = interleaved ? 2 * w.row_stride : w.row_stride;
  const std::int64_t gate = interleaved ? w.row_stride : size * w.row_stride;
  map.address = w.data;
  map.dims = {columns(w, map), kOctet, u(gates), u(size) / kOctet, u(w.num_experts)};
  map.strides = {bytes(w, row), bytes(w, gate), kOctet * bytes(w, row), expert_bytes(w)};
}
template <ExpertMatrices MoeParams::* kWeights>
void bind_weights(const void* call, gpu::TensorMap& map) {
  const ExpertMatrices& w = moe_call_of(call).*kWeights;
  map.address = w.data;
  map.dims = {columns(w, map), u(w.rows), u(w.num_experts)};
  map.strides = {bytes(w, w.row_stride), expert_bytes(w)};
}

/// Rows of the workspace, one of each pair.
void set_pair_rows(const void* call, std::int64_t columns, gpu::TensorMap& map) {
  map.dims = {u(columns), u(moe_call_of(call).topk_ids.rows * moe_call_of(call).topk_ids.columns)};
  map.strides = {u(columns) * size_of(map.dtype)};
}
void bind_hidden_rows(const void* call, gpu::TensorMap& map) { set_pair_rows(call, moe_call_of(call).x.columns, map); }
void bind_intermediate_rows(const void* call, gpu::TensorMap& map) {
  set_pair_rows(call, moe_call_of(call).down.columns, map);
}

std::int32_t gates_of(const MoeParams& call) { return call.gate_layout == device::GateLayout::none ? 1 : 2; }
void bind_product_rows(const void* call, gpu::TensorMap& map) {
  set_pair_rows(call, gates_of(moe_call_of(call)) * moe_call_of(call).down.columns, map);
}

/// Saved sums of gates, or of ups alone, and of ups: columns end with them, whatever stands beside.
template <std::int64_t kPart>
void bind_saved_rows(const void* call, gpu::TensorMap& map) {
  const operations::Matrix& saved = moe_call_of(call).gate_up_out;
  const std::int64_t size = moe_call_of(call).down.columns;
  const auto element = static_cast<std::int64_t>(size_of(map.dtype));
  map.address = static_cast<std::byte*>(saved.data) + kPart * size * element;
  map.dims = {u(size), u(saved.rows)};
  map.strides = {u(saved.row_stride * element)};
}

gpu::TensorMapParameter gate_up_map(std::size_t offset, DType dtype, bool gated, std::int32_t rows) {
  const std::uint32_t gates = gated ? 2 : 1;
  gpu::TensorMap map{.dtype = dtype, .rank = 5};
  map.box = {box_columns(dtype), kOctet, gates, static_cast<std::uint32_t>(rows) / (gates * kOctet), 1};
  return {static_cast<std::uint32_t>(offset), map, bind_gate_up};
}
template <ExpertMatrices MoeParams::* kWeights>
gpu::TensorMapParameter weights_map(std::size_t offset, DType dtype, std::int32_t rows) {
  gpu::TensorMap map{.dtype = dtype, .rank = 3};
  map.box = {box_columns(dtype), static_cast<std::uint32_t>(rows), 1};
  return {static_cast<std::uint32_t>(offset), map, bind_weights<kWeights>};
}
gpu::TensorMapParameter row_map(std::size_t offset, DType dtype, std::string_view part, std::uint32_t rows,
                                std::uint32_t columns = kBoxColumns) {
  gpu::TensorMap map{.dtype = dtype, .rank = 2};
  map.box = {columns, rows};
  if (columns < box_columns(dtype)) map.swizzle = gpu::Swizzle::bytes64;
  gpu::TensorMapParameter parameter{static_cast<std::uint32_t>(offset), map,
                                    part == kMoeH          ? bind_intermediate_rows
                                    : part == kMoeProducts ? bind_product_rows
                                                           : bind_hidden_rows};
  parameter.part = part;
  return parameter;
}

}  // namespace

void add_moe_maps(const device::MoeDecodeConfig& config, DType row_dtype, gpu::Launch& launch) {
  using Params = device::MoeDecodeParams;
  const DType dtype = config.quantised() ? DType::u8 : row_dtype;
  launch.tensor_maps = {gate_up_map(offsetof(Params, gate_up_map), dtype, config.gated != 0, config.block_m()),
                        weights_map<&MoeParams::down>(offsetof(Params, down_map), dtype, config.block_m())};
}

void add_moe_maps(const device::MoeLayerConfig& config, DType dtype, gpu::Launch& launch) {
  using Params = device::MoeLayerParams;
  const bool gated = config.gated != 0;
  launch.tensor_maps = {
      gate_up_map(offsetof(Params, gate_up_map), dtype, gated, kLayerRows),
      weights_map<&MoeParams::down>(offsetof(Params, down_map), dtype, kLayerRows),
      row_map(offsetof(Params, h_store_map), dtype, kMoeH, kLayerStoredRows, gated ? kBoxColumns / 2 : kBoxColumns),
      row_map(offsetof(Params, parts_map), dtype, kMoeParts, kLayerStoredRows)};
  for (std::size_t part = 0; config.saves != 0 && part < (gated ? 2 : 1); ++part) {
    gpu::TensorMapParameter map = launch.tensor_maps[2];  // boxes as values have them
    map.param_offset = static_cast<std::uint32_t>(offsetof(Params, sums_map) + part * sizeof(device::TensorMap));
    map.bind = part == 0 ? bind_saved_rows<0> : bind_saved_rows<1>;
    map.part = {};
    launch.tensor_maps.push_back(map);
  }
  for (std::uint32_t box = 0; box < device::kRowBoxes; ++box) {
    const std::size_t offset = box * sizeof(device::TensorMap);
    const std::uint32_t rows = static_cast<std::uint32_t>(device::kMostBoxRows) >> box;
    launch.tensor_maps.push_back(row_map(offsetof(Params, rows_map) + offset, dtype, kMoeGathered, rows));
    launch.tensor_maps.push_back(row_map(offsetof(Params, h_map) + offset, dtype, kMoeH, rows));
  }
}

void add_moe_maps(const device::MoeScaledConfig& config, gpu::Launch& launch) {
  using Params = device::MoeScaledParams;
  constexpr DType kBytes = DType::u8;
  const std::size_t weights = offsetof(Params, weights_map);
  const std::string_view part = config.down != 0 ? kMoeH : kMoeGathered;
  const std::uint32_t rows = kScaledRows / static_cast<std::uint32_t>(config.cluster);
  launch.tensor_maps = {row_map(offsetof(Params, rows_map), kBytes, part, rows, box_columns(kBytes)),
                        config.down != 0 ? weights_map<&MoeParams::down>(weights, kBytes, kScaledWeightRows)
                                         : gate_up_map(weights, kBytes, true, kScaledWeightRows)};
}

void add_moe_maps(MoeProductOf of, const device::GemmConfig& config, DType dtype, gpu::Launch& launch) {
  using Params = device::GroupedGemmParams;
  constexpr std::size_t kGemm = offsetof(Params, gemm);
  const bool is_dout = of == MoeProductOf::dout;
  const auto weights = is_dout ? weights_map<&MoeParams::down> : weights_map<&MoeParams::gate_up>;
  launch.tensor_maps = {
      weights(kGemm + offsetof(device::GemmParams, w_map), dtype, config.w_box()),
      row_map(kGemm + offsetof(device::GemmParams, out_map), dtype, is_dout ? kMoeH : kMoeParts, kLayerStoredRows)};
  for (std::uint32_t box = 0; box < device::kRowBoxes; ++box) {
    const std::size_t offset = box == 0 ? kGemm + offsetof(device::GemmParams, x_map)
                                        : offsetof(Params, more_x_maps) + (box - 1) * sizeof(device::TensorMap);
    launch.tensor_maps.push_back(row_map(offset, dtype, is_dout ? kMoeGatheredDout : kMoeProducts,
                                         static_cast<std::uint32_t>(device::kMostBoxRows) >> box));
  }
}

void add_moe_maps(const device::MoeSlopesConfig& config, DType dtype, gpu::Launch& launch) {
  constexpr std::size_t kGemm = offsetof(device::MoeSlopesParams, gemm);
  const auto boxes = static_cast<std::uint32_t>(config.gemm().x_box());
  launch.tensor_maps = {
      row_map(kGemm + offsetof(device::GemmParams, x_map), dtype, kMoeGathered, boxes),
      gate_up_map(kGemm + offsetof(device::GemmParams, w_map), dtype, config.gated != 0, config.kBlockN)};
}

void add_moe_maps(bool of_down, const device::MoeDwConfig& config, DType dtype, gpu::Launch& launch) {
  using Params = device::MoeDwParams;
  const auto depth = static_cast<std::uint32_t>(config.depth),
             share = depth / static_cast<std::uint32_t>(config.cluster);
  const auto out = of_down ? weights_map<&MoeParams::ddown> : weights_map<&MoeParams::dgate_up>;
  launch.tensor_maps = {row_map(offsetof(Params, a_map), dtype, of_down ? kMoeGatheredDout : kMoeProducts, depth),
                        row_map(offsetof(Params, b_map), dtype, of_down ? kMoeH : kMoeGathered, share),
                        out(offsetof(Params, out_map), dtype, static_cast<std::int32_t>(kLayerStoredRows))};
}

}  // namespace tilewise::backends::hopper
