// The names of merge's enumerations in problem text, options and messages.
#pragma once

#include "core/names.hpp"
#include "operations/layout.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<MergePass>{"merge", "merge_backward"};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<PartsDType>{"f32", "bf16", "f16", "f64", "mixed"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<MergeSink>{"none", "f32", "query"};

}  // namespace tilewise::core
