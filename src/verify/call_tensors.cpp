// Drawing a call's inputs, making its outputs and running it.
#include "verify/call_tensors.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#include "core/device.hpp"
#include "core/message.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/tensors.hpp"
#include "operations/layout.hpp"
#include "verify/error_bounds.hpp"
#include "verify/reach.hpp"
#include "verify/verify.hpp"

namespace tilewise::verify {
namespace {

auto change_defined(const Change& change) {
  return [&change](TensorView& view) {
    if (view.defined()) change(view);
  };
}

}  // namespace

bool draws_aligned_rows(std::uint64_t seed) { return Random(seed + 0x9E3779B9u).chance(0.5); }

CallTensors::CallTensors(const Problem& problem, std::uint64_t seed, Values values)
    : problem_(problem),
      values_(values),
      rng_(seed),
      special_rng_(seed + 0x5EC1A150u),
      aligned_(draws_aligned_rows(seed)) {
  validate(problem);
  options = operations::attention::stated_options(problem);
  draw_lengths();
  draw_qkv();
  draw_bias();
  draw_head_options();
  draw_tables();
  draw_block_mask();
  draw_scales();
  draw_seed();
  draw_indices(seed);
  if (values == Values::special) plant_special_values();
  if (values == Values::large) draw_large_values();
  if (problem.operation == Operation::attention_backward) draw_gradients();
  seal_inputs();
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

Output CallTensors::data_output(std::string name, Side side, std::int64_t heads, std::int64_t dim, Random& rng,
                                DType dtype) const {
  return {std::move(name),
          Buffer(dtype, data_shape(side, heads, dim), data_placement(rng)),
          packed() ? 0 : 1,
          rows_of_sequences(side),
          {"batch", "row", "head", "dim"}};
}

std::vector<Output> CallTensors::make_forward_outputs(Random& rng, bool softmax_lse) const {
  std::vector<Output> outputs;
  outputs.push_back(data_output("out", Side::query, problem_.num_heads_q, problem_.head_dim_v, rng,
                                operations::attention::out_dtype_of(problem_)));
  if (!softmax_lse) return outputs;
  const std::vector<int> order = packed() ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
  outputs.push_back(
      {"softmax_lse",
       Buffer(operations::statistics_dtype(problem_.dtype), lse_shape(), random_placement(order, false, rng)),
       packed() ? 1 : 2,
       rows_of_sequences(Side::query),
       {"batch", "head", "row"}});
  outputs.back().is_log_sum = true;
  return outputs;
}

std::vector<Output> CallTensors::make_outputs(std::uint64_t seed) const {
  Random rng(seed);
  const Problem& p = problem_;
  std::vector<Output> outputs;
  if (p.operation == Operation::attention_forward)
    outputs = make_forward_outputs(rng, p.softmax_lse);
  else
    outputs = make_gradients(rng);
  for (Output& output : outputs) output.rest_is_cleared = p.clear_rest;
  return outputs;
}

std::vector<Output> CallTensors::make_gradients(Random& rng) const {
  const Problem& p = problem_;
  std::vector<Output> outputs;
  if (p.dq) outputs.push_back(data_output("dq", Side::query, p.num_heads_q, p.head_dim, rng, p.dtype));
  if (p.dk) outputs.push_back(data_output("dk", Side::key, p.num_heads_k, p.head_dim, rng, p.dtype));
  if (p.dv) outputs.push_back(data_output("dv", Side::key, p.num_heads_k, p.head_dim_v, rng, p.dtype));
  if (p.dbias) {
    outputs.push_back(
        {"dbias",
         Buffer(operations::attention::bias_dtype(p), bias_shape(), random_placement({0, 1, 2, 3}, false, rng)),
         -1,
         0,
         {"batch", "head", "query", "key"}});
  }
  if (p.dsink) {
    outputs.push_back({"dsink",
                       Buffer(operations::attention::sink_dtype(p), {p.num_heads_q}, random_placement({0}, false, rng)),
                       -1,
                       0,
                       {"head"}});
  }
  for (std::size_t i = 0; i < p.tables.size(); ++i) {
    if (!operations::attention::wants_table_gradient(p, i)) continue;
    const TableShape& table = p.tables[i];
    std::vector<int> order(static_cast<std::size_t>(table.rank));
    std::iota(order.begin(), order.end(), 0);
    outputs.push_back({std::string(operations::attention::dtable_name(i)),
                       Buffer(table.dtype, {table.shape.begin(), table.shape.begin() + table.rank},
                              random_placement(order, false, rng)),
                       -1, 0});
  }
  return outputs;
}

TensorView CallTensors::output_view(const std::vector<Output>& outputs, std::string_view name) const {
  const Output* output = find_output(outputs, name);
  if (!output) return {};
  if (name == "dbias") return without_leading(output->buffer.view(), 4 - options.bias.rank);
  const bool data = name != "softmax_lse" && name != "dsink" && !name.starts_with("dtable");
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
  for (std::size_t i = 0; problem_.dtables != 0 && i < problem_.tables.size(); ++i)
    arguments.options.dtables.push_back(output_view(outputs, operations::attention::dtable_name(i)));
  return arguments;
}

Plan CallTensors::plan(std::string_view implementation, const std::vector<Output>& outputs,
                       const Change& change) const {
  const auto planned = [&](auto arguments) {
    operations::attention::change_each_tensor(arguments, change_defined(change));
    const core::DeviceScope scope(arguments.q.device, nullptr);
    return tilewise::plan(describe(arguments), SelectOptions{std::string(implementation)});
  };
  return forward() ? planned(forward_arguments(outputs)) : planned(backward_arguments(outputs));
}

void CallTensors::launch(const Plan& plan, const std::vector<Output>& outputs, void* workspace,
                         const Change& change) const {
  const auto launched = [&](auto arguments) {
    operations::attention::change_each_tensor(arguments, change_defined(change));
    tilewise::run(plan, arguments, workspace);
  };
  forward() ? launched(forward_arguments(outputs)) : launched(backward_arguments(outputs));
}

void CallTensors::for_each_tensor(const std::vector<Output>& outputs, const Change& change,
                                  const TensorVisitor& visit) const {
  const auto visited = [&](auto arguments) {
    operations::attention::change_each_tensor(arguments, change_defined(change));
    operations::attention::for_each_tensor(
        operations::attention::call_of(arguments),
        [&visit](const core::ArgumentName& name, const TensorView& view, core::Access) {
          if (view.defined()) visit(core::concat(name), view);
        });
  };
  forward() ? visited(forward_arguments(outputs)) : visited(backward_arguments(outputs));
}

std::vector<ErrorBounds> CallTensors::bounds(const std::vector<Output>& expected, double tanh_error) const {
  std::vector<ErrorBounds> bounds = error_bounds(*this, expected, tanh_error);
  if (values_ == Values::special) mark_reach(*this, expected, bounds);
  return bounds;
}

}  // namespace tilewise::verify
