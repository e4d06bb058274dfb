// What a merge call's inputs hold, its outputs, and running it.
#include "verify/merge_call.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "core/device.hpp"
#include "core/message.hpp"
#include "operations/layout.hpp"
#include "operations/merge/tensors.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::verify {
namespace {

using operations::merge::part_of, operations::merge::sink_dtype;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<int> natural_order(std::size_t rank) {
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

void fill(const TensorView& view, const std::function<double()>& draw) {
  for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) { store_at(view, offset, draw()); });
}

/// The view of an output; undefined where there is none of that name.
TensorView view_named(const std::vector<Output>& outputs, std::string_view name) {
  const Output* output = find_output(outputs, name);
  return output == nullptr ? TensorView{} : output->buffer.view();
}

std::vector<TensorView> views_named(const std::vector<Output>& outputs, std::string_view role, std::size_t count) {
  std::vector<TensorView> views;
  for (std::size_t n = 0; n < count; ++n) {
    if (const TensorView view = view_named(outputs, core::concat(role, "[", n, "]")); view.defined())
      views.push_back(view);
  }
  return views;
}

}  // namespace

MergeCall::MergeCall(const MergeProblem& problem, std::uint64_t seed, Values values)
    : problem_(problem),
      rng_(seed),
      special_rng_(seed + 0x5EC1A150u),
      aligned_(Random(seed + 0x9E3779B9u).chance(0.5)) {
  validate(problem);
  draw_parts();
  if (problem.sink != MergeSink::none) {
    sink_ = add("sink", sink_dtype(problem), {problem.num_heads_q}, random_placement({0}, false, rng_));
    fill(sink_, [this] { return rng_.normal(); });
  }
  if (!forward()) draw_gradients();
  if (values == Values::special) plant_special_values();
  if (values == Values::large) draw_large_values();
  seal_inputs();
  const std::vector<Output> outputs = make_outputs(0);
  problem_ = forward() ? describe(forward_arguments(outputs)) : describe(backward_arguments(outputs));
}

std::vector<std::int64_t> MergeCall::rows_shape() const {
  const MergeProblem& p = problem_;
  const operations::Axes axes = operations::axes_of(p.layout);
  std::vector<std::int64_t> shape(static_cast<std::size_t>(axes.rank()));
  if (axes.batch >= 0) shape[static_cast<std::size_t>(axes.batch)] = p.batch_size;
  shape[static_cast<std::size_t>(axes.seq)] = p.seqlen_q;
  shape[static_cast<std::size_t>(axes.head)] = p.num_heads_q;
  shape[static_cast<std::size_t>(axes.dim)] = p.head_dim_v;
  return shape;
}

std::vector<std::int64_t> MergeCall::lse_shape() const {
  const MergeProblem& p = problem_;
  if (p.layout == Layout::thd) return {p.num_heads_q, p.seqlen_q};
  return {p.batch_size, p.num_heads_q, p.seqlen_q};
}

std::vector<std::int64_t> MergeCall::of_parts(std::vector<std::int64_t> shape) const {
  if (problem_.stacked) shape.insert(shape.begin(), problem_.parts);
  return shape;
}

std::size_t MergeCall::list_size() const { return problem_.stacked ? 1 : static_cast<std::size_t>(problem_.parts); }

DType MergeCall::part_dtype(std::size_t n) const {
  if (problem_.parts_dtype != PartsDType::mixed) return operations::merge::dtype_of(problem_.parts_dtype);
  return n % 3 == 1 ? DType::f32 : problem_.dtype;
}

Placement MergeCall::rows_placement(DType dtype, std::size_t rank, Random& rng) const {
  Placement placement = random_placement(natural_order(rank), true, rng);
  return aligned_ ? with_aligned_rows(std::move(placement), dtype) : placement;
}

std::vector<std::string_view> MergeCall::rows_axes(bool of_parts) const {
  const operations::Axes axes = operations::axes_of(problem_.layout);
  std::vector<std::string_view> names(static_cast<std::size_t>(axes.rank()));
  if (axes.batch >= 0) names[static_cast<std::size_t>(axes.batch)] = "batch";
  names[static_cast<std::size_t>(axes.seq)] = "row";
  names[static_cast<std::size_t>(axes.head)] = "head";
  names[static_cast<std::size_t>(axes.dim)] = "dim";
  if (of_parts && problem_.stacked) names.insert(names.begin(), "part");
  return names;
}

std::vector<std::string_view> MergeCall::lse_axes(bool of_parts) const {
  std::vector<std::string_view> names{"head", "row"};
  if (problem_.layout != Layout::thd) names.insert(names.begin(), "batch");
  if (of_parts && problem_.stacked) names.insert(names.begin(), "part");
  return names;
}

TensorView MergeCall::add(std::string name, DType dtype, const std::vector<std::int64_t>& shape,
                          const Placement& placement) {
  return add_poisoned(std::move(name), dtype, shape, placement, rng_).buffer.view();
}

void MergeCall::draw_parts() {
  const std::vector<std::int64_t> rows = of_parts(rows_shape()), statistics = of_parts(lse_shape());
  for (std::size_t n = 0; n < list_size(); ++n) {
    const DType dtype = part_dtype(n);
    outs_.push_back(add(core::concat("outs[", n, "]"), dtype, rows, rows_placement(dtype, rows.size(), rng_)));
    lses_.push_back(add(core::concat("lses[", n, "]"), operations::statistics_dtype(problem_.dtype), statistics,
                        random_placement(natural_order(statistics.size()), false, rng_)));
  }
  for (std::int64_t n = 0; n < problem_.parts; ++n) draw_part(n);
}

/// A row that saw nothing holds what must not reach a result. No poison: that would look like one never written, once
/// a special value lets the row count.
void MergeCall::draw_part(std::int64_t n) {
  const TensorView out = part_of(outs_, static_cast<std::size_t>(n), problem_.stacked);
  const TensorView lse = part_of(lses_, static_cast<std::size_t>(n), problem_.stacked);
  const operations::Axes axes = operations::axes_of(problem_.layout);
  const double center = rng_.chance(0.2) ? rng_.uniform(-60.0, 60.0) : rng_.normal();
  const double blind = rng_.pick({0.0, 0.0, 0.1, 0.5, 1.0});
  for_each_element(lse, [&](std::span<const std::int64_t> position, std::int64_t offset) {
    const bool seen = !rng_.chance(blind);
    const double unseen = rng_.pick({std::numeric_limits<double>::quiet_NaN(), kInfinity, 6e4});
    store_at(lse, offset, seen ? center + 2.0 * rng_.normal() : -kInfinity);
    const std::size_t heads = position.size() - 2;
    std::int64_t first =
        position[heads] * core::stride_at(out, axes.head) + position[heads + 1] * core::stride_at(out, axes.seq);
    if (axes.batch >= 0) first += position[0] * core::stride_at(out, axes.batch);
    for (std::int64_t d = 0; d < problem_.head_dim_v; ++d)
      store_at(out, first + d * core::stride_at(out, axes.dim), seen ? rng_.normal() : unseen);
  });
}

void MergeCall::draw_gradients() {
  const std::vector<std::int64_t> rows = rows_shape(), statistics = lse_shape();
  dout_ = add("dout", problem_.dtype, rows, rows_placement(problem_.dtype, rows.size(), rng_));
  fill(dout_, [this] { return rng_.normal(); });
  if (!problem_.dlse) return;
  dlse_ = add("dlse", operations::statistics_dtype(problem_.dtype), statistics,
              random_placement(natural_order(statistics.size()), false, rng_));
  fill(dlse_, [this] { return rng_.normal(); });
}

/// All of a part's log-sum-exps, so that parts of a row are equal, or one is all that counts. What many parts are
/// merged to in groups loses its logarithm beside a large number: they stay as they are.
void MergeCall::draw_large_values() {
  constexpr std::int64_t kMostParts = 8;
  const auto fill_some = [&](const TensorView& view, double value, double chance) {
    for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
      if (std::isfinite(value_at(view, offset)) && special_rng_.chance(chance)) store_at(view, offset, value);
    });
  };
  const double common = large_value(operations::statistics_dtype(problem_.dtype), special_rng_);
  for (std::int64_t n = 0; problem_.parts <= kMostParts && n < problem_.parts; ++n) {
    const TensorView lse = part_of(lses_, static_cast<std::size_t>(n), problem_.stacked);
    if (special_rng_.chance(0.7)) fill_some(lse, common, special_rng_.pick({0.5, 1.0}));
  }
  if (sink_.defined()) fill_some(sink_, large_value(sink_.dtype, special_rng_), 0.5);
}

/// Up to three of them, anywhere.
void MergeCall::plant_special_values() {
  std::vector<TensorView> places;
  for (const std::vector<TensorView>* list : {&outs_, &lses_})
    for (const TensorView& view : *list) places.push_back(view);
  for (const TensorView& view : {sink_, dout_, dlse_})
    if (view.defined()) places.push_back(view);
  const std::int64_t count = special_rng_.integer(1, 3);
  for (std::int64_t n = 0; n < count; ++n) {
    const TensorView& view =
        places[static_cast<std::size_t>(special_rng_.integer(0, static_cast<std::int64_t>(places.size()) - 1))];
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
      if (view.shape[axis] == 0) return;
      offset += special_rng_.integer(0, view.shape[axis] - 1) * view.strides[axis];
    }
    store_at(view, offset, special_value(special_rng_));
  }
}

std::vector<Output> MergeCall::make_outputs(std::uint64_t seed) const {
  Random rng(seed);
  const MergeProblem& p = problem_;
  std::vector<Output> outputs;
  const auto add_rows = [&](std::string name, DType dtype, const std::vector<std::int64_t>& shape, bool parts) {
    outputs.push_back(
        {std::move(name), Buffer(dtype, shape, rows_placement(dtype, shape.size(), rng)), -1, 0, rows_axes(parts)});
  };
  const auto add_lse = [&](std::string name, const std::vector<std::int64_t>& shape, bool parts) {
    const Placement placement = random_placement(natural_order(shape.size()), false, rng);
    outputs.push_back(
        {std::move(name), Buffer(operations::statistics_dtype(p.dtype), shape, placement), -1, 0, lse_axes(parts)});
  };
  if (forward()) {
    add_rows("out", p.dtype, rows_shape(), false);
    if (p.softmax_lse) {
      add_lse("softmax_lse", lse_shape(), false);
      outputs.back().is_log_sum = true;
    }
    return outputs;
  }
  for (std::size_t n = 0; p.douts && n < list_size(); ++n)
    add_rows(core::concat("douts[", n, "]"), part_dtype(n), of_parts(rows_shape()), true);
  for (std::size_t n = 0; p.dlses && n < list_size(); ++n)
    add_lse(core::concat("dlses[", n, "]"), of_parts(lse_shape()), true);
  if (p.dsink) {
    const Placement placement = random_placement({0}, false, rng);
    outputs.push_back({"dsink", Buffer(sink_dtype(p), {p.num_heads_q}, placement), -1, 0, {"head"}});
  }
  return outputs;
}

MergeArguments MergeCall::forward_arguments(const std::vector<Output>& outputs) const {
  return {outs_, lses_, sink_, view_named(outputs, "out"), view_named(outputs, "softmax_lse"), problem_.layout};
}

MergeBackwardArguments MergeCall::backward_arguments(const std::vector<Output>& outputs) const {
  return {dout_,
          dlse_,
          outs_,
          lses_,
          sink_,
          views_named(outputs, "douts", list_size()),
          views_named(outputs, "dlses", list_size()),
          view_named(outputs, "dsink"),
          problem_.layout};
}

namespace {

template <typename Arguments>
void change_given(Arguments& arguments, const Change& change) {
  operations::merge::change_each_tensor(arguments, [&change](TensorView& view) {
    if (view.defined()) change(view);
  });
}

}  // namespace

Plan MergeCall::plan(std::string_view implementation, const std::vector<Output>& outputs, const Change& change) const {
  const auto planned = [&](auto arguments) {
    change_given(arguments, change);
    const core::DeviceScope scope(arguments.outs[0].device, nullptr);
    return tilewise::plan(describe(arguments), SelectOptions{std::string(implementation)});
  };
  return forward() ? planned(forward_arguments(outputs)) : planned(backward_arguments(outputs));
}

void MergeCall::launch(const Plan& plan, const std::vector<Output>& outputs, void* workspace,
                       const Change& change) const {
  const auto launched = [&](auto arguments) {
    change_given(arguments, change);
    tilewise::run(plan, arguments, workspace);
  };
  forward() ? launched(forward_arguments(outputs)) : launched(backward_arguments(outputs));
}

std::vector<ErrorBounds> MergeCall::bounds(const std::vector<Output>& expected, double /*tanh_error*/) const {
  // The arguments must outlive the call made of them.
  const MergeArguments forward_tensors = forward_arguments(expected);
  const MergeBackwardArguments backward_tensors = backward_arguments(expected);
  const operations::merge::Call call =
      forward() ? operations::merge::call_of(forward_tensors) : operations::merge::call_of(backward_tensors);
  return merge_bounds(operations::merge::make_params(call, problem_), problem_, expected);
}

}  // namespace tilewise::verify
