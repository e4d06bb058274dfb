// What one call costs beside the arithmetic, in C++: the tiniest problems by a ready plan and by the short way, and the
// parts of that way. Of attention one query and one key; of the KV cache step one sequence in pages, which attends with
// and without a new token, or only appends it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "ceilings/timing.hpp"
#include "overhead_report.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/kv_cache.hpp"

namespace {

using tilewise::DType;
using tilewise::bench::Line;
using tilewise::bench::Measured;

constexpr int kCallsPerSample = 2000, kSamples = 31;
constexpr std::int64_t kHeadDim = 8, kPages = 2, kPageSize = 4;

/// The median over samples of the mean time of one call, in nanoseconds.
template <typename Call>
double median_ns(Call&& call) {
  return tilewise::tools::median_ns(kSamples, kCallsPerSample, call, [] {});
}

/// Tensors of zeros, which are zeros in every dtype here.
class Zeros {
 public:
  tilewise::TensorView add(DType dtype, std::initializer_list<std::int64_t> shape) {
    tilewise::TensorView view(nullptr, dtype, shape);
    view.data = memory_.emplace_back().data();
    return view;
  }

 private:
  struct alignas(64) Memory : std::array<double, kPages * kPageSize * kHeadDim> {};
  std::deque<Memory> memory_;
};

void short_way(const tilewise::ForwardArguments& arguments) { tilewise::attention_forward(arguments); }
void short_way(const tilewise::KvCacheArguments& arguments) { tilewise::kv_cache_attention(arguments); }
void short_way(const tilewise::AppendKvArguments& arguments) { tilewise::append_kv(arguments); }

template <typename Arguments>
Measured measure(std::string_view name, const Arguments& arguments) {
  const auto problem = tilewise::describe(arguments);
  const tilewise::Plan plan = tilewise::plan(problem);
  std::vector<std::byte> workspace_storage(plan.workspace_size() + 64);
  void* workspace = workspace_storage.data();
  std::size_t space = workspace_storage.size();
  std::align(64, plan.workspace_size(), workspace, space);

  return {tilewise::to_string(problem),
          std::string(plan.implementation()),
          {Line{"run(plan, arguments, workspace)", median_ns([&] { tilewise::run(plan, arguments, workspace); })},
           Line{"run(plan, arguments)", median_ns([&] { tilewise::run(plan, arguments); })},
           Line{name, median_ns([&] { short_way(arguments); })},
           Line{"describe(arguments)", median_ns([&] { (void)tilewise::describe(arguments); })},
           Line{"plan(problem), known", median_ns([&] { (void)tilewise::plan(problem); })}}};
}

Measured measure_attention(DType dtype) {
  Zeros zeros;
  tilewise::ForwardArguments arguments;
  for (tilewise::TensorView* view : {&arguments.q, &arguments.k, &arguments.v, &arguments.out})
    *view = zeros.add(dtype, {1, 1, 1, kHeadDim});
  return measure("attention_forward(arguments)", arguments);
}

std::vector<Measured> measure_cache_steps(DType dtype) {
  Zeros zeros;
  tilewise::KvCacheArguments attended;
  for (tilewise::TensorView* view : {&attended.q, &attended.out}) *view = zeros.add(dtype, {1, 1, 1, kHeadDim});
  for (tilewise::TensorView* view : {&attended.k_cache, &attended.v_cache})
    *view = zeros.add(dtype, {kPages, kPageSize, 1, kHeadDim});
  attended.options.cache_seqlens = zeros.add(DType::i32, {1});
  attended.options.block_table = zeros.add(DType::i32, {1, 1});
  tilewise::KvCacheArguments step = attended;
  for (tilewise::TensorView* view : {&step.k, &step.v}) *view = zeros.add(dtype, {1, 1, 1, kHeadDim});
  const tilewise::AppendKvArguments append{step.k_cache, step.v_cache, step.k, step.v, step.options};
  return {measure("kv_cache_attention(arguments)", attended), measure("kv_cache_attention(arguments)", step),
          measure("append_kv(arguments)", append)};
}

std::vector<Measured> measure_all() {
  std::vector<Measured> all{measure_attention(DType::f32), measure_attention(DType::bf16)};
  for (Measured& measured : measure_cache_steps(DType::bf16)) all.push_back(std::move(measured));
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  tilewise::set_num_threads(1);  // other threads wake up longer than such calls take
  return tilewise::bench::run_program("tilewise-overhead", argc, argv, measure_all);
}
