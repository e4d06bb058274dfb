// Drawing a call's inputs, making its outputs and running it.
#include "verify/call_tensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "core/message.hpp"
#include "operations/attention/rules.hpp"
#include "operations/layout.hpp"

namespace tilewise::verify {
namespace {

std::uint64_t checksum_of(const TensorView& view) {
  std::uint64_t sum = 0xCBF29CE484222325u;
  for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
    sum = (sum ^ bits_at(view, offset)) * 0x100000001B3u;
  });
  return sum;
}

/// Scratch memory with a canary behind it.
class Workspace {
 public:
  explicit Workspace(std::size_t size) : size_(size), bytes_(static_cast<std::byte*>(allocate(size))) {
    std::memset(bytes_.get(), 0xFF, size + kCanary);
  }
  [[nodiscard]] void* data() const { return bytes_.get(); }
  [[nodiscard]] bool overrun() const {
    return std::any_of(bytes_.get() + size_, bytes_.get() + size_ + kCanary,
                       [](std::byte b) { return b != std::byte{0xFF}; });
  }

 private:
  static constexpr std::size_t kCanary = 256;
  static constexpr std::align_val_t kAlignment{64};
  static void* allocate(std::size_t size) { return ::operator new(size + kCanary, kAlignment); }
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kAlignment); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte[], Free> bytes_;
};

}  // namespace

const Output* find_output(const std::vector<Output>& outputs, std::string_view name) {
  const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const Output& o) { return o.name == name; });
  return found == outputs.end() ? nullptr : &*found;
}

CallTensors::CallTensors(const Problem& problem, std::uint64_t seed, Values values)
    : problem_(problem),
      values_(values),
      rng_(seed),
      special_rng_(seed + 0x5EC1A150u),
      aligned_(Random(seed + 0x9E3779B9u).chance(0.5)) {
  validate(problem);
  options = operations::attention::stated_options(problem);
  draw_lengths();
  draw_qkv();
  draw_bias();
  draw_head_options();
  draw_seed();
  if (values == Values::special) plant_special_values();
  if (problem.operation == Operation::attention_backward) draw_gradients();
  for (Input& input : inputs_) input.checksum = checksum_of(input.buffer.view());
  const std::vector<Output> outputs = make_outputs(0);
  problem_ = problem.operation == Operation::attention_forward ? describe(forward_arguments(outputs))
                                                               : describe(backward_arguments(outputs));
}

std::vector<std::int64_t> CallTensors::data_shape(Side side, std::int64_t heads, std::int64_t dim) const {
  const bool query = side == Side::query;
  if (packed()) return {query ? problem_.total_q : problem_.total_k, heads, dim};
  return {problem_.batch_size, query ? problem_.seqlen_q : problem_.seqlen_k, heads, dim};
}

std::vector<std::int64_t> CallTensors::lse_shape() const {
  if (packed()) return {problem_.num_heads_q, problem_.total_q};
  return {problem_.batch_size, problem_.num_heads_q, problem_.seqlen_q};
}

std::vector<std::int64_t> CallTensors::bias_shape() const {
  const auto shape = operations::attention::bias_shape(problem_);
  return {shape.begin(), shape.end()};
}

std::vector<int> CallTensors::data_order() const {
  const operations::Axes axes = operations::axes_of(problem_.layout);  // each of these orders is its own inverse
  if (packed()) return {axes.seq, axes.head, axes.dim};
  return {axes.batch, axes.seq, axes.head, axes.dim};
}

Placement CallTensors::data_placement(Random& rng) const {
  Placement placement = random_placement(data_order(), true, rng);
  return aligned_ ? with_aligned_rows(std::move(placement), problem_.dtype) : placement;
}

TensorView CallTensors::in_layout(const TensorView& view) const {
  if (!view.defined()) return view;
  const operations::Axes from = operations::axes_of(packed() ? Layout::thd : Layout::bshd);
  const operations::Axes to = operations::axes_of(problem_.layout);
  TensorView result = view;
  const auto move = [&](int source, int target) {
    if (target < 0) return;
    result.shape[static_cast<std::size_t>(target)] = view.shape[static_cast<std::size_t>(source)];
    result.strides[static_cast<std::size_t>(target)] = view.strides[static_cast<std::size_t>(source)];
  };
  move(from.batch, to.batch);
  move(from.seq, to.seq);
  move(from.head, to.head);
  return result;
}

device::Sequence CallTensors::sequence(std::int64_t b) const { return device::sequence_of(lengths_, b); }

std::int64_t CallTensors::rows_of_sequences(Side side) const {
  const bool query = side == Side::query;
  if (!packed()) return query ? problem_.seqlen_q : problem_.seqlen_k;
  return (query ? lengths_.cu_seqlens_q : lengths_.cu_seqlens_k)[problem_.batch_size];
}

Output CallTensors::data_output(std::string name, Side side, std::int64_t heads, std::int64_t dim, Random& rng) const {
  return {std::move(name), Buffer(problem_.dtype, data_shape(side, heads, dim), data_placement(rng)), packed() ? 0 : 1,
          rows_of_sequences(side)};
}

std::vector<Output> CallTensors::make_forward_outputs(Random& rng, bool softmax_lse) const {
  std::vector<Output> outputs;
  outputs.push_back(data_output("out", Side::query, problem_.num_heads_q, problem_.head_dim_v, rng));
  if (!softmax_lse) return outputs;
  const std::vector<int> order = packed() ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
  outputs.push_back(
      {"softmax_lse",
       Buffer(operations::statistics_dtype(problem_.dtype), lse_shape(), random_placement(order, false, rng)),
       packed() ? 1 : 2, rows_of_sequences(Side::query)});
  return outputs;
}

std::vector<Output> CallTensors::make_outputs(std::uint64_t seed) const {
  Random rng(seed);
  const Problem& p = problem_;
  if (p.operation == Operation::attention_forward) return make_forward_outputs(rng, p.softmax_lse);
  std::vector<Output> outputs;
  if (p.dq) outputs.push_back(data_output("dq", Side::query, p.num_heads_q, p.head_dim, rng));
  if (p.dk) outputs.push_back(data_output("dk", Side::key, p.num_heads_k, p.head_dim, rng));
  if (p.dv) outputs.push_back(data_output("dv", Side::key, p.num_heads_k, p.head_dim_v, rng));
  if (p.dbias) {
    outputs.push_back(
        {"dbias",
         Buffer(operations::attention::bias_dtype(p), bias_shape(), random_placement({0, 1, 2, 3}, false, rng)), -1,
         0});
  }
  if (p.dsink) {
    outputs.push_back({"dsink",
                       Buffer(operations::attention::sink_dtype(p), {p.num_heads_q}, random_placement({0}, false, rng)),
                       -1, 0});
  }
  return outputs;
}

TensorView CallTensors::output_view(const std::vector<Output>& outputs, std::string_view name) const {
  const Output* output = find_output(outputs, name);
  if (!output) return {};
  if (name == "dbias") return without_leading(output->buffer.view(), 4 - options.bias.rank);
  const bool data = name != "softmax_lse" && name != "dsink";
  return data ? in_layout(output->buffer.view()) : output->buffer.view();
}

ForwardArguments CallTensors::forward_arguments(const std::vector<Output>& outputs) const {
  ForwardArguments arguments;
  arguments.q = in_layout(q_);
  arguments.k = in_layout(k_);
  arguments.v = in_layout(v_);
  arguments.out = output_view(outputs, "out");
  arguments.softmax_lse = output_view(outputs, "softmax_lse");
  arguments.options = options;
  return arguments;
}

BackwardArguments CallTensors::backward_arguments(const std::vector<Output>& outputs) const {
  BackwardArguments arguments;
  arguments.dout = in_layout(dout_);
  arguments.dlse = dlse_;
  arguments.q = in_layout(q_);
  arguments.k = in_layout(k_);
  arguments.v = in_layout(v_);
  arguments.out = in_layout(out_);
  arguments.softmax_lse = softmax_lse_;
  arguments.dq = output_view(outputs, "dq");
  arguments.dk = output_view(outputs, "dk");
  arguments.dv = output_view(outputs, "dv");
  arguments.dbias = output_view(outputs, "dbias");
  arguments.dsink = output_view(outputs, "dsink");
  arguments.options = options;
  return arguments;
}

Plan CallTensors::plan(std::string_view implementation, const std::vector<Output>& outputs) const {
  const SelectOptions select{std::string(implementation)};
  return problem_.operation == Operation::attention_forward
             ? tilewise::plan(describe(forward_arguments(outputs)), select)
             : tilewise::plan(describe(backward_arguments(outputs)), select);
}

void CallTensors::run(const Plan& plan, const std::vector<Output>& outputs) const {
  const Workspace workspace(plan.workspace_size());
  if (problem_.operation == Operation::attention_forward) {
    tilewise::run(plan, forward_arguments(outputs), workspace.data());
  } else {
    tilewise::run(plan, backward_arguments(outputs), workspace.data());
  }
  if (workspace.overrun()) {
    throw Error(ErrorCode::runtime, core::concat("workspace: written past its ", plan.workspace_size(), " bytes"));
  }
}

std::vector<std::span<std::byte>> CallTensors::input_memory() const {
  std::vector<std::span<std::byte>> memory;
  for (const Input& input : inputs_) memory.push_back(input.buffer.bytes());
  return memory;
}

std::string CallTensors::find_changed_input() const {
  for (const Input& input : inputs_) {
    if (checksum_of(input.buffer.view()) != input.checksum || !input.buffer.find_stray_write(input.views).empty())
      return input.name;
  }
  return {};
}

}  // namespace tilewise::verify
