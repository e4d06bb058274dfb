// What a problem says of the tensors that its functions look up, as a word of its text: none, or e.g.
// f32[16,128],i32[64].
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/hasher.hpp"
#include "core/tensor_checks.hpp"
#include "core/visibility.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

// Beside TableShape, where problem text looks for what a field's type brings.
void print_value(std::string& text, const std::vector<TableShape>& tables);
void read_word(std::string_view key, std::string_view word, std::vector<TableShape>& tables);
void add_to(core::Hasher& hasher, const std::vector<TableShape>& tables);

}  // namespace tilewise

namespace tilewise::operations {

inline constexpr int kMostTableDimensions = static_cast<int>(std::tuple_size_v<decltype(TableShape::shape)>);

/// Throws Error where a table has no dimension or too many.
void check_table_rank(const core::ArgumentName& name, int rank);

/// Throws likewise.
[[nodiscard]] TILEWISE_INTERNAL TableShape table_shape_of(const TensorView& table, const core::ArgumentName& name);

}  // namespace tilewise::operations
