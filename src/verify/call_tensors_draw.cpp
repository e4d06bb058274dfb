// What a call's inputs hold: lengths that fit the Problem, values in the rows that count, poison
// everywhere else.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "operations/attention/rules.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/selected_keys.hpp"
#include "verify/call_tensors.hpp"
#include "verify/draw_functions.hpp"
#include "verify/draw_indices.hpp"
#include "verify/rounding.hpp"

namespace tilewise::verify {
namespace {

/// The forward pass of a backward problem.
Problem forward_of(Problem p) {
  p.operation = Operation::attention_forward;
  p.dlse = p.dbias = p.dsink = p.deterministic = false;
  p.dtables = 0;
  p.dq = p.dk = p.dv = true;
  return p;
}

const std::int32_t* int32_data(const TensorView& view) { return static_cast<const std::int32_t*>(view.data); }

}  // namespace

TensorView CallTensors::add_input(std::string name, DType dtype, std::vector<std::int64_t> shape,
                                  const Placement& placement) {
  return add_poisoned(std::move(name), dtype, std::move(shape), placement, rng_).buffer.view();
}

TensorView CallTensors::add_lengths(std::string name, const std::vector<std::int64_t>& values) {
  const Placement placement{.order = {0}, .misalignment = rng_.integer(0, 1)};
  const TensorView view = add_input(std::move(name), DType::i32, {static_cast<std::int64_t>(values.size())}, placement);
  for (std::size_t i = 0; i < values.size(); ++i)
    store_at(view, static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  return view;
}

/// View: [batch, seq, head, ...], [batch, head, seq] or the packed forms, told apart by rank.
template <typename Draw>
void CallTensors::fill_rows(const TensorView& view, Side side, Part part, Draw&& draw) {
  const bool is_lse = view.rank == (packed() ? 2 : 3);
  const std::size_t row_axis = std::size_t{!packed()} + std::size_t{is_lse};
  for (std::int64_t b = 0; b < problem_.batch_size; ++b) {
    const device::Sequence s = sequence(b);
    const bool query = side == Side::query;
    const std::int64_t start = query ? s.q_row : s.k_row - s.leftpad, all = query ? s.all_q : s.all_k;
    const std::int64_t first = query ? 0 : s.leftpad, count = query ? s.seqlen_q : s.seqlen_k;
    for (std::int64_t row = 0; row < all; ++row) {
      const bool used = row >= first && row < first + count;
      if (used != (part == Part::used)) continue;
      TensorView slice = view;  // one row of one sequence
      slice.shape[row_axis] = 1;
      std::int64_t base = (start + row) * view.strides[row_axis];
      if (!packed()) {
        slice.shape[0] = 1;
        base += b * view.strides[0];
      }
      for_each_element(slice, [&](std::span<const std::int64_t>, std::int64_t offset) {
        store_at(view, base + offset, draw(row - first, count));
      });
    }
  }
}

std::vector<std::int64_t> CallTensors::draw_cu_seqlens(std::int64_t longest, std::int64_t total) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(problem_.batch_size));
  std::int64_t left = total;
  const auto give = [&](std::int64_t& length, std::int64_t wish) {
    const std::int64_t more = std::clamp<std::int64_t>(wish - length, 0, left);
    length += more;
    left -= more;
  };
  // One sequence is the longest where the total allows; the others are anything.
  if (!lengths.empty()) give(lengths[static_cast<std::size_t>(rng_.integer(0, problem_.batch_size - 1))], longest);
  for (std::int64_t& length : lengths)
    if (length == 0 && !rng_.chance(0.15))
      give(length, rng_.chance(0.2) ? std::min<std::int64_t>(1, longest) : rng_.integer(0, longest));
  if (rng_.chance(0.7))
    for (std::int64_t& length : lengths) give(length, longest);
  std::vector<std::int64_t> cu_seqlens{0};
  for (const std::int64_t length : lengths) cu_seqlens.push_back(cu_seqlens.back() + length);
  return cu_seqlens;
}

void CallTensors::draw_lengths() {
  const Problem& p = problem_;
  lengths_.batch_size = p.batch_size;
  lengths_.seqlen_q = p.seqlen_q;
  lengths_.seqlen_k = p.seqlen_k;
  lengths_.total_q = p.total_q;
  lengths_.total_k = p.total_k;
  if (packed()) {
    const std::vector<std::int64_t> cu_q = draw_cu_seqlens(p.seqlen_q, p.total_q);
    const bool same = p.seqlen_q == p.seqlen_k && p.total_q == p.total_k && rng_.chance(0.5);
    options.cu_seqlens_q = add_lengths("cu_seqlens_q", cu_q);
    options.cu_seqlens_k = add_lengths("cu_seqlens_k", same ? cu_q : draw_cu_seqlens(p.seqlen_k, p.total_k));
    lengths_.cu_seqlens_q = int32_data(options.cu_seqlens_q);
    lengths_.cu_seqlens_k = int32_data(options.cu_seqlens_k);
  }
  std::vector<std::int64_t> used_q, used_k, leftpad;
  const auto part_of = [this](std::int64_t length) {
    return rng_.chance(0.2) ? length : rng_.chance(0.1) ? 0 : rng_.integer(0, length);
  };
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const device::Sequence s = sequence(b);
    used_q.push_back(part_of(s.all_q));
    leftpad.push_back(rng_.chance(0.5) ? rng_.integer(0, std::min<std::int64_t>(s.all_k, 9))
                                       : rng_.integer(0, s.all_k));
    used_k.push_back(part_of(p.leftpad_k ? s.all_k - leftpad.back() : s.all_k));
  }
  if (p.seqused_q) options.seqused_q = add_lengths("seqused_q", used_q);
  if (p.seqused_k) options.seqused_k = add_lengths("seqused_k", used_k);
  if (p.leftpad_k) options.leftpad_k = add_lengths("leftpad_k", leftpad);
  lengths_.seqused_q = int32_data(options.seqused_q);
  lengths_.seqused_k = int32_data(options.seqused_k);
  lengths_.leftpad_k = int32_data(options.leftpad_k);
}

/// From a seed of their own, so that all else is as without.
void CallTensors::draw_indices(std::uint64_t seed) {
  const Problem& p = problem_;
  if (p.top_k == 0) return;
  Random rng(seed + 0x1D1CE5u);
  const std::int64_t heads = operations::index_heads(p);
  const std::vector<int> order = packed() ? std::vector{0, 1, 2} : std::vector{0, 1, 2, 3};
  const std::vector<std::int64_t> shape =
      packed() ? std::vector{p.total_q, heads, p.top_k} : std::vector{p.batch_size, p.seqlen_q, heads, p.top_k};
  const TensorView view =
      add_poisoned("key_indices", DType::i32, shape, random_placement(order, true, rng), rng).buffer.view();
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const device::Sequence s = sequence(b);
    fill_indices(view, b, s.q_row, s.seqlen_q, s.seqlen_k, rng);
  }
  options.key_indices = view;
}

TensorView CallTensors::add_rows(std::string name, Side side, std::int64_t heads, std::int64_t dim) {
  return add_input(std::move(name), problem_.dtype, data_shape(side, heads, dim), data_placement(rng_));
}

/// As add_rows(); now and then all sequences or all heads read the same memory (stride 0).
TensorView CallTensors::add_shared_rows(std::string name, Side side, std::int64_t heads, std::int64_t dim) {
  const bool whole = side == Side::query ? !problem_.seqused_q : !problem_.seqused_k && !problem_.leftpad_k;
  const int axis = packed() ? 1 : whole && rng_.chance(0.5) ? 0 : 2;  // sequences share only what they all use
  std::vector<std::int64_t> shape = data_shape(side, heads, dim);
  std::int64_t& size = shape[static_cast<std::size_t>(axis)];
  if (size < 2 || !rng_.chance(0.1)) return add_rows(std::move(name), side, heads, dim);
  const std::int64_t copies = std::exchange(size, 1);
  TensorView view = add_input(std::move(name), problem_.dtype, std::move(shape), data_placement(rng_));
  view.shape[static_cast<std::size_t>(axis)] = copies;
  view.strides[static_cast<std::size_t>(axis)] = 0;
  return view;
}

/// Own tensors, one packed qkv tensor, or v as the first columns of k.
void CallTensors::place_qkv() {
  const Problem& p = problem_;
  const auto head_axis = static_cast<std::size_t>(packed() ? 1 : 2);
  const auto slice = [&](TensorView view, std::int64_t head, std::int64_t heads, std::int64_t dim) {
    view.data = static_cast<std::byte*>(view.data) +
                static_cast<std::size_t>(head * view.strides[head_axis]) * size_of(view.dtype);
    view.shape[head_axis] = heads;
    view.shape[head_axis + 1] = dim;
    return view;
  };
  const bool same_rows = p.seqlen_q == p.seqlen_k && p.total_q == p.total_k;
  if (same_rows && rng_.chance(0.25)) {
    const std::int64_t dim = std::max(p.head_dim, p.head_dim_v);
    const TensorView qkv = add_rows("qkv", Side::query, p.num_heads_q + 2 * p.num_heads_k, dim);
    q_ = slice(qkv, 0, p.num_heads_q, p.head_dim);
    k_ = slice(qkv, p.num_heads_q, p.num_heads_k, p.head_dim);
    v_ = slice(qkv, p.num_heads_q + p.num_heads_k, p.num_heads_k, p.head_dim_v);
    inputs_.back().views = {q_, k_, v_};
    return;
  }
  q_ = add_shared_rows("q", Side::query, p.num_heads_q, p.head_dim);
  k_ = add_shared_rows("k", Side::key, p.num_heads_k, p.head_dim);
  const bool v_in_k = p.head_dim_v < p.head_dim && rng_.chance(0.3);
  v_ =
      v_in_k ? slice(k_, 0, p.num_heads_k, p.head_dim_v) : add_shared_rows("v", Side::key, p.num_heads_k, p.head_dim_v);
}

void CallTensors::draw_qkv() {
  place_qkv();
  const double size_q = rng_.pick({1.0, 1.0, 1.0, 0.1, 3.0});
  // Scores that grow or shrink along the keys move the running maximum of an online softmax.
  const double slope = rng_.chance(0.3) ? rng_.uniform(-2.0, 2.0) : 0.0;
  const auto normal = [this](std::int64_t, std::int64_t) { return rng_.normal(); };
  fill_rows(v_, Side::key, Part::used, normal);
  fill_rows(q_, Side::query, Part::used, [&](std::int64_t, std::int64_t) { return size_q * rng_.normal(); });
  fill_rows(k_, Side::key, Part::used, [&](std::int64_t row, std::int64_t rows) {
    return rng_.normal() *
           (1.0 + std::abs(slope) * static_cast<double>(slope > 0 ? row : rows - row) / static_cast<double>(rows));
  });
}

/// Products of small integers times a power of two: every order of summing them is exact, so that scores to 1e9 are
/// the same numbers everywhere. Now and then all are equal.
void CallTensors::draw_large_scores() {
  // What is left of a gradient must fit f16.
  const int most = problem_.dtype == DType::f16 ? 6 : problem_.dtype == DType::fp8_e4m3 ? 7 : 14;
  const auto power = [&] { return std::ldexp(1.0, static_cast<int>(special_rng_.integer(0, most))); };
  const double size_q = power(), size_k = power();
  const bool equal = special_rng_.chance(0.3);
  const auto integer = [&] { return equal ? 1.0 : static_cast<double>(special_rng_.integer(-2, 2)); };
  fill_rows(q_, Side::query, Part::used, [&](std::int64_t, std::int64_t) { return size_q * integer(); });
  fill_rows(k_, Side::key, Part::used, [&](std::int64_t, std::int64_t) { return size_k * integer(); });
}

/// What masks that are added hide with, over a range of keys or over whole rows, and numbers as large above 0.
void CallTensors::draw_large_bias() {
  const TensorView& bias = options.bias;
  const double number = std::min(special_rng_.pick({1e4, 1e9, 1e10, 1e12, 1e20, 1e30, largest_finite(bias.dtype)}),
                                 largest_finite(bias.dtype));
  const double value = special_rng_.chance(0.2) ? number : -number;
  const bool in_rows = special_rng_.chance(0.4);
  const std::int64_t last = special_rng_.integer(0, problem_.seqlen_k);
  const std::int64_t first = special_rng_.chance(0.7) ? 0 : special_rng_.integer(0, last);
  for_each_element(bias, [&](std::span<const std::int64_t> position, std::int64_t offset) {
    std::array<std::int64_t, 4> at{};  // leading dimensions may have been left out
    std::copy(position.begin(), position.end(), at.end() - static_cast<std::ptrdiff_t>(position.size()));
    const bool chosen = (at[3] >= first && at[3] < last) || (in_rows && at[2] % 3 == 1);
    if (chosen && bias_used(at) && std::isfinite(value_at(bias, offset))) store_at(bias, offset, value);
  });
}

void CallTensors::draw_large_values() {
  // Errors of a large cap's tanh are whole units of an exponent, which no gradient can be held to.
  const bool bounded = problem_.operation == Operation::attention_forward || problem_.softcap < 1e4;
  if (special_rng_.chance(0.5) && bounded) draw_large_scores();
  if (options.bias.defined() && options.bias.dtype != DType::boolean && special_rng_.chance(0.8)) draw_large_bias();
  if (!options.sink.defined() || special_rng_.chance(0.3)) return;
  for_each_element(options.sink, [&](std::span<const std::int64_t>, std::int64_t offset) {
    if (special_rng_.chance(0.6)) store_at(options.sink, offset, large_value(options.sink.dtype, special_rng_));
  });
}

/// Whether some sequence reads this element of the bias.
bool CallTensors::bias_used(std::span<const std::int64_t> position) const {
  const BiasDims& dims = problem_.bias_dims;
  const std::int64_t first = dims.batch ? position[0] : 0, last = dims.batch ? position[0] : problem_.batch_size - 1;
  for (std::int64_t b = first; b <= last; ++b) {
    const device::Sequence s = sequence(b);
    const bool query = dims.query ? position[2] < s.seqlen_q : s.seqlen_q > 0;
    const bool key = dims.key ? position[3] >= s.leftpad && position[3] < s.leftpad + s.seqlen_k : s.seqlen_k > 0;
    if (query && key) return true;
  }
  return false;
}

void CallTensors::draw_bias() {
  if (problem_.bias == BiasKind::none) return;
  const bool boolean = problem_.bias == BiasKind::boolean;
  const DType dtype = operations::attention::bias_dtype(problem_);
  Placement placement = random_placement({0, 1, 2, 3}, aligned_, rng_);
  if (aligned_) placement = with_aligned_rows(std::move(placement), dtype);
  const TensorView bias = add_input("bias", dtype, bias_shape(), placement);
  const double hidden = rng_.pick({0.0, 0.1, 0.5, 0.95}), size = rng_.pick({1.0, 1.0, 5.0});
  const bool hides_rows = rng_.chance(0.3);
  const double hidden_value = boolean ? 0.0 : -kInfinity;
  for_each_element(bias, [&](std::span<const std::int64_t> position, std::int64_t offset) {
    if (!bias_used(position)) return;
    const bool hide = rng_.chance(hidden) || (hides_rows && position[2] % 5 == 3);
    store_at(bias, offset, hide ? hidden_value : boolean ? 1.0 : size * rng_.normal());
  });
  options.bias = bias;
  while (options.bias.rank > 1 && options.bias.shape[0] == 1 && rng_.chance(0.3))  // leading ones may be left out
    options.bias = without_leading(options.bias, 1);
}

void CallTensors::draw_head_options() {
  const Problem& p = problem_;
  if (p.alibi_slopes != AlibiKind::none) {
    const bool per_batch = p.alibi_slopes == AlibiKind::per_batch_head;
    const DType dtype = operations::statistics_dtype(p.dtype);
    options.alibi_slopes =
        per_batch
            ? add_input("alibi_slopes", dtype, {p.batch_size, p.num_heads_q}, random_placement({0, 1}, false, rng_))
            : add_input("alibi_slopes", dtype, {p.num_heads_q}, random_placement({0}, false, rng_));
    const double size = rng_.pick({0.01, 0.1, 1.0});
    for_each_element(options.alibi_slopes, [&](std::span<const std::int64_t>, std::int64_t offset) {
      store_at(options.alibi_slopes, offset, rng_.chance(0.1) ? 0.0 : size * rng_.uniform(-0.2, 1.0));
    });
  }
  if (p.sink != SinkKind::none) {
    options.sink =
        add_input("sink", operations::attention::sink_dtype(p), {p.num_heads_q}, random_placement({0}, false, rng_));
    for_each_element(options.sink, [&](std::span<const std::int64_t>, std::int64_t offset) {
      store_at(options.sink, offset, 2.0 * rng_.normal());
    });
  }
}

void CallTensors::draw_tables() {
  for (std::size_t i = 0; i < problem_.tables.size(); ++i) {
    const TableShape& table = problem_.tables[i];
    std::vector<int> order(static_cast<std::size_t>(table.rank));
    std::iota(order.begin(), order.end(), 0);
    const TensorView view =
        add_input(std::string(operations::attention::table_name(i)), table.dtype,
                  {table.shape.begin(), table.shape.begin() + table.rank}, random_placement(order, false, rng_));
    fill_table(view, rng_);
    options.tables.push_back(view);
  }
}

void CallTensors::draw_scales() {
  const Problem& p = problem_;
  const auto draw = [&](std::string name, ScaleKind kind, std::int64_t heads, TensorView& view,
                        std::optional<double>& number) {
    const auto scale = [this] { return rng_.uniform(0.25, 2.0); };
    if (kind == ScaleKind::none) return;
    if (kind == ScaleKind::tensor && rng_.chance(0.5)) {
      number = scale();
      return;
    }
    const bool whole = kind == ScaleKind::tensor, own = kind == ScaleKind::head;
    view = own || whole
               ? add_input(std::move(name), DType::f32, {whole ? 1 : heads}, random_placement({0}, false, rng_))
               : add_input(std::move(name), DType::f32, {p.batch_size, p.num_heads_k},
                           random_placement({0, 1}, false, rng_));
    for_each_element(view,
                     [&](std::span<const std::int64_t>, std::int64_t offset) { store_at(view, offset, scale()); });
    if (whole) view = without_leading(view, 1);
  };
  draw("q_scale", p.q_scale, p.num_heads_q, options.q_scale, options.q_scale_value);
  draw("k_scale", p.k_scale, p.num_heads_k, options.k_scale, options.k_scale_value);
  draw("v_scale", p.v_scale, p.num_heads_k, options.v_scale, options.v_scale_value);
}

void CallTensors::draw_seed() {
  if (problem_.dropout_p == 0.0) return;
  const std::uint64_t seed = rng_.next(), offset = rng_.next();
  if (!problem_.seed_tensor) {
    options.seed = seed;
    options.offset = offset;
    return;
  }
  options.seed_and_offset = add_input("seed_and_offset", DType::i64, {2}, random_placement({0}, false, rng_));
  auto* data = static_cast<std::int64_t*>(options.seed_and_offset.data);
  data[0] = static_cast<std::int64_t>(seed);
  data[options.seed_and_offset.strides[0]] = static_cast<std::int64_t>(offset);
}

void CallTensors::draw_gradients() {
  const Problem backward = problem_;
  problem_ = forward_of(backward);
  std::vector<Output> outputs = make_forward_outputs(rng_, true);
  run(plan("reference", outputs), outputs);
  problem_ = backward;
  for (Output& output : outputs) {
    // Nothing may look at the rows that don't count, though the forward pass wrote them.
    fill_rows(output.buffer.view(), Side::query, Part::unused,
              [](std::int64_t, std::int64_t) { return std::numeric_limits<double>::quiet_NaN(); });
    (output.name == "out" ? out_ : softmax_lse_) = output.buffer.view();
    inputs_.push_back({output.name, std::move(output.buffer), {}});
    inputs_.back().views = {inputs_.back().buffer.view()};
  }
  const auto normal = [this](std::int64_t, std::int64_t) { return rng_.normal(); };
  dout_ = add_shared_rows("dout", Side::query, backward.num_heads_q, backward.head_dim_v);
  fill_rows(dout_, Side::query, Part::used, normal);
  if (backward.dlse) {
    const std::vector<int> order = packed() ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
    dlse_ = add_input("dlse", operations::statistics_dtype(backward.dtype), lse_shape(),
                      random_placement(order, false, rng_));
    fill_rows(dlse_, Side::query, Part::used, normal);
  }
  if (values_ == Values::special) plant_special_gradients();
}

}  // namespace tilewise::verify
