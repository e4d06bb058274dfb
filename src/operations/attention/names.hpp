// The names of attention's enumerations in problem text, options and messages.
#pragma once

#include "core/names.hpp"
#include "operations/layout.hpp"
#include "operations/score_names.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<Operation>{"attention_forward", "attention_backward"};
template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<Alignment>{"bottom_right", "top_left"};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<BiasKind>{"none", "f32", "query", "bool"};
template <>
inline constexpr std::array<std::string_view, 4> kNamesOf<ScaleKind>{"none", "tensor", "head", "batch_head"};

}  // namespace tilewise::core
