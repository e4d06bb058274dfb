// What one planned call on a GPU costs the host, in C++: a tiny problem by a ready plan and by the short way,
// forward and backward, and a step of decode over a paged cache; and what a plan costs, known or new, whose kernel is
// loaded. Each by every implementation that takes it: the one that a tiny problem chooses is not the one of long ones.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "ceilings/timing.hpp"
#include "core/device.hpp"
#include "core/device_memory.hpp"
#include "overhead_report.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/kv_cache.hpp"

namespace {

using tilewise::bench::Line;
using tilewise::bench::Measured;

constexpr int kCallsPerSample = 100, kSamples = 31;  // calls: well within the depth of a stream's queue
constexpr int kNewPlans = 101, kWarmUpPlans = 10;
constexpr std::int64_t kSeqlen = 16, kHeadDim = 64, kSeqlenStep = 128, kManyHeads = 16, kManyRows = 4096;
constexpr std::int64_t kPages = 8, kPageSize = 16;

/// Tensors of one call; bf16 but for the LSE.
class Tensors {
 public:
  explicit Tensors(tilewise::Device device) : device_(device) {}
  tilewise::TensorView data() { return add(tilewise::DType::bf16, {1, kSeqlen, 1, kHeadDim}); }
  tilewise::TensorView data(std::initializer_list<std::int64_t> shape) { return add(tilewise::DType::bf16, shape); }
  tilewise::TensorView lengths(std::initializer_list<std::int64_t> shape) { return add(tilewise::DType::i32, shape); }
  tilewise::TensorView lse() { return add(tilewise::DType::f32, {1, 1, kSeqlen}); }
  [[nodiscard]] void* workspace(std::size_t bytes) { return bytes == 0 ? nullptr : zeros(bytes); }

 private:
  tilewise::TensorView add(tilewise::DType dtype, std::initializer_list<std::int64_t> shape) {
    tilewise::TensorView view(nullptr, dtype, shape, device_);
    view.data = zeros(static_cast<std::size_t>(view.numel()) * size_of(dtype));
    return view;
  }
  void* zeros(std::size_t bytes) {
    void* data = memory_.emplace_back(device_, bytes).data();
    tilewise::core::device_system(device_.type)->fill(device_.index, data, 0, bytes, nullptr);
    return data;
  }

  tilewise::Device device_;
  std::deque<tilewise::core::DeviceMemory> memory_;
};

using Select = tilewise::SelectOptions;
void short_way(const tilewise::ForwardArguments& arguments, const Select& select) {
  tilewise::attention_forward(arguments, select);
}
void short_way(const tilewise::BackwardArguments& arguments, const Select& select) {
  tilewise::attention_backward(arguments, select);
}
void short_way(const tilewise::KvCacheArguments& arguments, const Select& select) {
  tilewise::kv_cache_attention(arguments, select);
}

/// Problem number i of a row that differ in a size alone, which no kernel is made for.
tilewise::Problem variant(tilewise::Problem problem, int i) {
  problem.num_heads_q = problem.num_heads_k = kManyHeads;
  problem.seqlen_q = problem.seqlen_k = kManyRows + i * kSeqlenStep;
  return problem;
}
tilewise::KvCacheProblem variant(tilewise::KvCacheProblem problem, int i) {
  problem.num_pages = kManyRows + i;
  return problem;
}

/// Nanoseconds of plan() for problems that differ from any before in a size alone, so that their kernel is the one that
/// the first plans have loaded.
template <typename Problem>
double new_plan_ns(const Problem& problem, const Select& select) {
  using tilewise::tools::Clock;
  std::vector<double> samples;
  for (int i = 0; i < kWarmUpPlans + kNewPlans; ++i) {
    const Problem another = variant(problem, i);
    const Clock::time_point start = Clock::now();
    const tilewise::Plan plan = tilewise::plan(another, select);
    const double ns = 1e9 * tilewise::tools::seconds_since(start);
    if (i >= kWarmUpPlans) samples.push_back(ns);
  }
  return tilewise::tools::median(std::move(samples));
}

template <typename Arguments>
Measured measure(const Arguments& arguments, const Select& select, Tensors& tensors, tilewise::Device device) {
  const auto problem = tilewise::describe(arguments);
  const tilewise::Plan plan = tilewise::plan(problem, select);
  void* workspace = tensors.workspace(plan.workspace_size());
  const auto wait = [device] { tilewise::core::device_system(device.type)->synchronize(device.index, nullptr); };
  const auto time = [&wait](auto&& call) { return tilewise::tools::median_ns(kSamples, kCallsPerSample, call, wait); };
  Measured measured{tilewise::to_string(problem),
                    std::string(plan.implementation()),
                    {{"run(plan, arguments, workspace)", time([&] { tilewise::run(plan, arguments, workspace); })},
                     {"run(plan, arguments)", time([&] { tilewise::run(plan, arguments); })},
                     {"short call", time([&] { short_way(arguments, select); })},
                     {"describe(arguments)", time([&] { (void)tilewise::describe(arguments); })},
                     {"plan(problem), known", time([&] { (void)tilewise::plan(problem, select); })},
                     {"plan(problem), new on a known kernel", new_plan_ns(problem, select)}}};
  wait();
  return measured;
}

/// Adds to `all` what a call costs by each implementation that accepts it. Throws Error where none does.
template <typename Arguments>
void measure_each(const Arguments& arguments, Tensors& tensors, tilewise::Device device, std::vector<Measured>& all) {
  const tilewise::core::DeviceScope scope(device, nullptr);
  const auto problem = tilewise::describe(arguments);
  const std::size_t measured = all.size();
  for (const tilewise::ExplainRow& row : tilewise::explain(problem).rows)
    if (row.accepted) all.push_back(measure(arguments, {row.implementation}, tensors, device));
  if (all.size() == measured) (void)tilewise::plan(problem);  // its error says why each refuses
}

std::vector<Measured> measure_all(tilewise::Device device) {
  Tensors tensors(device);
  tilewise::ForwardArguments forward;
  forward.q = tensors.data();
  forward.k = tensors.data();
  forward.v = tensors.data();
  forward.out = tensors.data();
  forward.softmax_lse = tensors.lse();
  tilewise::BackwardArguments backward;
  backward.q = forward.q;
  backward.k = forward.k;
  backward.v = forward.v;
  backward.out = forward.out;
  backward.softmax_lse = forward.softmax_lse;
  backward.dout = tensors.data();
  backward.dq = tensors.data();
  backward.dk = tensors.data();
  backward.dv = tensors.data();
  tilewise::KvCacheArguments attended;
  attended.q = tensors.data({1, 1, 1, kHeadDim});
  attended.out = tensors.data({1, 1, 1, kHeadDim});
  attended.k_cache = tensors.data({kPages, kPageSize, 1, kHeadDim});
  attended.v_cache = tensors.data({kPages, kPageSize, 1, kHeadDim});
  attended.options.cache_seqlens = tensors.lengths({1});
  attended.options.block_table = tensors.lengths({1, kPages});
  tilewise::KvCacheArguments appended = attended;
  appended.k = tensors.data({1, 1, 1, kHeadDim});
  appended.v = tensors.data({1, 1, 1, kHeadDim});
  appended.options.rotary_cos = tensors.data({kPages * kPageSize, kHeadDim / 2});
  appended.options.rotary_sin = tensors.data({kPages * kPageSize, kHeadDim / 2});
  std::vector<Measured> all;
  measure_each(forward, tensors, device, all);
  measure_each(backward, tensors, device, all);
  measure_each(attended, tensors, device, all);
  measure_each(appended, tensors, device, all);
  return all;
}

/// The first kind of GPU that this machine has. Throws Error (runtime) where there is none.
tilewise::Device find_device() {
  for (const tilewise::DeviceType type : {tilewise::DeviceType::cuda, tilewise::DeviceType::hip}) {
    const tilewise::core::DeviceSystem* system = tilewise::core::device_system(type);
    if (system != nullptr && system->device_count() > 0) return {type, 0};
  }
  throw tilewise::Error(tilewise::ErrorCode::runtime, "this machine has no GPU that a driver lists");
}

}  // namespace

int main(int argc, char** argv) {
  return tilewise::bench::run_program("tilewise-overhead-gpu", argc, argv, [] { return measure_all(find_device()); });
}
