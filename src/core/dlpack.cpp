// DLTensor to TensorView and back.
#include <dlpack/dlpack.h>

#include <limits>
#include <optional>

#include "core/foreign_dtype.hpp"
#include "core/message.hpp"
#include "core/packed.hpp"
#include "core/tensor_checks.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {
namespace {

struct DTypePair {
  DType dtype;
  std::uint8_t code, bits;
};
constexpr std::array<DTypePair, 12> kDTypePairs{{{DType::f32, kDLFloat, 32},
                                                 {DType::bf16, kDLBfloat, 16},
                                                 {DType::f16, kDLFloat, 16},
                                                 {DType::f64, kDLFloat, 64},
                                                 {DType::boolean, kDLBool, 8},
                                                 {DType::u8, kDLUInt, 8},
                                                 {DType::i32, kDLInt, 32},
                                                 {DType::i64, kDLInt, 64},
                                                 {DType::fp8_e4m3, kDLFloat8_e4m3fn, 8},
                                                 {DType::fp8_e5m2, kDLFloat8_e5m2, 8},
                                                 {DType::fp8_e8m0, kDLFloat8_e8m0fnu, 8},
                                                 {DType::fp4_e2m1, kDLFloat4_e2m1fn, 4}}};

/// torch's float4_e2m1fn_x2: pairs, whose shape counts bytes.
constexpr bool is_pairs(const DLDataType& type) {
  return type.code == kDLFloat4_e2m1fn && type.bits == 4 && type.lanes == 2;
}

/// What DLPack's codes stand for, in their order. A number of bits follows the first seven.
constexpr std::array<std::string_view, 18> kCodeNames{"i",
                                                      "u",
                                                      "f",
                                                      "opaque",
                                                      "bf",
                                                      "complex",
                                                      "bool",
                                                      "float8_e3m4",
                                                      "float8_e4m3",
                                                      "float8_e4m3b11fnuz",
                                                      "float8_e4m3fn",
                                                      "float8_e4m3fnuz",
                                                      "float8_e5m2",
                                                      "float8_e5m2fnuz",
                                                      "float8_e8m0fnu",
                                                      "float6_e2m3fn",
                                                      "float6_e3m2fn",
                                                      "float4_e2m1fn"};

/// "complex64", "i16", "float8_e4m3fn", "f32 in 4 lanes": any DLPack type for a message.
std::string type_text(const DLDataType& type) {
  std::string text = type.code < kCodeNames.size() ? std::string(kCodeNames[type.code])
                                                   : core::concat("DLPack code ", unsigned{type.code}, ", bits ");
  if (type.code <= kDLBool || type.code >= kCodeNames.size()) core::append(text, unsigned{type.bits});
  return type.lanes == 1 ? text : core::concat(text, " in ", unsigned{type.lanes}, " lanes");
}

/// One of DType's, or a foreign one's number.
DType dtype_of(const DLDataType& type, std::string_view name) {
  if (is_pairs(type)) return DType::fp4_e2m1;
  for (const DTypePair& pair : kDTypePairs) {
    if (type.code == pair.code && type.bits == pair.bits && type.lanes == 1) return pair.dtype;
  }
  const std::string text = type_text(type);
  if (const std::optional<DType> foreign = core::foreign_dtype(text)) return *foreign;
  core::refuse_dtype(name, text);
}

Device device_of(const DLDevice& device, std::string_view name) {
  switch (static_cast<int>(device.device_type)) {
    case kDLCPU:
    case kDLCUDAHost:  // pinned memory of the host
    case kDLROCMHost:
      return {DeviceType::cpu, 0};
    case kDLCUDA:
    case kDLCUDAManaged:
      return {DeviceType::cuda, device.device_id};
    case kDLROCM:
      return {DeviceType::hip, device.device_id};
    default:
      core::invalid_type(name, ": device must be cpu, cuda or hip (got DLPack device type ",
                         static_cast<int>(device.device_type), ")");
  }
}

}  // namespace

TensorView core::import_dlpack(const DLTensor& tensor, std::string_view name) {
  if (tensor.ndim < 0 || tensor.ndim > kMaxRank) {
    core::invalid_argument(name, ": rank must be 0 to ", kMaxRank, " (got ", tensor.ndim, ")");
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr) {
    core::invalid_argument(name, ": shape must not be null (rank ", tensor.ndim, ")");
  }
  TensorView view;
  view.dtype = dtype_of(tensor.dtype, name);
  view.device = device_of(tensor.device, name);
  view.rank = tensor.ndim;
  std::int64_t contiguous = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    const auto i = static_cast<std::size_t>(axis);
    const std::int64_t size = tensor.shape[axis];
    if (size < 0) core::invalid_argument(name, ": shape[", axis, "] must be >= 0 (got ", size, ")");
    view.shape[i] = size;
    view.strides[i] = tensor.strides != nullptr ? tensor.strides[axis] : contiguous;
    if (__builtin_mul_overflow(contiguous, size > 0 ? size : 1, &contiguous)) {
      contiguous = std::numeric_limits<std::int64_t>::max();
    }
  }
  view.data = tensor.data != nullptr ? static_cast<std::byte*>(tensor.data) + tensor.byte_offset : nullptr;
  return is_pairs(tensor.dtype) ? elements_of_pairs(view, name) : view;
}

TensorView from_dlpack(const DLTensor& tensor, std::string_view name) {
  const TensorView view = core::import_dlpack(tensor, name);
  if (const std::string_view foreign = core::foreign_name(view.dtype); !foreign.empty()) {
    core::refuse_dtype(name, foreign);
  }
  return view;
}

void to_dlpack(const TensorView& view, DLTensor* tensor) {
  if (!view.defined()) core::invalid_argument("tensor: must be given (got an undefined view)");
  for (const DTypePair& pair : kDTypePairs) {
    if (view.dtype == pair.dtype) tensor->dtype = {pair.code, pair.bits, 1};
  }
  constexpr std::array<DLDeviceType, 3> kDevices{kDLCPU, kDLCUDA, kDLROCM};
  tensor->data = view.data;
  tensor->device = {kDevices[static_cast<std::size_t>(view.device.type)], view.device.index};
  tensor->ndim = view.rank;
  tensor->shape = const_cast<std::int64_t*>(view.shape.data());  // DLPack has no const; readers must not write
  tensor->strides = const_cast<std::int64_t*>(view.strides.data());
  tensor->byte_offset = 0;
}

}  // namespace tilewise
