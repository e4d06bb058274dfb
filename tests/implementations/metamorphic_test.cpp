// No option is ever silently ignored: flipping any one of them changes the result, or is refused. Rows that compile
// kernels see every option at once, of which flips change a value that no kernel is specialised on.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>

#include "../support/dense_call.hpp"
#include "implementation_test.hpp"
#include "operations/block_mask.hpp"

namespace tilewise::test {
namespace {

using Change = std::function<void(DenseCall&)>;

struct Flip {
  const char* name;
  Change flip;
  Change base = [](DenseCall&) {};  ///< what must stand before the flip can show
};

Change set_bias(DType dtype, const std::vector<std::int64_t>& shape) {
  return [dtype, shape](DenseCall& call) {
    const DType stored = dtype == DType::none ? call.sizes.dtype : dtype;
    call.bias = Tensor(stored, shape);
    call.bias.fill_with([&](std::span<const std::int64_t> p) {
      const auto code = static_cast<double>((3 * p[0] + 5 * p[1] + 7 * p[2] + 11 * p[3]) % 4);
      return stored == DType::boolean ? (code > 0 ? 1.0 : 0.0) : code - 1.0;
    });
  };
}
void causal(DenseCall& call) { call.options.mask = Mask::causal; }
void dropout(DenseCall& call) {
  call.options.dropout_p = 0.5;
  call.options.seed = 11;
  call.options.offset = 12;
}
void seed_on_device(DenseCall& call) {
  call.options.seed = call.options.offset = 0;
  call.seed_and_offset = Tensor(DType::i64, {2});
  call.seed_and_offset.set_at(0, 99);
  call.seed_and_offset.set_at(1, 12);
}
void sink(DenseCall& call) {
  call.sink = Tensor(DType::f32, {call.sizes.heads_q});
  call.sink.fill(1.0);
}

/// States of blocks of 16 queries and keys: 2 rows of 2.
Change set_block_mask(const std::array<operations::BlockState, 4>& states) {
  return [states](DenseCall& call) {
    call.options.block_rows = call.options.block_keys = 16;
    call.block_mask.clear();
    for (const auto state : {operations::kBlockPartial, operations::kBlockFull}) {
      Tensor counts(DType::i32, {1, 1, 2}), indices(DType::i32, {1, 1, 2, 2});
      counts.fill(0.0), indices.fill(0.0);
      for (std::int64_t row = 0; row < 2; ++row) {
        std::int64_t count = 0;
        for (std::int64_t column = 1; column >= 0; --column)
          if (states[static_cast<std::size_t>(2 * row + column)] == state)
            indices.set({0, 0, row, count++}, static_cast<double>(column));
        counts.set({0, 0, row}, static_cast<double>(count));
      }
      call.block_mask.push_back(counts), call.block_mask.push_back(indices);
    }
  };
}
constexpr auto kHidden = operations::kBlockHidden, kPartial = operations::kBlockPartial, kFull = operations::kBlockFull;
void stripes(DenseCall& call) { call.options.mask_mod = "(kv_idx + h) % 3 < 2"; }

/// Sizes: batch 2, seqlen_q 20, seqlen_k 24, heads 4 on 2, head_dim 16, head_dim_v 16.
std::vector<Flip> flips() {
  return {
      {"mask=causal", causal},
      {"alignment under causal", [](DenseCall& c) { c.options.alignment = Alignment::top_left; }, causal},
      {"alignment under a window", [](DenseCall& c) { c.options.alignment = Alignment::top_left; },
       [](DenseCall& c) { c.options.window_left = 3; }},
      {"alignment under alibi", [](DenseCall& c) { c.options.alignment = Alignment::top_left; },
       [](DenseCall& c) {
         c.alibi_slopes = Tensor(c.statistics(), {4});
         c.alibi_slopes.fill(0.5);
       }},
      {"window_left", [](DenseCall& c) { c.options.window_left = 5; }},
      {"window_right", [](DenseCall& c) { c.options.window_right = 2; }},
      {"window_left by one", [](DenseCall& c) { c.options.window_left = 6; },
       [](DenseCall& c) { c.options.window_left = 5; }},
      {"window_left under causal", [](DenseCall& c) { c.options.window_left = 5; }, causal},
      {"softmax_scale", [](DenseCall& c) { c.options.softmax_scale = 0.3; }},
      {"softmax_scale=0", [](DenseCall& c) { c.options.softmax_scale = 0.0; }},
      {"softmax_scale's sign", [](DenseCall& c) { c.options.softmax_scale = -0.25; },
       [](DenseCall& c) { c.options.softmax_scale = 0.25; }},
      {"softcap", [](DenseCall& c) { c.options.softcap = 1.0; }},
      {"dropout_p", dropout},
      {"dropout_p's value", [](DenseCall& c) { c.options.dropout_p = 0.25; }, dropout},
      {"seed", [](DenseCall& c) { c.options.seed += std::uint64_t{1} << 40; }, dropout},
      {"offset", [](DenseCall& c) { c.options.offset += 1; }, dropout},
      {"offset's high half", [](DenseCall& c) { c.options.offset += std::uint64_t{1} << 40; }, dropout},
      {"seed_and_offset", seed_on_device, dropout},
      {"bias f32", set_bias(DType::f32, {2, 4, 20, 24})},
      {"bias of q's dtype", set_bias(DType::none, {2, 4, 20, 24})},
      {"bias bool", set_bias(DType::boolean, {2, 4, 20, 24})},
      {"bias per batch", set_bias(DType::f32, {2, 1, 1, 24}), set_bias(DType::f32, {1, 1, 1, 24})},
      {"bias per head", set_bias(DType::f32, {1, 4, 1, 24}), set_bias(DType::f32, {1, 1, 1, 24})},
      {"bias per query", set_bias(DType::f32, {1, 1, 20, 24}), set_bias(DType::f32, {1, 1, 1, 24})},
      {"bias per key", set_bias(DType::f32, {1, 1, 20, 24}), set_bias(DType::f32, {1, 1, 20, 1})},
      {"alibi_slopes",
       [](DenseCall& c) {
         c.alibi_slopes = Tensor(c.statistics(), {4});
         c.alibi_slopes.fill(0.5);
       }},
      {"alibi_slopes per batch",
       [](DenseCall& c) {
         c.alibi_slopes = Tensor(c.statistics(), {2, 4});
         c.alibi_slopes.fill_with([](std::span<const std::int64_t> p) { return 0.5 + static_cast<double>(p[0]); });
       },
       [](DenseCall& c) {
         c.alibi_slopes = Tensor(c.statistics(), {4});
         c.alibi_slopes.fill(0.5);
       }},
      {"sink", sink},
      {"sink of q's dtype",
       [](DenseCall& c) {
         c.sink = Tensor(c.sizes.dtype, {4});
         c.sink.fill(1.0);
       }},
      {"sink's value", [](DenseCall& c) { c.sink.set({3}, 2.0); }, sink},
      {"seqused_q", [](DenseCall& c) { c.seqused_q = DenseCall::lengths({20, 13}); }},
      {"seqused_k", [](DenseCall& c) { c.seqused_k = DenseCall::lengths({24, 13}); }},
      {"leftpad_k", [](DenseCall& c) { c.leftpad_k = DenseCall::lengths({0, 3}); }},
      {"score_mod", [](DenseCall& c) { c.options.score_mod = "score * 0.5 + 0.1 * kv_idx"; }},
      {"mask_mod", stripes},
      {"key_indices", [](DenseCall& c) { c.key_indices = DenseCall::indices({2, 20, 1, 5}, 24); }},
      {"key_indices of each head", [](DenseCall& c) { c.key_indices = DenseCall::indices({2, 20, 2, 5}, 24); },
       [](DenseCall& c) { c.key_indices = DenseCall::indices({2, 20, 1, 5}, 24); }},
      {"block_mask", set_block_mask({kPartial, kHidden, kPartial, kPartial})},
      {"block_mask's hidden block", set_block_mask({kPartial, kPartial, kHidden, kPartial}),
       set_block_mask({kPartial, kHidden, kPartial, kPartial})},
      {"block_mask's full block", set_block_mask({kPartial, kPartial, kFull, kPartial}),
       [](DenseCall& c) { stripes(c), set_block_mask({kPartial, kPartial, kPartial, kPartial})(c); }},
      {"score_mod of q_idx", [](DenseCall& c) { c.options.score_mod = "score * (1 + 0.01 * kv_idx * q_idx)"; },
       [](DenseCall& c) { c.options.score_mod = "score * (1 + 0.01 * kv_idx * b)"; }},
      {"leftpad_k beside seqused_k", [](DenseCall& c) { c.leftpad_k = DenseCall::lengths({0, 3}); },
       [](DenseCall& c) { c.seqused_k = DenseCall::lengths({20, 13}); }},
  };
}

/// All that kernels are specialised on, so that no flip below needs another one.
void everything(DenseCall& call) {
  dropout(call), sink(call);
  set_bias(DType::f32, {1, 4, 1, 24})(call);
  call.options.window_left = 12, call.options.window_right = 3;
  call.options.softcap = 4.0;
  call.alibi_slopes = Tensor(DType::f32, {4});
  call.alibi_slopes.fill(0.1);
  call.seqused_k = DenseCall::lengths({24, 24});
}

/// Of a call with everything.
std::vector<Flip> flips_of_values() {
  return {
      {"mask=causal", [](DenseCall& c) { causal(c), c.options.window_right = -1; }},
      {"alignment", [](DenseCall& c) { c.options.alignment = Alignment::top_left; }},
      {"window_left by one", [](DenseCall& c) { c.options.window_left = 11; }},
      {"window_right by one", [](DenseCall& c) { c.options.window_right = 4; }},
      {"softmax_scale", [](DenseCall& c) { c.options.softmax_scale = 0.3; }},
      {"softmax_scale=0", [](DenseCall& c) { c.options.softmax_scale = 0.0; }},
      {"softmax_scale's sign", [](DenseCall& c) { c.options.softmax_scale = -1.0 / std::sqrt(23.0); }},
      {"softcap", [](DenseCall& c) { c.options.softcap = 1.0; }},
      {"dropout_p", [](DenseCall& c) { c.options.dropout_p = 0.25; }},
      {"seed", [](DenseCall& c) { c.options.seed += std::uint64_t{1} << 40; }},
      {"offset", [](DenseCall& c) { c.options.offset += 1; }},
      {"offset's high half", [](DenseCall& c) { c.options.offset += std::uint64_t{1} << 40; }},
      {"seed_and_offset", seed_on_device},
      {"bias", [](DenseCall& c) { c.bias.set({0, 2, 0, 17}, 3.0); }},
      {"bias per batch", set_bias(DType::f32, {2, 4, 1, 24})},
      {"bias for all heads", set_bias(DType::f32, {1, 1, 1, 24})},
      {"bias per query", set_bias(DType::f32, {1, 4, 20, 24})},
      {"bias for all keys of a query", set_bias(DType::f32, {1, 4, 20, 1})},
      {"alibi_slopes", [](DenseCall& c) { c.alibi_slopes.set({1}, 0.7); }},
      {"alibi_slopes per batch",
       [](DenseCall& c) {
         c.alibi_slopes = Tensor(DType::f32, {2, 4});
         c.alibi_slopes.fill_with([](std::span<const std::int64_t> p) { return p[0] == 0 ? 0.1 : 0.9; });
       }},
      {"sink's value", [](DenseCall& c) { c.sink.set({3}, 2.0); }},
      {"seqused_q", [](DenseCall& c) { c.seqused_q = DenseCall::lengths({20, 13}); }},
      {"seqused_k", [](DenseCall& c) { c.seqused_k = DenseCall::lengths({24, 13}); }},
      {"leftpad_k", [](DenseCall& c) { c.leftpad_k = DenseCall::lengths({0, 3}); },
       [](DenseCall& c) { c.seqused_k = DenseCall::lengths({24, 21}); }},
  };
}

std::string differing(const Tensor& a, const Tensor& b) {
  // NaN never compares equal, which would hide a kernel that writes nothing.
  for (const Tensor* t : {&a, &b})
    for (const double value : t->values())
      if (std::isnan(value)) return "nan";
  return a.values() == b.values() ? "" : "different";
}

class Metamorphic : public ImplementationTest {
 protected:
  static DenseCall base_call(DType dtype, std::int64_t head_dim = 16) {
    return DenseCall({.batch = 2,
                      .seqlen_q = 20,
                      .seqlen_k = 24,
                      .heads_q = 4,
                      .heads_k = 2,
                      .dim = head_dim,
                      .dim_v = head_dim,
                      .dtype = dtype});
  }
  /// False where the framework refuses, with a reason.
  bool run(DenseCall& call, bool backward) {
    try {
      call.forward(backward ? "reference" : GetParam());
      if (!backward) return true;
      call.prepare_backward();
      call.backward(GetParam());
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unsupported) << error.what();
      return false;
    }
  }
  void check_forward(const std::vector<Flip>& flips, const std::function<DenseCall()>& base) {
    for (const Flip& flip : flips) {
      DenseCall before = base(), after = base();
      flip.base(before), flip.base(after);
      flip.flip(after);
      if (!run(before, false) || !run(after, false)) continue;
      EXPECT_EQ(differing(before.out, after.out), "different") << to_string(before.sizes.dtype) << ", " << flip.name;
    }
  }
  void check_backward(const std::vector<Flip>& flips, const std::function<DenseCall()>& base) {
    for (const Flip& flip : flips) {
      DenseCall before = base(), after = base();
      flip.base(before), flip.base(after);
      flip.flip(after);
      if (!run(before, true) || !run(after, true)) continue;
      const std::string where = std::string(to_string(before.sizes.dtype)) + ", " + flip.name;
      // Without scores there are no gradients of q and k; elsewhere all three show the option.
      EXPECT_EQ(differing(before.dq, after.dq), "different") << where;
      EXPECT_EQ(differing(before.dk, after.dk), "different") << where;
      EXPECT_EQ(differing(before.dv, after.dv), "different") << where;
    }
  }
  void check_dlse(const std::function<DenseCall()>& base) {
    DenseCall without = base(), with = base();
    sink(without), sink(with);
    if (!run(without, true) || !run(with, true)) return;
    with.dlse = with.normal(with.statistics(), {2, 4, 20});
    with.backward(GetParam());
    EXPECT_EQ(differing(without.dq, with.dq), "different");
    EXPECT_EQ(differing(without.dk, with.dk), "different");
    EXPECT_EQ(differing(without.dsink, with.dsink), "different");
    EXPECT_EQ(differing(without.dv, with.dv), "");
  }
};

TEST_P(Metamorphic, ForwardHonoursEveryOption) {
  for (const DType dtype : dtypes()) check_forward(flips(), [dtype] { return base_call(dtype); });
}

TEST_P(Metamorphic, BackwardHonoursEveryOption) {
  for (const DType dtype : dtypes()) check_backward(flips(), [dtype] { return base_call(dtype); });
}

TEST_P(Metamorphic, BackwardHonoursDlse) {
  for (const DType dtype : dtypes()) check_dlse([dtype] { return base_call(dtype); });
}

TEST_P(Metamorphic, LayoutsAreHonoured) {
  // The same memory read as bshd and as bhsd: sizes agree, meanings differ.
  for (const DType dtype : dtypes()) {
    const auto make = [dtype] {
      return DenseCall({.batch = 2, .seqlen_q = 6, .seqlen_k = 6, .heads_q = 6, .heads_k = 6, .dtype = dtype});
    };
    DenseCall bshd = make(), bhsd = make();
    bhsd.options.layout = Layout::bhsd;
    if (!run(bshd, false) || !run(bhsd, false)) continue;
    EXPECT_EQ(differing(bshd.out, bhsd.out), "different");
  }
}

/// Blocks that are all asked of change nothing, nor do full ones where nothing is hidden.
TEST_P(Metamorphic, BlockMasksThatHideNothingChangeNothing) {
  for (const DType dtype : dtypes()) {
    for (const bool asks : {false, true}) {
      DenseCall without = base_call(dtype), with = base_call(dtype);
      if (asks) stripes(without), stripes(with);
      set_block_mask(asks ? std::array{kPartial, kPartial, kPartial, kPartial}
                          : std::array{kFull, kPartial, kPartial, kFull})(with);
      if (!run(without, true) || !run(with, true)) continue;
      for (const auto& [own, other] : {std::pair(&without.out, &with.out), std::pair(&without.dq, &with.dq),
                                       std::pair(&without.dk, &with.dk), std::pair(&without.dv, &with.dv)})
        EXPECT_EQ(differing(*own, *other), "") << to_string(dtype) << (asks ? ", with a mask_mod" : "");
    }
  }
}

TILEWISE_FOR_EVERY_IMPLEMENTATION(Metamorphic);

class MetamorphicSample : public Metamorphic {
 protected:
  /// No row of 23 elements starts on 16 bytes: one kernel for all.
  [[nodiscard]] DenseCall call() const {
    DenseCall call = base_call(dtypes().front(), 23);
    everything(call);
    return call;
  }
};

TEST_P(MetamorphicSample, ForwardHonoursEveryOption) {
  check_forward(flips_of_values(), [this] { return call(); });
}

TEST_P(MetamorphicSample, BackwardHonoursEveryOption) {
  check_backward(flips_of_values(), [this] { return call(); });
  check_dlse([this] { return call(); });
}

TILEWISE_FOR_EVERY_COMPILED_IMPLEMENTATION(MetamorphicSample);

}  // namespace
}  // namespace tilewise::test
