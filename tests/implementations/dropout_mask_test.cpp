// The dropout mask itself, read off the result: the same for every tiling and in both passes.
#include <gtest/gtest.h>

#include "../support/dense_call.hpp"
#include "device/common/philox.h"
#include "implementation_test.hpp"

namespace tilewise::test {
namespace {

class DropoutMask : public ImplementationTest {
 protected:
  static constexpr std::int64_t kKeys = 200;
  static constexpr double kProbability = 0.375;

  /// Uniform weights on unit vectors: out[i, j] > 0 where position (i, j) was kept.
  static DenseCall make(std::int64_t seqlen_q, DType dtype) {
    DenseCall call({.batch = 2,
                    .seqlen_q = seqlen_q,
                    .seqlen_k = kKeys,
                    .heads_q = 4,
                    .heads_k = 2,
                    .dim = 8,
                    .dim_v = kKeys,
                    .dtype = dtype});
    call.q.fill(0.0);
    call.v.fill_with([](std::span<const std::int64_t> p) { return p[1] == p[3] ? 1.0 : 0.0; });
    call.options.dropout_p = kProbability;
    call.options.seed = 0xDEADBEEF12345678u;
    call.options.offset = 0x0123456789ABCDEFu;
    return call;
  }
  static bool kept(const DenseCall& call, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
    return device::dropout_draw(call.options.seed, call.options.offset, static_cast<std::uint32_t>(b * 4 + h),
                                static_cast<std::uint32_t>(i),
                                static_cast<std::uint32_t>(j)) >= static_cast<std::uint32_t>(65536 * kProbability);
  }
};

TEST_P(DropoutMask, ForwardAtEveryTiling) {
  for (const DType dtype : dtypes()) {
    for (const std::int64_t seqlen_q : {1, 3, 40, 130}) {
      DenseCall call = make(seqlen_q, dtype);
      call.forward(GetParam());
      int wrong = 0;
      verify::for_each_element(call.out.view(), [&](std::span<const std::int64_t> p, std::int64_t offset) {
        wrong += (call.out.at(offset) > 0) != kept(call, p[0], p[2], p[1], p[3]);
      });
      EXPECT_EQ(wrong, 0) << to_string(dtype) << ", seqlen_q " << seqlen_q;
    }
  }
}

TEST_P(DropoutMask, BackwardUsesTheSameOne) {
  // dv[j] = sum_i p[i, j] * kept[i, j] * dout[i], and dout is a unit vector of row i: one row a column.
  constexpr std::int64_t kRows = 90;
  for (const DType dtype : dtypes()) {
    DenseCall call = make(kRows, dtype);
    call.prepare_backward();
    call.dout.fill_with([](std::span<const std::int64_t> p) { return p[1] == p[3] && p[2] % 2 == 0 ? 1.0 : 0.0; });
    call.forward();
    call.backward(GetParam());
    int wrong = 0;
    for (std::int64_t b = 0; b < 2; ++b)
      for (std::int64_t h_k = 0; h_k < 2; ++h_k)
        for (std::int64_t j = 0; j < kKeys; ++j)
          for (std::int64_t i = 0; i < kRows; ++i)
            wrong += (call.dv.get({b, j, h_k, i}) > 0) != kept(call, b, 2 * h_k, i, j);
    EXPECT_EQ(wrong, 0) << to_string(dtype);
  }
}

TILEWISE_FOR_EVERY_IMPLEMENTATION(DropoutMask);

}  // namespace
}  // namespace tilewise::test
