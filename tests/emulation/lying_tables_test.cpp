// Lengths, tables and slots of a KV cache call that lie: kernels clamp what they read and drop what they would write
// elsewhere, so no lane touches memory outside the tensors, and what is appended nowhere changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../support/emulated_machines.hpp"
#include "operations/kv_cache/kv_cache.hpp"

namespace tilewise::test {
namespace {

using operations::kv_cache::KvCacheParams;

constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max(),
                       kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kHeads = 2, kDim = 16, kPages = 6, kPageSize = 4, kMaxPages = 3, kCapacity = 12;
constexpr std::uint16_t kOne = 0x3F80;  // in bf16

/// A call of two sequences of two new keys each, on memory that the test looks at.
class Step {
 public:
  explicit Step(bool paged) : paged_(paged) {
    q_.assign(2 * 2 * kHeads * kDim, kOne);
    k_ = v_ = out_ = q_;
    const std::int64_t rows = paged ? kPages * kPageSize : 2 * kCapacity;
    k_cache_.assign(static_cast<std::size_t>(rows * kHeads * kDim), 0);
    v_cache_ = k_cache_;
  }

  std::vector<std::int32_t> cache_seqlens{3, 4}, cache_batch_idx{0, 1}, block_table{0, 1, 2, 3, 4, 5};
  std::vector<std::int64_t> slots;                           // of append_kv alone
  std::vector<std::int32_t> cache_leftpad, rotary_seqlens;   // left out where empty
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k_new;  // the rows are packed where these are given

  void run(const std::string& implementation) {
    const std::string places =
        paged_ ? " page_size=4 num_pages=6 max_pages_per_seq=3" : " capacity=12 cache_batch_idx=1";
    const bool alone = !slots.empty();
    const std::string text = alone ? "append_kv dtype=bf16 batch_size=2 seqlen_k_new=2 num_heads_k=2 head_dim=16 "
                                     "slots=i64 page_size=4 num_pages=6"
                                   : "kv_cache_attention dtype=bf16 batch_size=2 num_heads_q=2 num_heads_k=2 "
                                     "head_dim=16 append=1 cache_seqlens=1 mask=causal num_splits=2" +
                                         rows() + places + options();
    const KvCacheProblem problem = parse_problem(text);
    const KvCacheParams params = params_of(problem);
    const auto table = core::implementation_table();
    const auto row = std::ranges::find_if(table, [&](const core::Implementation* candidate) {
      return candidate->name() == implementation && &candidate->operation() == operation_of(&problem);
    });
    ASSERT_NE(row, table.end());
    const core::Verdict verdict = (*row)->judge_problem(problem, core::describe_cpu());
    ASSERT_TRUE(verdict.accepted()) << verdict.reason;
    verdict.kernel->load();
    std::vector<std::max_align_t> workspace(verdict.kernel->workspace_size() / sizeof(std::max_align_t) + 16);
    void* aligned = workspace.data();
    std::size_t room = workspace.size() * sizeof(std::max_align_t);
    verdict.kernel->launch_on(&params, std::align(64, verdict.kernel->workspace_size(), aligned, room), nullptr);
  }

  /// Tokens and heads that were written, of those that are not 0.
  [[nodiscard]] std::int64_t written() const {
    const auto ones = std::ranges::count(k_cache_, kOne);
    EXPECT_EQ(ones, std::ranges::count(v_cache_, kOne));
    return ones / kDim;
  }

 private:
  [[nodiscard]] std::string rows() const {
    return cu_seqlens_q.empty() ? " seqlen_q=2 seqlen_k_new=2"
                                : " layout=thd max_seqlen_q=2 total_q=4 max_seqlen_k_new=2 total_k_new=4";
  }
  [[nodiscard]] std::string options() const {
    return std::string(cache_leftpad.empty() ? "" : " cache_leftpad=1") +
           (rotary_seqlens.empty() ? "" : " rotary_dim=16 rotary=f32 rotary_seqlens=1");
  }

  static const core::OperationInterface* operation_of(const KvCacheProblem* tag) {
    return &tilewise::operation_of(tag);
  }

  KvCacheParams params_of(const KvCacheProblem& problem) {
    KvCacheParams p{};
    p.batch_size = 2;
    p.seqlen_q = slots.empty() ? 2 : 0;
    p.seqlen_k_new = 2;
    p.num_heads_q = p.num_heads_k = kHeads;
    p.head_dim = p.head_dim_v = kDim;
    p.cache_rows = paged_ ? kPages : 2;
    p.row_places = paged_ ? kPageSize : kCapacity;
    p.max_pages_per_seq = slots.empty() && paged_ ? kMaxPages : 0;
    p.attends = slots.empty();
    p.append = true;
    p.paged = paged_;
    p.dtype = p.cache_dtype = DType::bf16;
    const std::int64_t token = kHeads * kDim;
    const device::Tensor4 rows{nullptr, 2 * token, token, kDim};
    p.q = p.k = p.v = p.out = rows;
    p.q.data = q_.data(), p.k.data = k_.data(), p.v.data = v_.data(), p.out.data = out_.data();
    p.k_cache = p.v_cache = {nullptr, p.row_places * token, token, kDim};
    p.k_cache.data = k_cache_.data(), p.v_cache.data = v_cache_.data();
    if (slots.empty()) {
      p.cache_seqlens = cache_seqlens.data();
    } else {
      p.slots = slots.data(), p.slots_i64 = true, p.slots_batch_stride = 2, p.slots_stride = 1;
    }
    if (paged_ && slots.empty()) p.block_table = block_table.data(), p.block_table_stride = kMaxPages;
    if (!paged_) p.cache_batch_idx = cache_batch_idx.data();
    if (!cache_leftpad.empty()) p.cache_leftpad = cache_leftpad.data();
    if (!rotary_seqlens.empty()) {
      p.rotary_seqlens = rotary_seqlens.data();
      p.rotary = {cos_.data(), sin_.data(), kDim / 2, kDim / 2, kRotaryRows, kDim, 0, DType::f32, false};
    }
    if (!cu_seqlens_q.empty()) {
      p.packed = true;
      p.total_q = p.total_k_new = 4;
      p.cu_seqlens_q = cu_seqlens_q.data(), p.cu_seqlens_k_new = cu_seqlens_k_new.data();
      for (device::Tensor4* t : {&p.q, &p.k, &p.v, &p.out}) t->batch_stride = 0;
    }
    p.window_left = -1, p.window_right = 0;
    p.softmax_scale = static_cast<float>(problem.softmax_scale);
    p.num_splits = problem.num_splits;
    return p;
  }

  static constexpr std::int64_t kRotaryRows = 3;
  bool paged_;
  std::vector<float> cos_ = std::vector<float>(kRotaryRows * kDim / 2, 1.0f);  // no angle: what is rotated stays
  std::vector<float> sin_ = std::vector<float>(kRotaryRows * kDim / 2, 0.0f);
  std::vector<std::uint16_t> q_, k_, v_, out_, k_cache_, v_cache_;
};

class LyingTables : public testing::TestWithParam<std::string> {};

TEST_P(LyingTables, TheTruthIsAppended) {
  Step paged(true), contiguous(false);
  paged.run(GetParam());
  contiguous.run(GetParam());
  EXPECT_EQ(paged.written(), 4 * kHeads);
  EXPECT_EQ(contiguous.written(), 4 * kHeads);
}

TEST_P(LyingTables, LengthsBeyondTheCacheAppendNothing) {
  for (const std::int32_t length : {kMost, 12, 11}) {
    for (const bool paged : {true, false}) {
      Step step(paged);
      step.cache_seqlens[1] = length;
      EXPECT_NO_THROW(step.run(GetParam())) << length;
      EXPECT_EQ(step.written(), (length == 11 ? 3 : 2) * kHeads) << length;
    }
  }
  for (const std::int32_t length : {-1, kLeast}) {
    Step step(true);
    step.cache_seqlens[0] = length;
    EXPECT_NO_THROW(step.run(GetParam()));
    EXPECT_EQ(step.written(), 2 * kHeads);
  }
}

TEST_P(LyingTables, PagesThatAreNotThereAreNotWritten) {
  for (const std::int32_t page : {-1, 6, kMost, kLeast}) {
    Step step(true);
    step.block_table = {page, page, page, 3, 4, page};
    EXPECT_NO_THROW(step.run(GetParam())) << page;
    EXPECT_EQ(step.written(), 2 * kHeads) << page;
  }
}

TEST_P(LyingTables, SequencesThatAreNotThereAreNotWritten) {
  for (const std::int32_t row : {-1, 2, kMost, kLeast}) {
    Step step(false);
    step.cache_batch_idx = {row, 0};
    EXPECT_NO_THROW(step.run(GetParam())) << row;
    EXPECT_EQ(step.written(), 2 * kHeads) << row;
  }
}

TEST_P(LyingTables, SlotsThatAreNotThereAreNotWritten) {
  Step step(true);
  step.slots = {-1, 24, std::numeric_limits<std::int64_t>::max(), 23};
  EXPECT_NO_THROW(step.run(GetParam()));
  EXPECT_EQ(step.written(), kHeads);
}

TEST_P(LyingTables, PaddingBeyondTheSequenceHidesItAndNoMore) {
  for (const std::int32_t pad : {kMost, 13, 6, kLeast, -1}) {
    Step step(false);
    step.cache_leftpad = {pad, 0};
    EXPECT_NO_THROW(step.run(GetParam())) << pad;
    EXPECT_EQ(step.written(), 4 * kHeads) << pad;
  }
}

/// The tables have three rows: the nearest one is read.
TEST_P(LyingTables, PositionsOutsideTheTablesAreNotRead) {
  for (const std::int32_t position : {kMost, 3, 2, -1, kLeast}) {
    for (const bool paged : {true, false}) {
      Step step(paged);
      step.rotary_seqlens = {position, 0};
      EXPECT_NO_THROW(step.run(GetParam())) << position;
      EXPECT_EQ(step.written(), 4 * kHeads) << position;
    }
  }
}

TEST_P(LyingTables, RowsOfNoSequenceAreNotWritten) {
  using Starts = std::vector<std::int32_t>;
  for (const auto& [starts, written] : {std::pair{Starts{0, 2, 4}, std::int64_t{4}},
                                        {Starts{0, 2, kMost}, 4},
                                        {Starts{0, 1, 2}, 2},
                                        {Starts{0, kMost, kLeast}, 2},
                                        {Starts{0, 4, 1}, 2},
                                        {Starts{5, 9, 100}, 0},
                                        {Starts{kMost, kMost, kMost}, 0}}) {
    Step step(true);
    step.cu_seqlens_q = step.cu_seqlens_k_new = starts;
    EXPECT_NO_THROW(step.run(GetParam())) << starts[1] << ", " << starts[2];
    EXPECT_EQ(step.written(), written * kHeads) << starts[1] << ", " << starts[2];
  }
  for (const Starts& starts : {Starts{kLeast, 0, kMost}, {-7, 3, -3}}) {
    Step step(true);
    step.cu_seqlens_q = step.cu_seqlens_k_new = starts;
    EXPECT_NO_THROW(step.run(GetParam())) << starts[0];
    EXPECT_LE(step.written(), 4 * kHeads) << starts[0];
  }
}

TILEWISE_ON_MACHINES(LyingTables, "emulation.rdna");
TILEWISE_ON_MACHINES_BY_NIGHT(LyingTables, "emulation.sm80", "emulation.cdna");

}  // namespace
}  // namespace tilewise::test
