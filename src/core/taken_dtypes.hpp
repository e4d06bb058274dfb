// Which element types an operation takes where, for messages.
#pragma once

#include <initializer_list>
#include <span>
#include <string>

#include "core/implementation.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::core {

/// "f32, bf16 or f16", and of other devices than the CPU "f32 or bf16 on cuda": those of `dtypes` that an
/// implementation of the operation computes with there. A dtype that is no feature of the operation is left out.
[[nodiscard]] std::string taken_dtypes(const OperationInterface& operation, DeviceType device,
                                       std::initializer_list<DType> dtypes);

/// The end of a sentence that refuses a problem for which no row will do: "; none on cuda supports f64 (dtypes that
/// some do: f32, bf16, f16)". "" where each of the `required` features has some row on the device.
[[nodiscard]] std::string unsupported_text(const OperationInterface& operation, DeviceType device, FeatureBits required,
                                           std::span<const Implementation* const> table);

}  // namespace tilewise::core
