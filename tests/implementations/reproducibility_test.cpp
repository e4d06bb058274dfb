// Bit for bit: the same call again, on any number of threads, beside other callers, and a sequence
// alone or among others.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <iomanip>
#include <memory>
#include <sstream>
#include <thread>

#include "../support/dense_call.hpp"
#include "implementation_test.hpp"
#include "operations/attention/rules.hpp"
#include "verify/call_tensors.hpp"
#include "verify/compare.hpp"

namespace tilewise::test {
namespace {

using verify::CallTensors;
using verify::Output;

class Reproducibility : public ImplementationTest {
 protected:
  /// Outputs of one run on that many threads.
  [[nodiscard]] std::vector<Output> run(const CallTensors& tensors, int num_threads) const {
    set_num_threads(num_threads);
    std::vector<Output> outputs = tensors.make_outputs(1);
    run_into(tensors, outputs);
    return outputs;
  }
  void run_into(const CallTensors& tensors, const std::vector<Output>& outputs) const {
    if (const DeviceType device = implementation().device(); device != DeviceType::cpu) {
      verify::DeviceRun(tensors, outputs, GetParam(), {device, 0}).run();
    } else {
      tensors.run(tensors.plan(GetParam(), outputs), outputs);
    }
  }
  /// out, lse, dk and dv always; the others where the problem asks for determinism.
  static void expect_same(const Problem& problem, const std::vector<Output>& a, const std::vector<Output>& b,
                          const std::string& what) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const bool always = a[i].name != "dq" && a[i].name != "dbias" && a[i].name != "dsink";
      if (!always && !problem.deterministic) continue;
      EXPECT_EQ(verify::find_bit_difference(a[i], b[i]), "") << what << "; " << to_string(problem);
    }
  }
  /// A problem of this implementation, large enough for several threads.
  [[nodiscard]] Problem draw(std::uint64_t seed) const {
    return verify::random_problem(seed, {.features = supported_features(), .max_flops = 4e7});
  }
  void check_threads(const Problem& problem, std::uint64_t seed) const {
    const CallTensors tensors(problem, seed);
    const std::vector<Output> first = run(tensors, 1);
    expect_same(problem, first, run(tensors, 1), "second run");
    for (const int threads : {2, 3, 5})
      expect_same(problem, first, run(tensors, threads), std::to_string(threads) + " threads");
  }
  void check_callers(const Problem& problem, std::uint64_t seed) const {
    const CallTensors tensors(problem, seed);
    const std::vector<Output> expected = run(tensors, 2);
    std::atomic<int> different = 0;
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back([&] {
        for (int repeat = 0; repeat < 8; ++repeat) {
          const std::vector<Output> outputs = tensors.make_outputs(1);
          run_into(tensors, outputs);
          for (std::size_t i = 0; i < outputs.size(); ++i)
            different += !verify::find_bit_difference(outputs[i], expected[i]).empty();
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(different, 0);
  }
};

TEST_P(Reproducibility, RunsAndThreadCounts) {
  for (std::uint64_t seed = seed_base(); seed < seed_base() + 16; ++seed) {
    Problem problem = draw(seed);
    problem.deterministic = problem.operation == Operation::attention_backward && seed % 2 == 0;
    check_threads(problem, seed);
  }
}

TEST_P(Reproducibility, ConcurrentCallers) {
  check_callers(
      parse_problem("attention_forward dtype=" + std::string(to_string(dtypes().front())) +
                    " batch_size=2 seqlen_q=150 seqlen_k=200 num_heads_q=4 num_heads_k=2 head_dim=64 mask=causal"),
      5);
}

/// The kernels of tests/emulation/paths_test.cpp.
class ReproducibilitySample : public Reproducibility {
 protected:
  static std::uint64_t aligned_seed() {
    std::uint64_t seed = 0;
    while (!verify::draws_aligned_rows(seed)) ++seed;
    return seed;
  }
};

TEST_P(ReproducibilitySample, RunsAndThreadCounts) {
  for (const char* text :
       {"attention_forward batch_size=2 seqlen_q=70 seqlen_k=90 num_heads_q=4 num_heads_k=2 mask=causal",
        "attention_forward seqlen_q=70 seqlen_k=400 num_heads_q=2",
        "attention_forward seqlen_q=1 seqlen_k=2000 num_heads_q=4",
        "attention_backward batch_size=2 seqlen_q=70 seqlen_k=90 num_heads_q=4 num_heads_k=2 mask=causal",
        "attention_backward seqlen_q=70 seqlen_k=90 num_heads_q=4 num_heads_k=2 mask=causal deterministic=1",
        "attention_backward seqlen_q=600 seqlen_k=60 num_heads_q=2 mask=causal deterministic=1"})
    check_threads(parse_problem(std::string(text) + " dtype=bf16 head_dim=64"), aligned_seed());
}

TEST_P(ReproducibilitySample, ConcurrentCallers) {
  check_callers(
      parse_problem("attention_forward dtype=bf16 seqlen_q=70 seqlen_k=90 num_heads_q=2 head_dim=64 mask=causal"),
      aligned_seed());
}

/// Packed sequences, each also run alone, under options that every sequence sees the same way.
class BatchInvariance : public ImplementationTest {
 protected:
  struct Packed {
    std::vector<std::int64_t> q_lengths, k_lengths;
    Tensor q, k, v, out, lse, dout, dq, dk, dv, cu_q, cu_k, slopes;
    AttentionOptions options;
  };
  static constexpr std::int64_t kHeadsQ = 4, kHeadsK = 2, kDim = 40, kDimV = 24;

  static Packed pack(DType dtype, const std::vector<std::int64_t>& q_lengths,
                     const std::vector<std::int64_t>& k_lengths) {
    Packed p;
    p.q_lengths = q_lengths;
    p.k_lengths = k_lengths;
    const auto starts = [](const std::vector<std::int64_t>& lengths) {
      std::vector<std::int64_t> cu{0};
      for (const std::int64_t length : lengths) cu.push_back(cu.back() + length);
      return cu;
    };
    p.cu_q = DenseCall::lengths(starts(q_lengths));
    p.cu_k = DenseCall::lengths(starts(k_lengths));
    const std::int64_t total_q = starts(q_lengths).back(), total_k = starts(k_lengths).back();
    p.q = Tensor(dtype, {total_q, kHeadsQ, kDim}), p.dq = Tensor(dtype, {total_q, kHeadsQ, kDim});
    p.k = Tensor(dtype, {total_k, kHeadsK, kDim}), p.dk = Tensor(dtype, {total_k, kHeadsK, kDim});
    p.v = Tensor(dtype, {total_k, kHeadsK, kDimV}), p.dv = Tensor(dtype, {total_k, kHeadsK, kDimV});
    p.out = Tensor(dtype, {total_q, kHeadsQ, kDimV}), p.dout = Tensor(dtype, {total_q, kHeadsQ, kDimV});
    p.lse = Tensor(operations::statistics_dtype(dtype), {kHeadsQ, total_q});
    p.slopes = Tensor(operations::statistics_dtype(dtype), {kHeadsQ});
    p.slopes.fill(0.03);
    p.options.layout = Layout::thd;
    p.options.cu_seqlens_q = p.cu_q.view();
    p.options.cu_seqlens_k = p.cu_k.view();
    p.options.max_seqlen_q = *std::ranges::max_element(q_lengths);
    p.options.max_seqlen_k = *std::ranges::max_element(k_lengths);
    p.options.batch_invariant = true;
    p.options.deterministic = true;
    return p;
  }
  /// Sequence `b` of `all`, alone.
  static Packed alone(const Packed& all, std::size_t b) {
    Packed one = pack(all.q.view().dtype, {all.q_lengths[b]}, {all.k_lengths[b]});
    const auto slice = [b](const Tensor& from, const Tensor& cu) {
      const auto first = static_cast<std::int64_t>(cu.at(static_cast<std::int64_t>(b)));
      return [&from, first](std::span<const std::int64_t> p) { return from.get({first + p[0], p[1], p[2]}); };
    };
    one.q.fill_with(slice(all.q, all.cu_q));
    one.dout.fill_with(slice(all.dout, all.cu_q));
    one.k.fill_with(slice(all.k, all.cu_k));
    one.v.fill_with(slice(all.v, all.cu_k));
    one.options.mask = all.options.mask;
    one.options.window_left = all.options.window_left;
    one.options.softcap = all.options.softcap;
    one.options.alibi_slopes = all.options.alibi_slopes;
    return one;
  }
  void run(Packed& p) const {
    const ForwardArguments f{p.q.view(), p.k.view(), p.v.view(), p.out.view(), p.lse.view(), p.options};
    BackwardArguments a;
    a.dout = p.dout.view();
    a.q = p.q.view(), a.k = p.k.view(), a.v = p.v.view(), a.out = p.out.view(), a.softmax_lse = p.lse.view();
    a.dq = p.dq.view(), a.dk = p.dk.view(), a.dv = p.dv.view();
    a.options = p.options;
    if (const DeviceType device = implementation().device(); device != DeviceType::cpu) {
      std::vector<std::span<std::byte>> memory;
      for (const Tensor* t :
           {&p.q, &p.k, &p.v, &p.out, &p.lse, &p.dout, &p.dq, &p.dk, &p.dv, &p.cu_q, &p.cu_k, &p.slopes})
        memory.push_back(t->bytes());
      verify::DeviceRun(f, memory, GetParam(), {device, 0}).run();
      verify::DeviceRun(a, memory, GetParam(), {device, 0}).run();
    } else {
      attention_forward(f, {GetParam()});
      attention_backward(a, {GetParam()});
    }
  }
  /// Empty, or the first element of one sequence that differs, and how many do.
  static std::string difference(const Tensor& all, const Tensor& one, std::int64_t first, std::size_t row_axis) {
    int count = 0;
    std::ostringstream text;
    verify::for_each_element(one.view(), [&](std::span<const std::int64_t> p, std::int64_t offset) {
      std::vector<std::int64_t> position(p.begin(), p.end());
      position[row_axis] += first;
      const std::int64_t other = verify::offset_of(all.view(), position);
      if (verify::bits_at(all.view(), other) == verify::bits_at(one.view(), offset)) return;
      if (count++ == 0) {
        text << "row " << p[row_axis] << ": " << std::setprecision(9) << verify::value_at(all.view(), other)
             << " in the batch, " << verify::value_at(one.view(), offset) << " alone";
      }
    });
    if (count > 0) text << "; " << count << " elements differ";
    return text.str();
  }
  void check(DType dtype, const std::function<void(Packed&)>& set, const std::string& name) const {
    Packed all = pack(dtype, {1, 33, 90, 3, 0, 64, 1}, {700, 33, 1100, 0, 5, 190, 1});
    verify::Random rng(8);
    for (Tensor* tensor : {&all.q, &all.k, &all.v, &all.dout}) tensor->fill_with([&](auto) { return rng.normal(); });
    set(all);
    run(all);
    for (std::size_t b = 0; b < all.q_lengths.size(); ++b) {
      Packed one = alone(all, b);
      run(one);
      const auto first_q = static_cast<std::int64_t>(all.cu_q.at(static_cast<std::int64_t>(b)));
      const auto first_k = static_cast<std::int64_t>(all.cu_k.at(static_cast<std::int64_t>(b)));
      const std::string where = std::string(to_string(dtype)) + ", " + name + ", sequence " + std::to_string(b);
      EXPECT_EQ(difference(all.out, one.out, first_q, 0), "") << "out, " << where;
      EXPECT_EQ(difference(all.lse, one.lse, first_q, 1), "") << "lse, " << where;
      EXPECT_EQ(difference(all.dq, one.dq, first_q, 0), "") << "dq, " << where;
      EXPECT_EQ(difference(all.dk, one.dk, first_k, 0), "") << "dk, " << where;
      EXPECT_EQ(difference(all.dv, one.dv, first_k, 0), "") << "dv, " << where;
    }
  }
};

TEST_P(BatchInvariance, ASequenceAloneEqualsTheSameInABatch) {
  for (const DType dtype : dtypes()) {
    check(dtype, [](Packed&) {}, "plain");
    check(dtype, [](Packed& p) { p.options.mask = Mask::causal; }, "causal");
    check(dtype, [](Packed& p) { p.options.window_left = 37; }, "window");
    check(
        dtype,
        [](Packed& p) {
          p.options.alibi_slopes = p.slopes.view();
          p.options.softcap = 3.0;
        },
        "alibi and softcap");
  }
}

class BatchInvarianceSample : public BatchInvariance {};

TEST_P(BatchInvarianceSample, ASequenceAloneEqualsTheSameInABatch) {
  check(dtypes().front(), [](Packed& p) { p.options.mask = Mask::causal; }, "causal");
}

TILEWISE_FOR_EVERY_IMPLEMENTATION(Reproducibility);
TILEWISE_FOR_EVERY_OTHER_IMPLEMENTATION(BatchInvariance);
TILEWISE_FOR_EVERY_COMPILED_IMPLEMENTATION(ReproducibilitySample);
TILEWISE_FOR_EVERY_COMPILED_IMPLEMENTATION(BatchInvarianceSample);

}  // namespace
}  // namespace tilewise::test
