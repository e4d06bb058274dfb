// Tensors of narrow elements as others store them: bytes, which a schema knows how to read.
#pragma once

#include <type_traits>

#include "core/packed.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

/// A tensor of bytes as the elements of 8 or 4 bits that its row says it has; of a row that has none, or bytes, as it
/// is. The lower of two elements comes first in a byte.
template <typename Problem>
[[nodiscard]] TensorView as_stored(const TensorView& view, const Tensor<Problem>& tensor, const Problem& stated) {
  if (view.dtype != DType::u8) return view;
  TensorView elements = view;
  for (std::size_t type = 0; type < types_of(tensor); ++type) {
    const DType dtype = tensor.types[type].of(stated);
    if (dtype == DType::u8) return view;
    if (core::is_packed(dtype)) return core::elements_of_pairs(view, tensor.name);
    if (dtype != DType::none && bits_of(dtype) == bits_of(DType::u8)) elements.dtype = dtype;
  }
  return elements;
}

/// The same of all tensors of a call, whose fields are stated.
template <const auto& kSchema, typename Arguments>
void read_bytes(Arguments& arguments) {
  const auto stated = CallOf<kSchema>(arguments).stated();
  for_each_member<kSchema>(arguments, [&](std::size_t place, auto& entries) {
    if constexpr (std::is_same_v<decltype(entries), TensorView&>) {
      entries = as_stored(entries, kTensors<kSchema>[place], stated);
    } else {
      for (TensorView& view : entries) view = as_stored(view, kTensors<kSchema>[place], stated);
    }
  });
}

}  // namespace tilewise::operations::schema
