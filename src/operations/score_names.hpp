// The names of the enumerations that say what a score is, for every operation that has scores.
#pragma once

#include "core/names.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<Mask>{"none", "causal"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<SinkKind>{"0", "1", "query"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<AlibiKind>{"none", "[h]", "[b,h]"};

}  // namespace tilewise::core
