// schema::Pack: values of different types, kept, joined and handed to functions in their order.
#include "operations/pack.hpp"

#include <gtest/gtest.h>

#include <string_view>
#include <type_traits>

namespace {

using tilewise::operations::schema::apply;
using tilewise::operations::schema::get;
using tilewise::operations::schema::joined;
using tilewise::operations::schema::kLengthOf;
using tilewise::operations::schema::Pack;

constexpr Pack kThree{1, 2.5, std::string_view("three")};

TEST(Pack, KeepsItsValuesInTheirOrder) {
  static_assert(std::is_same_v<decltype(kThree), const Pack<int, double, std::string_view>>);
  static_assert(kLengthOf<decltype(kThree)> == 3 && kLengthOf<Pack<>> == 0);
  EXPECT_EQ(get<0>(kThree), 1);
  EXPECT_EQ(get<1>(kThree), 2.5);
  EXPECT_EQ(get<2>(kThree), "three");
}

TEST(Pack, StartsWithZeroesAndIsWritten) {
  Pack<int, const char*> values;
  EXPECT_EQ(get<0>(values), 0);
  EXPECT_EQ(get<1>(values), nullptr);
  get<0>(values) = 7;
  EXPECT_EQ(get<0>(values), 7);
}

TEST(Pack, HandsEachValueToAFunction) {
  const double sum = apply([](int a, double b, std::string_view c) { return a + b + double(c.size()); }, kThree);
  EXPECT_EQ(sum, 8.5);
  EXPECT_EQ(apply([](const auto&... none) { return sizeof...(none); }, Pack<>()), 0u);
}

TEST(Pack, JoinsInOrder) {
  constexpr auto kJoined = joined(Pack<>(), kThree, Pack{4}, Pack<>());
  static_assert(std::is_same_v<decltype(kJoined), const Pack<int, double, std::string_view, int>>);
  EXPECT_EQ(get<2>(kJoined), "three");
  EXPECT_EQ(get<3>(kJoined), 4);
  static_assert(kLengthOf<decltype(joined())> == 0);
}

}  // namespace
