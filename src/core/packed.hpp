// Tensors whose elements are half a byte. Whoever asks where they lie in memory asks of their bytes.
#pragma once

#include <string_view>

#include "core/tensor_checks.hpp"
#include "core/visibility.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::core {

[[nodiscard]] constexpr bool is_packed(DType dtype) { return dtype == DType::fp4_e2m1; }

/// Throws unless elements of a packed tensor lie as DType says: one dimension of stride 1 at most, even strides else.
void check_packed(const TensorView& view, const ArgumentName& name);

/// The bytes that such a tensor's elements lie in, as u8. The last one of a row of odd length counts.
[[nodiscard]] TILEWISE_INTERNAL TensorView bytes_of(const TensorView& packed);

/// The other way: elements of what others call float4_e2m1fn_x2, whose shape counts pairs along the last dimension of
/// stride 1. Throws where there is none.
[[nodiscard]] TILEWISE_INTERNAL TensorView elements_of_pairs(const TensorView& pairs, std::string_view name);

}  // namespace tilewise::core
