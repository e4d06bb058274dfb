// Values of different types in their order, as std::tuple holds them, for schemas. std::tuple asks its constructors'
// conditions for every element of every operation, which was a third of what parsing a schema takes.
#pragma once

#include <cstddef>
#include <utility>

namespace tilewise::operations::schema {

template <std::size_t place, typename T>
struct PackItem {
  T value{};
};

template <typename Places, typename... T>
struct PackItems;
template <>
struct PackItems<std::index_sequence<>> {};
template <std::size_t... places, typename... T>
struct PackItems<std::index_sequence<places...>, T...> : PackItem<places, T>... {
  constexpr PackItems() = default;
  constexpr PackItems(T... values) : PackItem<places, T>{values}... {}
};

template <typename... T>
struct Pack : PackItems<std::index_sequence_for<T...>, T...> {
  using PackItems<std::index_sequence_for<T...>, T...>::PackItems;
};
template <typename... T>
Pack(T...) -> Pack<T...>;

/// How many values a pack has.
template <typename>
inline constexpr std::size_t kLengthOf = 0;
template <typename... T>
inline constexpr std::size_t kLengthOf<Pack<T...>> = sizeof...(T);
template <typename... T>
inline constexpr std::size_t kLengthOf<const Pack<T...>> = sizeof...(T);

template <std::size_t place, typename T>
[[nodiscard]] constexpr T& get(PackItem<place, T>& item) {
  return item.value;
}
template <std::size_t place, typename T>
[[nodiscard]] constexpr const T& get(const PackItem<place, T>& item) {
  return item.value;
}

/// function(each value of the pack). An object, so that std::apply is no candidate where values are of std.
inline constexpr auto apply = []<typename Function, typename... T>(Function&& function,
                                                                   const Pack<T...>& pack) -> decltype(auto) {
  return [&]<std::size_t... places>(std::index_sequence<places...>) -> decltype(auto) {
    return std::forward<Function>(function)(get<places>(pack)...);
  }(std::index_sequence_for<T...>());
};

/// The values of all packs, in their order.
[[nodiscard]] constexpr Pack<> joined() { return {}; }
template <typename... First, typename... Rest>
[[nodiscard]] constexpr auto joined(const Pack<First...>& first, const Rest&... rest) {
  const auto behind = [&first]<typename... Later>(const Later&... later) {
    return apply([&](const First&... values) { return Pack<First..., Later...>(values..., later...); }, first);
  };
  return apply(behind, joined(rest...));
}

}  // namespace tilewise::operations::schema
