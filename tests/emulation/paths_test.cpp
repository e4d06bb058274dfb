// Every path through the portable kernels, on each emulated machine: in four layouts and with heads of 32 to 256
// columns. Each case says which path its schedule must name, so that none is left uncovered when schedules change.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "../support/schedule_path.hpp"
#include "tilewise/attention.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

struct Sizes {
  int q, k, batch = 2;
};

/// Lengths and head_dim of a problem; packed ones have a sequence more, and lengths that differ.
std::string sizes(const std::string& layout, int head_dim, Sizes s) {
  const auto text = [](int value) { return std::to_string(value); };
  const std::string dims = " dtype=bf16 layout=" + layout + " head_dim=" + text(head_dim);
  if (layout != "thd")
    return dims + " batch_size=" + text(s.batch) + " seqlen_q=" + text(s.q) + " seqlen_k=" + text(s.k);
  return dims + " batch_size=" + text(s.batch + 1) + " max_seqlen_q=" + text(s.q) + " max_seqlen_k=" + text(s.k) +
         " total_q=" + text(s.q * (s.batch + 1) * 2 / 3) + " total_k=" + text(s.k * (s.batch + 1) * 2 / 3);
}

class Paths : public testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] bool is_nvidia() const { return GetParam() == "emulation.sm80"; }

  /// Runs the problem where its schedule is on the path that `is_meant` knows.
  void check(const std::string& text, const std::function<bool(const SchedulePath&)>& is_meant) const {
    const Problem problem = parse_problem(text);
    const std::string schedule = plan(problem, {GetParam()}).schedule();
    ASSERT_TRUE(is_meant(path_of(schedule))) << "another path: " << schedule << "\n  " << text;
    expect_passed(problem, GetParam(), aligned_seed(false));
  }
  void check_forward(const std::string& text, bool splits, bool heads_packed) const {
    check(text, [=](const SchedulePath& path) {
      return path.kernels.empty() && (path.splits > 1) == splits && path.heads_packed == heads_packed;
    });
  }
  /// `kernels`: of NVIDIA's machine. AMD's have one kernel for dk and dv and one for dq, and split nothing.
  void check_backward(const std::string& text, const std::vector<std::string_view>& kernels, bool splits) const {
    const std::vector<std::string_view> two{words::kBwdDkdv, words::kBwdDq};
    check(text, [&](const SchedulePath& path) {
      const auto& expected = is_nvidia() ? kernels : two;
      return std::ranges::equal(path.kernels, expected) && (path.splits > 1) == (splits && is_nvidia());
    });
  }
};

constexpr int kHeadDims[] = {32, 64, 128, 256};
const std::string kLayouts[] = {"bshd", "sbhd", "bhsd", "thd"};
const std::string kTwoHeadsAGroup = " num_heads_q=4 num_heads_k=2";

TEST_P(Paths, ForwardInEveryLayout) {
  for (const int head_dim : kHeadDims) {
    for (const std::string& layout : kLayouts) {
      if (layout == "thd" && head_dim != 64) continue;  // a kernel of its own
      check_forward("attention_forward mask=causal" + kTwoHeadsAGroup + sizes(layout, head_dim, {70, 90}), false,
                    false);
    }
  }
}

TEST_P(Paths, ForwardSplitOverKeys) {
  check_forward("attention_forward num_heads_q=1" + sizes("sbhd", 64, {70, 400}), true, false);
}

/// Decoding: heads of a group share a tile, and keys are split; every head_dim in another layout.
TEST_P(Paths, DecodingSplitOverKeys) {
  for (std::size_t i = 0; i < std::size(kHeadDims); ++i)
    check_forward("attention_forward num_heads_q=4 num_heads_k=1" + sizes(kLayouts[i], kHeadDims[i], {1, 400, 1}), true,
                  true);
}

/// More parts than one wave combines, with a sink that the last kernel adds.
TEST_P(Paths, DecodingInManySplits) {
  check("attention_forward sink=1 num_heads_q=4 num_heads_k=1" + sizes("bshd", 32, {1, 2000, 1}),
        [](const SchedulePath& path) { return path.splits > 8 && path.heads_packed; });
}

TEST_P(Paths, DecodingWithoutSplits) {
  check_forward("attention_forward mask=causal" + kTwoHeadsAGroup + sizes("bhsd", 128, {3, 60}), false, true);
  check_forward("attention_forward mask=causal" + kTwoHeadsAGroup + sizes("bshd", 128, {60, 60}), false, true);
}

/// Heads of 80 columns, of which a lone wave of RDNA takes 16 keys at a time: half of a group that shares its draws.
TEST_P(Paths, DecodingWithDropout) {
  check("attention_forward dropout_p=0.3" + kTwoHeadsAGroup + sizes("bshd", 80, {3, 100}),
        [](const SchedulePath& path) { return path.kernels.empty() && path.heads_packed; });
}

TEST_P(Paths, BackwardInEveryLayout) {
  for (const int head_dim : kHeadDims) {
    for (const std::string& layout : kLayouts) {
      if (layout == "thd" && head_dim != 32) continue;
      check_backward("attention_backward mask=causal" + kTwoHeadsAGroup + sizes(layout, head_dim, {70, 90}),
                     {words::kBwd}, false);
    }
  }
}

TEST_P(Paths, DeterministicBackward) {
  for (const int head_dim : {64, 256})
    check_backward(
        "attention_backward deterministic=1 mask=causal" + kTwoHeadsAGroup + sizes("bhsd", head_dim, {70, 90}),
        {words::kBwd, words::kBwdDq}, false);
}

TEST_P(Paths, BackwardSplitOverQueries) {
  for (const int head_dim : {64, 128})
    check_backward("attention_backward mask=causal num_heads_q=2 num_heads_k=1" + sizes("sbhd", head_dim, {600, 60}),
                   {words::kBwd}, true);
}

TEST_P(Paths, DeterministicBackwardSplitOverQueries) {
  check_backward(
      "attention_backward deterministic=1 mask=causal num_heads_q=2 num_heads_k=1" + sizes("bshd", 64, {600, 60}),
      {words::kBwd, words::kBwdDq}, true);
}

/// Many queries on CDNA: tiles through registers at head_dim 96, keys copied at 64 and 128, values too at 256; of few
/// keys and many, whole, causal and padded.
TEST_P(Paths, ForwardWithStaggeredWaves) {
  if (GetParam() != "emulation.cdna") GTEST_SKIP() << "other machines have no such kernel";
  const auto is_staggered = [](const SchedulePath& path) { return path.staggered; };
  const std::string forward = "attention_forward num_heads_q=2";
  check(forward + sizes("bshd", 64, {520, 200, 1}), is_staggered);
  check(forward + sizes("bshd", 96, {520, 200, 1}), is_staggered);
  check(forward + " mask=causal num_heads_k=1" + sizes("sbhd", 64, {520, 520, 1}), is_staggered);
  check(forward + " seqused_k=1 leftpad_k=1" + sizes("bhsd", 128, {520, 150, 1}), is_staggered);
  check(forward + " mask=causal sink=1" + sizes("bshd", 120, {520, 300, 1}), is_staggered);
  check(forward + " window_left=64 window_right=0" + sizes("thd", 128, {600, 600, 1}), is_staggered);
  check(forward + sizes("bshd", 128, {520, 1, 1}), is_staggered);
  check(forward + sizes("bshd", 256, {520, 130, 1}), is_staggered);
}

TILEWISE_ON_MACHINES(Paths, "emulation.cdna");
TILEWISE_ON_MACHINES_BY_NIGHT(Paths, "emulation.sm80", "emulation.rdna");

}  // namespace
}  // namespace tilewise::test
