// Outputs compared by each of the models: integers and packed elements too, with damage that must be found.
#include "verify/compare.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace tilewise::verify {
namespace {

Placement placed(std::size_t rank, std::uint64_t seed) {
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  Random rng(seed);
  return random_placement(order, false, rng);
}

/// A result and the reference's, equal at first, of different strides.
struct Pair {
  Output got, expected;

  Pair(DType dtype, const std::vector<std::int64_t>& shape, Model model)
      : got{"ids", Buffer(dtype, shape, placed(shape.size(), 3)), -1, 0, {"token", "place"}, false, model},
        expected{"ids", Buffer(dtype, shape, placed(shape.size(), 8)), -1, 0, {"token", "place"}, false, model} {}

  template <typename Value>
  void fill(Value&& value) {
    for (const TensorView& view : {got.buffer.view(), expected.buffer.view()}) {
      double n = 0.0;
      for_each_element(view, [&](auto, std::int64_t offset) { store_at(view, offset, value(n++)); });
    }
  }
  void set(std::int64_t i, std::int64_t j, double value) { store(got, i, j, value); }
  static void store(const Output& output, std::int64_t i, std::int64_t j, double value) {
    const TensorView& view = output.buffer.view();
    store_at(view, i * view.strides[0] + j * view.strides[1], value);
  }
  [[nodiscard]] std::string failure() const { return compare(got, expected, {}).failure; }
};

class Bits : public testing::TestWithParam<DType> {};

TEST_P(Bits, OneElementThatDiffersIsFound) {
  Pair pair(GetParam(), {5, 6}, Model::bits);
  pair.fill([](double n) { return std::fmod(n, 4.0); });
  EXPECT_EQ(pair.failure(), "");
  pair.set(2, 3, 6.0);
  EXPECT_EQ(pair.failure().find("ids[token 2, place 3]: got 6"), 0u) << pair.failure();
  EXPECT_NE(pair.failure().find("1 such elements of 30"), std::string::npos) << pair.failure();
}

TEST_P(Bits, PoisonIsARightResultOfNarrowElements) {
  Pair pair(GetParam(), {2, 3}, Model::bits);
  if (bits_of(GetParam()) < 16) {
    EXPECT_EQ(pair.failure(), "");  // nothing but poison on both sides
  }
  Pair::store(pair.expected, 1, 1, 2.0);
  const std::string where = bits_of(GetParam()) < 16 ? "ids[token 1, place 1]" : "ids[token 0, place 0]";
  EXPECT_NE(pair.failure().find(where + ": never written"), std::string::npos) << pair.failure();
}

TEST_P(Bits, AWriteBesideTheTensorIsFound) {
  Pair pair(GetParam(), {4, 6}, Model::bits);
  pair.fill([](double) { return 1.0; });
  const TensorView& view = pair.got.buffer.view();
  const TensorView behind{static_cast<std::byte*>(view.data) - 1, DType::u8, {1}};
  store_at(behind, 0, 3.0);
  EXPECT_NE(pair.failure().find("memory outside the tensor changed, -"), std::string::npos) << pair.failure();
}

INSTANTIATE_TEST_SUITE_P(Compare, Bits,
                         testing::Values(DType::i32, DType::i64, DType::u8, DType::fp8_e4m3, DType::fp8_e5m2,
                                         DType::fp4_e2m1),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(Compare, IntegersBeyondADoubleDiffer) {
  Pair pair(DType::i64, {1, 2}, Model::bits);
  pair.fill([](double) { return 0x1p53; });
  EXPECT_EQ(pair.failure(), "");
  ++*static_cast<std::int64_t*>(pair.got.buffer.view().data);
  EXPECT_NE(pair.failure().find("got 9007199254740993, the reference 9007199254740992"), std::string::npos)
      << pair.failure();
}

TEST(Compare, BitsTellZerosApartAndNoNaNs) {
  Pair pair(DType::f32, {1, 2}, Model::bits);
  pair.fill([](double n) { return n == 0.0 ? 0.0 : std::numeric_limits<double>::quiet_NaN(); });
  pair.set(0, 1, -std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(pair.failure(), "");
  pair.set(0, 0, -0.0);
  EXPECT_NE(pair.failure().find("got -0 (bits 2147483648), the reference 0 (bits 0)"), std::string::npos);
}

TEST(Compare, ExactTakesNoBounds) {
  Pair pair(DType::f32, {3, 4}, Model::exact);
  pair.fill([](double n) { return n; });
  EXPECT_EQ(pair.failure(), "");
  pair.set(0, 0, -0.0);
  EXPECT_EQ(pair.failure(), "");
  pair.set(2, 1, std::nextafter(9.0f, 10.0f));
  EXPECT_NE(pair.failure().find("(must be exact)"), std::string::npos) << pair.failure();
  pair.set(2, 1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_NE(pair.failure().find("got nan, the reference 9"), std::string::npos) << pair.failure();
}

TEST(Compare, APermutationIsOfEachRow) {
  for (const DType dtype : {DType::i32, DType::i64, DType::f32, DType::fp4_e2m1}) {
    Pair pair(dtype, {3, 4}, Model::permutation);
    pair.fill([](double n) { return std::fmod(n, 4.0); });
    pair.set(1, 0, 3.0), pair.set(1, 3, 0.0);  // two exchanged
    EXPECT_EQ(pair.failure(), "");
    pair.set(1, 0, 0.0);  // one twice
    EXPECT_EQ(pair.failure().find("ids[token 1]: no permutation of the reference's row"), 0u) << pair.failure();
    pair.set(1, 0, 3.0);
    EXPECT_EQ(pair.failure(), "");
    pair.set(0, 0, 6.0), pair.set(2, 0, 6.0);  // not of the row
    EXPECT_NE(pair.failure().find("2 such elements"), std::string::npos) << pair.failure();
  }
}

TEST(Compare, RowsThatAreNoneOfTheCallsStayUntouched) {
  Pair pair(DType::i32, {4, 2}, Model::permutation);
  pair.got.row_axis = pair.expected.row_axis = 0;
  pair.got.rows = pair.expected.rows = 3;
  for (std::int64_t i = 0; i < 3; ++i)
    for (std::int64_t j = 0; j < 2; ++j) pair.set(i, j, 7.0), Pair::store(pair.expected, i, j, 7.0);
  EXPECT_EQ(pair.failure(), "");
  pair.set(3, 1, 7.0);
  EXPECT_NE(pair.failure().find("ids[token 3, place 1]: written, though"), std::string::npos) << pair.failure();
  pair.got.rest_is_cleared = true;
  EXPECT_NE(pair.failure().find("not cleared"), std::string::npos) << pair.failure();
  pair.set(3, 0, 0.0), pair.set(3, 1, 0.0);
  EXPECT_EQ(pair.failure(), "");
}

TEST(Compare, MinusInfinityOfALogSumIsNoNaN) {
  Pair pair(DType::f32, {1, 2}, Model::exact);
  pair.fill([](double n) { return n == 0.0 ? -HUGE_VAL : std::numeric_limits<double>::quiet_NaN(); });
  pair.set(0, 0, HUGE_VAL);
  EXPECT_EQ(pair.failure(), "");  // any that is not finite
  pair.got.is_log_sum = true;
  EXPECT_NE(pair.failure().find("got inf, the reference -inf"), std::string::npos) << pair.failure();
}

}  // namespace
}  // namespace tilewise::verify
