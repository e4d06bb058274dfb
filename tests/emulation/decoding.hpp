// Decoding over pages by sequences of any length, as a call of its own memory: for tests of how their keys are
// scheduled.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
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

namespace tilewise::test {

inline bool schedules(const AnyProblem& problem, const std::string& implementation) {
  return plan(problem, {implementation}).schedule().find("scheduled by lengths") != std::string::npos;
}

/// Heads of a call, and pages in which a sequence may have 10,240 keys. dim_v below dim: values are columns of the
/// keys, as in MLA's form, and there is no sink.
struct DecodingForm {
  std::int32_t heads = 2, dim = 32, dim_v = 32, page_size = 16;
};

/// One query on sequences of so many keys; -1: without a cache.
class Decoding {
 public:
  explicit Decoding(std::vector<std::int32_t> lengths, const DecodingForm& form = {}) : lengths_(std::move(lengths)) {
    const auto batch = static_cast<std::int64_t>(lengths_.size());
    const std::int64_t heads = form.heads, dim = form.dim, dim_v = form.dim_v, rows = form.page_size;
    const std::int64_t most_pages = kCapacity / rows;
    const bool mla = dim_v < dim;
    std::int64_t pages = 0;
    table_.resize(static_cast<std::size_t>(batch * most_pages), -1);
    for (std::size_t b = 0; b < lengths_.size(); ++b) {
      for (std::int64_t page = 0; page * rows < lengths_[b]; ++page) {
        table_[b * static_cast<std::size_t>(most_pages) + static_cast<std::size_t>(page)] =
            static_cast<std::int32_t>(pages++);
      }
    }
    fill(q_, batch * heads * dim);
    fill(k_, pages * rows * dim);
    if (!mla) fill(v_, pages * rows * dim_v);
    out_.resize(static_cast<std::size_t>(batch * heads * dim_v));
    lse_.resize(static_cast<std::size_t>(batch * heads));
    arguments_.q = {q_.data(), DType::bf16, {batch, 1, heads, dim}};
    arguments_.out = {out_.data(), DType::bf16, {batch, 1, heads, dim_v}};
    arguments_.softmax_lse = {lse_.data(), DType::f32, {batch, heads, 1}};
    arguments_.k_cache = {k_.data(), DType::bf16, {pages, rows, 1, dim}};
    arguments_.options.block_table = {table_.data(), DType::i32, {batch, most_pages}};
    arguments_.options.cache_seqlens = {lengths_.data(), DType::i32, {batch}};
    if (mla) {
      arguments_.options.head_dim_v = dim_v;
      arguments_.options.softmax_scale = 0.05;
      return;
    }
    arguments_.v_cache = {v_.data(), DType::bf16, {pages, rows, 1, dim_v}};
    for (std::int32_t head = 0; head < form.heads; ++head) sink_.push_back(0.5f - 1.5f * static_cast<float>(head));
    arguments_.options.sink = {sink_.data(), DType::f32, {heads}};
  }

  /// out and its log-sum-exp.
  std::vector<float> run(const std::string& implementation, std::int64_t num_splits = 0) {
    arguments_.options.num_splits = num_splits;
    std::fill(out_.begin(), out_.end(), std::uint16_t{0xFFFF});
    std::fill(lse_.begin(), lse_.end(), std::nanf(""));
    kv_cache_attention(arguments_, {.implementation = implementation});
    std::vector<float> results = lse_;
    for (const std::uint16_t bits : out_) results.push_back(device::bf16_to_float(bits));
    return results;
  }
  /// Whether any bits are others than those of sequences that stay whole.
  bool has_parts(const std::string& implementation) { return run(implementation) != run(implementation, 1); }
  /// Against the reference, and once more for the same bits.
  void check(const std::string& implementation) {
    const std::vector<float> expected = run("reference"), got = run(implementation);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (expected[i] == got[i]) continue;  // infinities, too
      ASSERT_NEAR(got[i], expected[i], 1e-2) << i;
    }
    EXPECT_EQ(got, run(implementation)) << "other bits";
  }
  [[nodiscard]] std::string schedule_of(const std::string& implementation) const {
    return plan(operations::KvCache::describe(operations::KvCache::Call(arguments_)), {implementation}).schedule();
  }
  /// Once the lengths have been checked, others stand there.
  void run_with(const std::vector<std::int32_t>& lies, const std::string& implementation) {
    const operations::kv_cache::Call call(arguments_);
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
  static constexpr std::int64_t kCapacity = 10240;

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

}  // namespace tilewise::test
