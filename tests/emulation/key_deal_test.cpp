// Decoding over a cache whose sequences differ in length, with parts of the keys dealt out by what the device alone
// knows: every option of the step, sequences from none to all of the capacity, few and many of them, and equal bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/implementation.hpp"
#include "core/select.hpp"
#include "device/common/float16.h"
#include "operations/kv_cache/call.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "tilewise/kv_cache.hpp"
#include "tilewise/plan.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

bool deals(const AnyProblem& problem, const std::string& implementation) {
  return plan(problem, {implementation}).schedule().find("dealt by lengths") != std::string::npos;
}

/// Sequences of so many keys of 32 elements, in pages of 16 with room for 10,240; -1: without a cache.
class Decoding {
 public:
  explicit Decoding(std::vector<std::int32_t> lengths) : lengths_(std::move(lengths)) {
    const auto batch = static_cast<std::int64_t>(lengths_.size());
    std::int64_t pages = 0;
    table_.resize(static_cast<std::size_t>(batch * kPages), -1);
    for (std::size_t b = 0; b < lengths_.size(); ++b) {
      for (std::int32_t page = 0; page * kPageSize < lengths_[b]; ++page) {
        table_[b * kPages + static_cast<std::size_t>(page)] = static_cast<std::int32_t>(pages++);
      }
    }
    fill(q_, batch * kHeads * kDim);
    fill(k_, pages * kPageSize * kDim);
    fill(v_, pages * kPageSize * kDim);
    out_.resize(q_.size());
    lse_.resize(static_cast<std::size_t>(batch * kHeads));
    sink_ = {0.5f, -1.0f};
    arguments_.q = {q_.data(), DType::bf16, {batch, 1, kHeads, kDim}};
    arguments_.out = {out_.data(), DType::bf16, {batch, 1, kHeads, kDim}};
    arguments_.softmax_lse = {lse_.data(), DType::f32, {batch, kHeads, 1}};
    arguments_.k_cache = {k_.data(), DType::bf16, {pages, kPageSize, 1, kDim}};
    arguments_.v_cache = {v_.data(), DType::bf16, {pages, kPageSize, 1, kDim}};
    arguments_.options.block_table = {table_.data(), DType::i32, {batch, kPages}};
    arguments_.options.cache_seqlens = {lengths_.data(), DType::i32, {batch}};
    arguments_.options.sink = {sink_.data(), DType::f32, {kHeads}};
  }

  /// out and its log-sum-exp.
  std::vector<float> run(const std::string& implementation) {
    std::fill(out_.begin(), out_.end(), std::uint16_t{0xFFFF});
    std::fill(lse_.begin(), lse_.end(), std::nanf(""));
    kv_cache_attention(arguments_, {.implementation = implementation});
    std::vector<float> results = lse_;
    for (const std::uint16_t bits : out_) results.push_back(device::bf16_to_float(bits));
    return results;
  }
  /// Once the lengths have been checked, others stand there.
  void run_with(const std::vector<std::int32_t>& lies, const std::string& implementation) {
    const operations::kv_cache::Call call = operations::kv_cache::call_of(arguments_);
    const KvCacheProblem problem = operations::kv_cache::describe(call);
    const operations::kv_cache::KvCacheParams params = operations::kv_cache::make_params(call, problem);
    lengths_ = lies;
    const core::Implementation* row =
        core::find_row(core::implementation_table(), operation_of(&problem), implementation);
    ASSERT_NE(row, nullptr);
    const core::Verdict verdict = row->judge_problem(problem, core::describe_cpu());
    ASSERT_TRUE(verdict.accepted()) << verdict.reason;
    verdict.kernel->load();
    std::vector<std::max_align_t> workspace(verdict.kernel->workspace_size() / sizeof(std::max_align_t) + 16);
    void* aligned = workspace.data();
    std::size_t room = workspace.size() * sizeof(std::max_align_t);
    EXPECT_NO_THROW(
        verdict.kernel->launch_on(&params, std::align(64, verdict.kernel->workspace_size(), aligned, room), nullptr));
  }

 private:
  static constexpr std::int32_t kPageSize = 16, kPages = 640, kHeads = 2, kDim = 32;

  void fill(std::vector<std::uint16_t>& values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      values.push_back(device::float_to_bf16(static_cast<float>(static_cast<std::int32_t>(state_ >> 32)) * 0x1p-30f));
    }
  }

  std::vector<std::int32_t> lengths_, table_;
  std::vector<std::uint16_t> q_, k_, v_, out_;
  std::vector<float> lse_, sink_;
  std::uint64_t state_ = 1;
  KvCacheArguments arguments_;
};

class EmulatedKeyDeal : public testing::TestWithParam<std::string> {
 protected:
  static void check(std::vector<std::int32_t> lengths) {
    Decoding decoding(std::move(lengths));
    const std::vector<float> expected = decoding.run("reference"), got = decoding.run(GetParam());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == got[i]) continue;  // infinities, too
      ASSERT_NEAR(got[i], expected[i], 1e-2) << i;
    }
    EXPECT_EQ(got, decoding.run(GetParam())) << "other bits";
  }
};

TEST_P(EmulatedKeyDeal, SequencesOfAnyLength) {
  check({5100, 3, 0, -1, 700, 33});                         // one has most
  check({3, 700, 0, 10240});                                // the last one
  check({640, 650, 630, 660, 655});                         // equally long, nearly
  check({30, 90, 150, 210, 270, 330, 390, 450, 510, 570});  // one part, two, three
  check({0, 0, -1});                                        // no key at all
  check({1, 1});                                            // fewer tiles than parts
  std::vector<std::int32_t> many(131, 40);                  // several a lane, and combine is told
  many[70] = 2000, many[130] = 0, many[3] = -1;
  check(many);
  check(std::vector<std::int32_t>(90, 100));  // each whole
}

TEST_P(EmulatedKeyDeal, EveryOption) {
  const std::string decode = "kv_cache_attention batch_size=3 cache_seqlens=1 ";
  const std::string pages = "page_size=32 num_pages=900 max_pages_per_seq=300 ";
  for (const std::string& rest : {
           pages + "dtype=bf16 seqlen_q=1 num_heads_q=4 num_heads_k=2 head_dim=64 softmax_lse=1",
           pages + "dtype=f16 seqlen_q=3 num_heads_q=4 num_heads_k=1 head_dim=40 head_dim_v=24 mask=causal sink=1",
           pages +
               "dtype=bf16 seqlen_q=1 num_heads_q=2 head_dim=32 softcap=20 alibi_slopes=[h] append=1 seqlen_k_new=1",
           pages + "dtype=bf16 seqlen_q=2 num_heads_q=8 num_heads_k=2 head_dim=64 append=1 seqlen_k_new=2 rotary=f32 "
                   "rotary_dim=64 mask=causal",
           pages + "dtype=bf16 cache_dtype=fp8_e4m3 scales=token seqlen_q=1 num_heads_q=4 num_heads_k=1 head_dim=64 "
                   "append=1 seqlen_k_new=1",
           pages + "dtype=f16 cache_dtype=fp8_e4m3 scales=head seqlen_q=1 num_heads_q=4 num_heads_k=1 head_dim=128",
           pages + "dtype=bf16 layout=thd total_q=7 max_seqlen_q=4 num_heads_q=4 num_heads_k=2 head_dim=32 mask=causal",
           pages + "dtype=bf16 mla=1 seqlen_q=1 num_heads_q=16 num_heads_k=1 head_dim=576 head_dim_v=512",
           std::string("capacity=9000 dtype=bf16 seqlen_q=1 num_heads_q=2 num_heads_k=1 head_dim=32 cache_leftpad=1 "
                       "cache_batch_idx=1 batch_size_cache=4 window_left=8500 unaligned=1 softmax_lse=1"),
       }) {
    const AnyProblem problem = parse_problem(decode + rest);
    EXPECT_TRUE(deals(problem, GetParam())) << rest;
    const verify::Report report = verify::check_implementation(problem, GetParam(), 1);
    EXPECT_EQ(report.status, verify::Status::passed) << report.to_string();
  }
}

/// Parts are no more than there is room for, whatever lengths say.
TEST_P(EmulatedKeyDeal, LengthsThatLie) {
  constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max(),
                         kLeast = std::numeric_limits<std::int32_t>::min();
  const std::vector<std::vector<std::int32_t>> lies = {
      {kMost, 5, kLeast}, {kMost, kMost, kMost}, {-7, 10241, 10240}, {kLeast, kLeast, kLeast}};
  for (const std::vector<std::int32_t>& lie : lies) Decoding({20, 5, 90}).run_with(lie, GetParam());
}

/// Whoever gives a number of parts, or wants a row's bits to depend on no other, has them so.
TEST_P(EmulatedKeyDeal, WhereThereIsNone) {
  const std::string decode = "kv_cache_attention dtype=bf16 seqlen_q=1 num_heads_q=4 num_heads_k=2 head_dim=64 ";
  EXPECT_TRUE(deals(parse_problem(decode + "batch_size=2 cache_seqlens=1 capacity=10000"), GetParam()));
  for (const char* rest : {"cache_seqlens=1 capacity=10000", "batch_size=2 cache_seqlens=1 capacity=8192",
                           "batch_size=2 capacity=10000", "batch_size=2 cache_seqlens=1 capacity=10000 num_splits=3",
                           "batch_size=2 cache_seqlens=1 capacity=10000 batch_invariant=1",
                           "batch_size=2 cache_seqlens=1 capacity=10000 window_left=900",
                           "batch_size=2000 cache_seqlens=1 capacity=10000"}) {
    EXPECT_FALSE(deals(parse_problem(decode + rest), GetParam())) << rest;
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, EmulatedKeyDeal,
                         testing::Values("emulation.sm80", "emulation.cdna", "emulation.rdna"),
                         [](const auto& info) { return info.param.substr(info.param.find('.') + 1); });

}  // namespace
}  // namespace tilewise::test
