// Lengths in device memory that lie: kernels clamp them, so no lane touches memory outside the tensors. The
// emulation's own checks say whether one does.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "../support/emulated_machines.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/call.hpp"
#include "verify/call_tensors.hpp"

namespace tilewise::test {
namespace {

constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max(),
                       kSmallest = std::numeric_limits<std::int32_t>::min();

/// What stands where cu_seqlens (4 entries), seqused and leftpad (3 entries) were, after they were checked.
struct Lie {
  const char* name;
  std::array<std::int32_t, 4> starts;
  std::array<std::int32_t, 3> counts;
};
constexpr std::array<Lie, 5> kLies = {{
    {"far beyond the end", {0, 1000, 100000, kLargest}, {kLargest, 1000, 5}},
    {"negative", {-1, -2, kSmallest, -100}, {-1, kSmallest, -7}},
    {"falling", {90, 60, 30, 0}, {50, 40, 30}},
    {"everything to everyone", {0, 100, 0, 100}, {kLargest, kLargest, kLargest}},
    {"one beyond", {1, 41, 71, 101}, {41, 31, 31}},
}};

class LyingLengths : public testing::TestWithParam<std::string> {
 protected:
  static void check(const std::string& text, const std::string& name = GetParam()) {
    const Problem wanted = parse_problem(text);
    const bool backward = wanted.operation == Operation::attention_backward;
    for (const Lie& lie : kLies) {
      const verify::CallTensors tensors(wanted, 1);
      const std::vector<verify::Output> outputs = tensors.make_outputs(2);
      const ForwardArguments forward = backward ? ForwardArguments{} : tensors.forward_arguments(outputs);
      const BackwardArguments gradients = backward ? tensors.backward_arguments(outputs) : BackwardArguments{};
      const operations::attention::Call call =
          backward ? operations::attention::call_of(gradients) : operations::attention::call_of(forward);
      const Problem problem = operations::attention::describe(call);
      const device::AttentionParams params = operations::attention::make_params(call, problem);
      for (const std::int32_t* starts : {params.cu_seqlens_q, params.cu_seqlens_k})
        if (starts) std::ranges::copy(lie.starts, const_cast<std::int32_t*>(starts));
      for (const std::int32_t* counts : {params.seqused_q, params.seqused_k, params.leftpad_k})
        if (counts) std::ranges::copy(lie.counts, const_cast<std::int32_t*>(counts));
      const auto table = core::implementation_table();
      const auto row = std::ranges::find(table, name, &core::Implementation::name);
      ASSERT_NE(row, table.end());
      const core::Verdict verdict = (*row)->judge_problem(problem, core::describe_cpu());
      ASSERT_TRUE(verdict.accepted()) << verdict.reason;
      const auto& kernel = verdict.kernel;
      kernel->load();
      std::vector<std::max_align_t> workspace(kernel->workspace_size() / sizeof(std::max_align_t) + 16);
      void* aligned = workspace.data();
      std::size_t room = workspace.size() * sizeof(std::max_align_t);
      EXPECT_NO_THROW(kernel->launch_on(&params, std::align(64, kernel->workspace_size(), aligned, room), nullptr))
          << lie.name << ": " << text;
    }
  }
};

TEST_P(LyingLengths, LeadNoLaneOutsideTheTensors) {
  constexpr const char* kPacked = " layout=thd batch_size=3 max_seqlen_q=60 max_seqlen_k=70 total_q=100 total_k=100";
  constexpr const char* kOptions =
      " num_heads_q=2 num_heads_k=1 head_dim=23 seqused_q=1 seqused_k=1 leftpad_k=1 mask=causal bias=f32[b,h,q,k]";
  check(std::string("attention_forward dtype=bf16") + kPacked + kOptions);
  check(std::string("attention_backward dtype=bf16 dbias=1") + kPacked + kOptions);
}

/// Hopper's TMA reads nothing outside a tensor, but lanes store the rows of partial tiles.
class LyingLengthsOfHopper : public LyingLengths {};

TEST_P(LyingLengthsOfHopper, LeadNoLaneOutsideTheTensors) {
  constexpr const char* kOptions = " seqused_q=1 seqused_k=1 leftpad_k=1 mask=causal";
  check(std::string("attention_forward dtype=bf16 layout=thd batch_size=3 max_seqlen_q=60 max_seqlen_k=70 total_q=100 "
                    "total_k=100 num_heads_q=2 num_heads_k=1 head_dim=24 bias=f32[b,h,q,k]") +
        kOptions);
  check(std::string("attention_forward dtype=bf16 layout=thd batch_size=3 max_seqlen_q=20 max_seqlen_k=900 total_q=50 "
                    "total_k=2000 num_heads_q=2 num_heads_k=1 head_dim=64") +
        kOptions);
}

TILEWISE_ON_MACHINES(LyingLengthsOfHopper, "emulation.sm90");

TILEWISE_ON_MACHINES(LyingLengths, "emulation.sm80");
TILEWISE_ON_MACHINES_BY_NIGHT(LyingLengths, "emulation.cdna", "emulation.rdna");

}  // namespace
}  // namespace tilewise::test
