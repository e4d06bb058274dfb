// NaN and infinities in portable kernels, run on the emulated machines: at every length of keys, and drawn for kernels
// with every option.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "../support/dense_call.hpp"
#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "tilewise/attention.hpp"
#include "verify/random.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class EmulatedSink : public testing::TestWithParam<std::string> {};

class EmulatedNotANumber : public testing::TestWithParam<std::string> {
 protected:
  /// Problems that share kernels with those of emulation_test.cpp, with special values in each.
  static void check(const std::string& kernel, int count) {
    verify::Random random(5);
    std::uint64_t seed = 0;
    for (int i = 0; i < count; ++i, ++seed) {
      while (!verify::draws_special_values(seed)) ++seed;
      const std::string shape = " batch_size=" + std::to_string(random.integer(1, 2)) +
                                " seqlen_q=" + std::to_string(random.integer(65, 100)) +
                                " seqlen_k=" + std::to_string(random.integer(1, 140)) + " num_heads_q=2 num_heads_k=1";
      expect_passed(parse_problem(kernel + shape), GetParam(), seed);
    }
  }
};

/// Sequences of 1, 2, 3, ... keys and a query each, in one call.
class EveryLength {
 public:
  static constexpr std::int64_t kLongest = 140, kDim = 64;  // past two tiles

  EveryLength() {
    std::vector<std::int64_t> of_queries(kLongest + 1), of_keys(kLongest + 1);
    std::iota(of_queries.begin(), of_queries.end(), 0);
    for (std::int64_t n = 1; n <= kLongest; ++n)
      of_keys[static_cast<std::size_t>(n)] = of_keys[static_cast<std::size_t>(n - 1)] + n;
    cu_q_ = DenseCall::lengths(of_queries);
    cu_k_ = DenseCall::lengths(of_keys);
    const std::int64_t keys = of_keys.back();
    q = draw(kLongest), k = draw(keys), v = draw(keys);
    out = Tensor(DType::bf16, {kLongest, 1, kDim});
    lse = Tensor(DType::f32, {1, kLongest});
  }

  /// The first row of the sequence's keys.
  static std::int64_t first_key(std::int64_t sequence) { return sequence * (sequence + 1) / 2; }

  void run(const std::string& implementation) {
    ForwardArguments arguments{q.view(), k.view(), v.view(), out.view(), lse.view(), {}};
    arguments.options.layout = Layout::thd;
    arguments.options.cu_seqlens_q = cu_q_.view();
    arguments.options.cu_seqlens_k = cu_k_.view();
    arguments.options.max_seqlen_q = 1;
    arguments.options.max_seqlen_k = kLongest;
    attention_forward(arguments, {implementation});
  }

  Tensor q, k, v, out, lse;

 private:
  Tensor draw(std::int64_t rows) {
    Tensor tensor(DType::bf16, {rows, 1, kDim});
    tensor.fill_with([&](auto) { return rng_.normal(); });
    return tensor;
  }
  verify::Random rng_{3};
  Tensor cu_q_, cu_k_;
};

TEST_P(EmulatedNotANumber, ShowsAtEveryLength) {
  enum { kQuery, kKey, kValue, kInputs };
  for (int input = 0; input < kInputs; ++input) {
    EveryLength call;
    for (std::int64_t n = 0; n < EveryLength::kLongest; ++n) {
      const std::int64_t key = EveryLength::first_key(n) + (n % 3 == 0 ? 0 : n % 3 == 1 ? n : n / 2);
      const double value = n % 2 ? kNan : n % 4 ? kInfinity : -kInfinity;
      if (input == kQuery) call.q.set({n, 0, n % 64}, kNan);
      if (input == kKey) call.k.set({key, 0, n % 64}, kNan);
      if (input == kValue) call.v.set({key, 0, n % 64}, value);
    }
    call.run(GetParam());
    for (std::int64_t n = 0; n < EveryLength::kLongest; ++n) {
      ASSERT_EQ(std::isnan(call.lse.get({0, n})), input != kValue) << n + 1 << " keys";
      ASSERT_EQ(std::isfinite(call.lse.get({0, n})), input == kValue) << n + 1 << " keys";
      for (std::int64_t d = 0; d < EveryLength::kDim; ++d) {
        const double out = call.out.get({n, 0, d});
        ASSERT_EQ(std::isfinite(out), input == kValue && d != n % 64) << n + 1 << " keys: " << out;
        ASSERT_TRUE(input == kValue || std::isnan(out));
      }
    }
  }
}

/// Parts of the keys merge: parts of NaN alone, of NaN among numbers, and parts that see nothing.
TEST_P(EmulatedNotANumber, ShowsWhereKeysAreSplit) {
  for (const double sink : {-kInfinity, 0.5, 300.0}) {
    for (const std::int64_t place : {0, 130, 699}) {
      DenseCall call({.batch = 4, .seqlen_q = 1, .seqlen_k = 700, .dim = 64, .dim_v = 64, .dtype = DType::bf16});
      call.sink = Tensor(DType::f32, {1});
      call.sink.fill(kNan);
      call.forward(GetParam());
      for (const double out : call.out.values()) ASSERT_TRUE(std::isnan(out));
      for (const double lse : call.lse.values()) ASSERT_TRUE(std::isnan(lse));
      call.sink.fill(sink);
      call.q.set({0, 0, 0, 1}, kNan);
      call.k.set({1, place, 0, 1}, kNan);
      call.v.set({2, place, 0, 1}, kNan);
      call.forward(GetParam());
      for (std::int64_t b = 0; b < 4; ++b) {
        ASSERT_EQ(std::isnan(call.lse.get({b, 0, 0})), b < 2);
        for (std::int64_t d = 0; d < 64; ++d)
          ASSERT_EQ(std::isnan(call.out.get({b, 0, 0, d})), b < 2 || (b == 2 && d == 1)) << b << ", " << d;
      }
      call.seqused_k = DenseCall::lengths({0, 0, 0, 0});
      call.forward(GetParam());
      for (const double out : call.out.values()) ASSERT_EQ(out, 0.0);
      for (const double lse : call.lse.values()) ASSERT_EQ(lse, sink);
    }
  }
}

/// Rows that see nothing: within the rounding of a product each with log2(e) and with ln(2).
TEST_P(EmulatedSink, AloneIsTheLogSumExp) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const double sink : {1e-4, 0.0118, -0.7, 3.3, 300.0}) {
      DenseCall call({.seqlen_q = 3, .seqlen_k = 20, .dim = 64, .dim_v = 64, .dtype = dtype});
      call.sink = Tensor(DType::f32, {1});
      call.sink.fill(sink);
      call.seqused_k = DenseCall::lengths({0});
      call.forward(GetParam());
      for (const double lse : call.lse.values()) ASSERT_NEAR(lse, sink, 0x1p-22 * std::abs(sink));
    }
  }
}

TEST_P(EmulatedNotANumber, AFalseBiasHidesIt) {
  DenseCall call({.seqlen_q = 70, .seqlen_k = 90, .dim = 64, .dim_v = 64, .dtype = DType::bf16});
  call.bias = Tensor(DType::boolean, {1, 1, 1, 90});
  call.bias.fill_with([](std::span<const std::int64_t> p) { return p[3] % 9 == 4 ? 0.0 : 1.0; });
  for (const std::int64_t key : {4, 67}) call.k.set({0, key, 0, 2}, key == 4 ? kNan : kInfinity);
  call.forward(GetParam());
  for (const double value : call.lse.values()) ASSERT_TRUE(std::isfinite(value));
  for (const double value : call.out.values()) ASSERT_TRUE(std::isfinite(value));
  call.prepare_backward();
  call.backward(GetParam());
  for (const std::int64_t key : {4, 67}) {
    for (std::int64_t d = 0; d < 64; ++d) {
      ASSERT_EQ(call.dk.get({0, key, 0, d}), 0.0);
      ASSERT_EQ(call.dv.get({0, key, 0, d}), 0.0);
    }
  }
  // The hidden key's own column may reach dq, no other.
  for (std::int64_t i = 0; i < 70; ++i) ASSERT_TRUE(std::isfinite(call.dq.get({0, i, 0, 3})));
}

TEST_P(EmulatedNotANumber, StaysOutOfRowsThatSeeNothing) {
  DenseCall call({.seqlen_q = 100, .seqlen_k = 40, .dim = 64, .dim_v = 64, .dtype = DType::bf16});
  call.options.mask = Mask::causal;  // 60 rows see nothing
  call.prepare_backward();
  for (Tensor* tensor : {&call.q, &call.k, &call.v, &call.dout}) tensor->fill(kNan);
  call.forward(GetParam());
  call.backward(GetParam());
  for (std::int64_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(i < 60 ? call.lse.get({0, 0, i}) == -kInfinity : std::isnan(call.lse.get({0, 0, i}))) << i;
    for (const Tensor* tensor : {&call.out, &call.dq}) {
      for (std::int64_t d = 0; d < 64; ++d) {
        const double value = tensor->get({0, i, 0, d});
        ASSERT_TRUE(i < 60 ? value == 0.0 : std::isnan(value)) << i << ": " << value;
      }
    }
  }
}

/// Tiles repeat the last query: past the end it would see keys that no query does.
TEST_P(EmulatedNotANumber, StaysInAKeyThatNoQuerySees) {
  DenseCall call({.seqlen_q = 70, .seqlen_k = 90, .dim = 64, .dim_v = 64, .dtype = DType::bf16});
  call.options.mask = Mask::causal, call.options.alignment = Alignment::top_left;  // not the last 20 keys
  for (std::int64_t d = 0; d < 64; ++d) {
    call.k.set({0, 80, 0, d}, kNan);
    call.v.set({0, 82, 0, d}, kNan);
  }
  call.prepare_backward();
  call.forward();
  call.backward(GetParam());
  for (std::int64_t key = 70; key < 90; ++key) {
    for (std::int64_t d = 0; d < 64; ++d) {
      ASSERT_EQ(call.dk.get({0, key, 0, d}), 0.0) << key;
      ASSERT_EQ(call.dv.get({0, key, 0, d}), 0.0) << key;
    }
  }
}

TEST_P(EmulatedNotANumber, DrawnForward) { check("attention_forward dtype=bf16 head_dim=64 mask=causal", 12); }

TEST_P(EmulatedNotANumber, DrawnForwardWithEveryOption) {
  check(
      "attention_forward dtype=f16 head_dim=39 head_dim_v=23 mask=causal window_left=20 softcap=5 bias=f32[b,h,q,k] "
      "alibi_slopes=[h] sink=1 dropout_p=0.25 seqused_q=1 seqused_k=1 leftpad_k=1",
      10);
}

TEST_P(EmulatedNotANumber, DrawnBackward) {
  check("attention_backward dtype=bf16 head_dim=23 head_dim_v=39 mask=causal", 12);
}

TEST_P(EmulatedNotANumber, DrawnBackwardWithEveryOption) {
  check(
      "attention_backward dtype=f16 head_dim=32 window_left=30 window_right=9 softcap=5 "
      "bias=query[1,h,q,k] dbias=1 sink=1 dsink=1 dropout_p=0.25 dlse=1",
      8);
}

/// What a rounding that adds to the bits would turn into a number: NaN with a full payload, from a bias in f32.
TEST_P(EmulatedNotANumber, DrawnBackwardWithABiasInF32) {
  check("attention_backward dtype=bf16 head_dim=23 head_dim_v=39 bias=f32[b,1,q,k] dlse=1", 16);
}

TILEWISE_ON_MACHINES(EmulatedNotANumber, "emulation.cdna");
TILEWISE_ON_MACHINES_BY_NIGHT(EmulatedNotANumber, "emulation.sm80", "emulation.rdna");
TILEWISE_ON_MACHINES(EmulatedSink, "emulation.sm80", "emulation.sm90", "emulation.cdna", "emulation.rdna");

}  // namespace
}  // namespace tilewise::test
