// The names of the KV cache step's enumerations in problem text, options and messages.
#pragma once

#include "core/names.hpp"
#include "operations/layout.hpp"
#include "operations/score_names.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 2> kNamesOf<KvCacheCall>{"kv_cache_attention", "append_kv"};
template <>
inline constexpr std::array<std::string_view, 5> kNamesOf<CacheScales>{"none", "tensor", "head", "batch_head", "token"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<SlotKind>{"none", "i32", "i64"};
template <>
inline constexpr std::array<std::string_view, 3> kNamesOf<RotaryKind>{"none", "f32", "query"};

}  // namespace tilewise::core
