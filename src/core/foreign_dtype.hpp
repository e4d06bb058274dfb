// Element types that DLPack and torch have and Tilewise has not. A view may bear one until its dtype is checked, so
// that the message says what is taken in its place.
#pragma once

#include <optional>
#include <string_view>

#include "core/visibility.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::core {

/// The number, none of DType's own, of the type called `name`; nothing where it is not among those known.
[[nodiscard]] TILEWISE_INTERNAL std::optional<DType> foreign_dtype(std::string_view name) noexcept;
/// "complex64": the name behind such a number; "" of every other.
[[nodiscard]] TILEWISE_INTERNAL std::string_view foreign_name(DType dtype) noexcept;

/// As tilewise::from_dlpack(), which knows no foreign types: for arguments whose dtype is yet to be checked.
[[nodiscard]] TILEWISE_INTERNAL TensorView import_dlpack(const DLTensor& tensor, std::string_view name);

}  // namespace tilewise::core
