// Running: the plan must fit the tensors, the workspace must be aligned, and no call allocates
// once it is known.
#include <array>
#include <cstdlib>
#include <new>

#include "core/plan.hpp"
#include "operations/attention/attention.hpp"
#include "support.hpp"

namespace {
thread_local int allocations = 0;

void* count_and_allocate(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
}  // namespace

// This program counts what it allocates. The aligned forms (workspaces) stay the library's.
void* operator new(std::size_t size) { return count_and_allocate(size); }
void* operator new[](std::size_t size) { return count_and_allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace tilewise {
namespace {

using test::expect_invalid;
using test::SmallCall;

/// Remembers what it was launched with.
struct Launch {
  int count = 0;
  const void* q = nullptr;
  void* workspace = nullptr;
};

class RecordingKernel : public operations::attention::Kernel {
 public:
  RecordingKernel(Launch& launch, std::size_t workspace_size) : launch_(launch), workspace_size_(workspace_size) {}
  std::size_t workspace_size() const noexcept override { return workspace_size_; }
  std::string schedule() const override { return "recorded"; }
  void launch(const device::AttentionParams& params, void* workspace, void*) const override {
    ++launch_.count;
    launch_.q = params.q.data;
    launch_.workspace = workspace;
    if (workspace_size_ > 0) std::fill_n(static_cast<char*>(workspace), workspace_size_, '\x55');
  }

 private:
  Launch& launch_;
  std::size_t workspace_size_;
};

Plan recording_plan(const Problem& problem, Launch& launch, std::size_t workspace_size) {
  static const test::FakeImplementation fake("fake", operations::attention::FeatureSet::all(), 1.0);
  return Plan(std::make_shared<const Plan::State>(
      Plan::State{problem, &fake, std::make_unique<RecordingKernel>(launch, workspace_size)}));
}

TEST(Run, LaunchesWithAnAlignedWorkspace) {
  SmallCall call;
  Launch launch;
  for (const std::size_t size : {std::size_t{1000}, std::size_t{64}, std::size_t{5000}, std::size_t{128} << 20}) {
    run(recording_plan(describe(call.forward), launch, size), call.forward);
    EXPECT_NE(launch.workspace, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(launch.workspace) % 64, 0u);
    EXPECT_EQ(launch.q, call.forward.q.data);
  }
  run(recording_plan(describe(call.backward), launch, 0), call.backward);
  EXPECT_EQ(launch.workspace, nullptr);
  EXPECT_EQ(launch.count, 5);
}

TEST(Run, KeepsItsWorkspaceForTheNextCall) {
  SmallCall call;
  Launch launch;
  const Plan plan = recording_plan(describe(call.forward), launch, 4096);
  run(plan, call.forward);
  const void* first = launch.workspace;
  run(plan, call.forward);
  EXPECT_EQ(launch.workspace, first);
}

TEST(Run, AllocatesNothingOnceKnown) {
  for (const SmallCall& call : {SmallCall(), SmallCall::packed()}) {
    Launch launch;
    const Plan plan = recording_plan(describe(call.forward), launch, 4096);
    run(plan, call.forward);
    (void)core::find_plan(plan.problem(), core::Overrides{});
    const int before = allocations;
    run(plan, call.forward);
    (void)core::find_plan(describe(call.forward), core::Overrides{});
    EXPECT_EQ(allocations, before);
  }
}

TEST(Run, TakesTheCallersWorkspace) {
  SmallCall call;
  Launch launch;
  const Plan plan = recording_plan(describe(call.forward), launch, 64);
  alignas(64) std::array<char, 128> workspace;
  run(plan, call.forward, workspace.data());
  EXPECT_EQ(launch.workspace, workspace.data());
  expect_invalid("workspace: must be aligned to 64 bytes (got an address 8 past it)",
                 [&] { run(plan, call.forward, workspace.data() + 8); });
  expect_invalid("stream: must be null on the cpu (got one)",
                 [&] { run(plan, call.forward, nullptr, workspace.data()); });
  EXPECT_EQ(launch.count, 1);
}

TEST(Run, ThePlanMustBeForTheseTensors) {
  SmallCall call, other;
  Launch launch;
  const Plan plan = recording_plan(describe(call.forward), launch, 0);
  other.forward.options.mask = Mask::causal;
  const std::string shapes =
      "attention_forward batch_size=2 seqlen_q=3 seqlen_k=5 num_heads_q=4 num_heads_k=2 head_dim=8 head_dim_v=6";
  expect_invalid("plan: must be for the tensors' problem, " + shapes + " mask=causal (got a plan for " + shapes + ")",
                 [&] { run(plan, other.forward); });
  EXPECT_THROW(run(plan, call.backward), Error);
  call.forward.options.softcap = -1;
  expect_invalid("softcap: must be 0 (off), or positive and finite in f32 (got -1)", [&] { run(plan, call.forward); });
  EXPECT_EQ(launch.count, 0);
}

TEST(Run, ChecksACallThatDiffersFromTheLast) {
  SmallCall call, other;
  Launch launch, other_launch;
  const Plan plan = recording_plan(describe(call.forward), launch, 0);
  other.forward.options.mask = Mask::causal;
  const Plan other_plan = recording_plan(describe(other.forward), other_launch, 0);
  for (int round = 1; round < 3; ++round) {
    run(plan, call.forward);
    EXPECT_THROW(run(other_plan, call.forward), Error);
    EXPECT_THROW(run(plan, other.forward), Error);
    run(plan, call.forward);
    run(other_plan, other.forward);
    EXPECT_EQ(launch.count, 2 * round);
    EXPECT_EQ(other_launch.count, round);
  }
  call.forward.out.strides[1] = 0;
  EXPECT_THROW(run(plan, call.forward), Error);
}

TEST(Run, ChecksTheTensorsAgain) {
  SmallCall call;
  Launch launch;
  const Plan plan = recording_plan(describe(call.forward), launch, 0);
  call.forward.q.data = nullptr;
  expect_invalid("q: data must not be null (shape [2, 3, 4, 8])", [&] { run(plan, call.forward); });
}

TEST(Run, ShortWayComputes) {
  SmallCall call;
  const auto fill = [](const TensorView& view, float value) {
    std::fill_n(static_cast<float*>(view.data), view.numel(), value);
  };
  fill(call.forward.q, 0.5f);
  fill(call.forward.k, 0.25f);
  fill(call.forward.v, 3.0f);
  attention_forward(call.forward);
  for (std::int64_t i = 0; i < call.forward.out.numel(); ++i) {
    EXPECT_NEAR(static_cast<float*>(call.forward.out.data)[i], 3.0f, 1e-6f);
  }
  fill(call.backward.dout, 1.0f);
  attention_backward(call.backward);
  for (std::int64_t i = 0; i < call.backward.dv.numel(); ++i) {  // 3 queries of 2 heads, spread over 5 keys
    EXPECT_NEAR(static_cast<float*>(call.backward.dv.data)[i], 1.2f, 1e-6f);
  }
  expect_invalid("dropout_p: must be >= 0 and < 1 (got 2)", [&] {
    call.forward.options.dropout_p = 2;
    attention_forward(call.forward);
  });
}

TEST(Run, Version) { EXPECT_EQ(std::count(version().begin(), version().end(), '.'), 2); }

}  // namespace
}  // namespace tilewise
