// What a KV cache call's inputs hold, its outputs, and running it.
#include "verify/kv_cache_call.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "core/device.hpp"
#include "core/message.hpp"
#include "verify/verify.hpp"

namespace tilewise::verify {
namespace {

using operations::kv_cache::capacity_of, operations::kv_cache::is_fp8, operations::kv_cache::is_packed;
using operations::kv_cache::is_paged;
using operations::kv_cache::KvCacheParams, operations::kv_cache::Sequence;

std::vector<int> natural_order(std::size_t rank) {
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

TensorView view_named(const std::vector<Output>& outputs, std::string_view name, const TensorView& otherwise) {
  const Output* output = find_output(outputs, name);
  return output == nullptr ? otherwise : output->buffer.view();
}

void copy_elements(const TensorView& from, const TensorView& to) {
  const std::size_t size = size_of(from.dtype);
  for_each_element(from, [&](std::span<const std::int64_t> position, std::int64_t offset) {
    const auto* source = static_cast<const std::byte*>(from.data) + offset * static_cast<std::int64_t>(size);
    std::copy_n(source, size,
                static_cast<std::byte*>(to.data) + offset_of(to, position) * static_cast<std::int64_t>(size));
  });
}

}  // namespace

DrawnKvCache::DrawnKvCache(const KvCacheProblem& problem, std::uint64_t seed, Values values)
    : problem_(problem), values_(values), rng_(seed), aligned_(draws_aligned_rows(seed)) {
  tilewise::validate(problem);
  options_ = operations::kv_cache::stated_options(problem);
  draw_lengths();
  draw_rows();
  if (is_paged(problem) && problem.slots == SlotKind::none) draw_pages();
  if (problem.slots != SlotKind::none) draw_slots();
  draw_caches();
  draw_scales();
  draw_rotary();
  if (!alone()) draw_scores();
  draw_tables();
  draw_indices(seed);
  draw_block_mask(seed);
  Random special_rng(~seed);  // of its own, so that all else is as with ordinary values
  if (values == Values::special) plant_special_values(special_rng);
  if (values == Values::large) draw_large_values(special_rng);
  seal_inputs();
  const std::vector<Output> outputs = make_outputs(0);
  problem_ = alone() ? describe(append_arguments(outputs)) : describe(arguments(outputs));
}

std::vector<std::int64_t> DrawnKvCache::rows_shape(bool queries, std::int64_t heads, std::int64_t dim) const {
  const KvCacheProblem& p = problem_;
  if (is_packed(p)) return {queries ? p.total_q : p.total_k_new, heads, dim};
  return {p.batch_size, queries ? p.seqlen_q : p.seqlen_k_new, heads, dim};
}

std::vector<std::int64_t> DrawnKvCache::cache_shape(std::int64_t dim) const {
  const KvCacheProblem& p = problem_;
  if (is_paged(p)) return {p.num_pages, p.page_size, p.num_heads_k, dim};
  return {p.batch_size_cache, p.capacity, p.num_heads_k, dim};
}

std::vector<std::string_view> DrawnKvCache::rows_axes() const {
  if (is_packed(problem_)) return {"row", "head", "dim"};
  return {"batch", "row", "head", "dim"};
}

Placement DrawnKvCache::placement(std::size_t rank, DType dtype, bool last_contiguous, Random& rng) const {
  Placement placement = random_placement(natural_order(rank), last_contiguous, rng);
  return aligned_ ? with_aligned_rows(std::move(placement), dtype) : placement;
}

TensorView DrawnKvCache::add(std::string name, DType dtype, const std::vector<std::int64_t>& shape,
                             bool last_contiguous) {
  return add_poisoned(std::move(name), dtype, shape, placement(shape.size(), dtype, last_contiguous, rng_), rng_)
      .buffer.view();
}

TensorView DrawnKvCache::add_normal(std::string name, DType dtype, const std::vector<std::int64_t>& shape) {
  const TensorView view = add(std::move(name), dtype, shape, true);
  for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t at) { store_at(view, at, rng_.normal()); });
  return view;
}

TensorView DrawnKvCache::add_lengths(std::string name, const std::vector<std::int64_t>& values) {
  const TensorView view =
      add_poisoned(std::move(name), DType::i32, {static_cast<std::int64_t>(values.size())}, Placement{{0}}, rng_)
          .buffer.view();
  for (std::size_t n = 0; n < values.size(); ++n)
    store_at(view, static_cast<std::int64_t>(n), static_cast<double>(values[n]));
  return view;
}

std::vector<std::int64_t> DrawnKvCache::draw_cu_seqlens(std::int64_t total, std::int64_t longest) {
  std::vector<std::int64_t> cu{0};
  for (std::int64_t b = 0; b < problem_.batch_size; ++b) {
    const std::int64_t most = std::min(longest, total - cu.back());
    cu.push_back(cu.back() + (rng_.chance(0.3) ? std::min<std::int64_t>(1, most) : rng_.integer(0, most)));
  }
  return cu;
}

/// Rows and places of each sequence, such that its new keys fit.
void DrawnKvCache::draw_lengths() {
  const KvCacheProblem& p = problem_;
  const std::int64_t capacity = capacity_of(p);
  if (is_packed(p)) {
    if (!alone()) cu_q_ = draw_cu_seqlens(p.total_q, p.seqlen_q);
    if (alone() && p.batch_size == 1 && p.total_k_new == p.seqlen_k_new) {
      cu_new_ = {0, p.total_k_new};
    } else if (p.append) {
      const bool alike = !alone() && p.total_k_new == p.total_q && p.seqlen_k_new == p.seqlen_q && rng_.chance(0.5);
      cu_new_ = alike ? cu_q_ : draw_cu_seqlens(p.total_k_new, std::min(p.seqlen_k_new, capacity));
      if (p.slots != SlotKind::none) cu_new_ = draw_cu_seqlens(p.total_k_new, p.seqlen_k_new);
      if (!alike) options_.cu_seqlens_k_new = add_lengths("cu_seqlens_k_new", cu_new_);
      if (alike && capacity < p.seqlen_q) core::invalid_argument("capacity: must hold the new keys");
    }
    if (!alone()) options_.cu_seqlens_q = add_lengths("cu_seqlens_q", cu_q_);
  }
  const std::int64_t number = rng_.integer(0, std::max<std::int64_t>(capacity - p.seqlen_k_new, 0));
  const bool counted = p.append || rng_.chance(0.5);
  if (!p.cache_seqlens && p.slots == SlotKind::none && counted) options_.cache_seqlen = number;
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const auto n = static_cast<std::size_t>(b);
    const std::int64_t added = !p.append ? 0 : is_packed(p) ? cu_new_[n + 1] - cu_new_[n] : p.seqlen_k_new;
    std::int64_t cached = counted ? number : capacity;
    if (p.cache_seqlens) {
      cached = rng_.chance(0.08) || added > capacity ? -rng_.integer(1, 5) : rng_.integer(0, capacity - added);
    } else if (p.slots == SlotKind::none && cached + added > capacity) {
      core::invalid_argument("k_cache: must hold the new keys, ", added, ", to be drawn (got ", capacity, " places)");
    }
    cached_.push_back(cached);
    leftpad_.push_back(p.cache_leftpad && cached >= 0 ? rng_.integer(0, (cached + added + 1) / 2) : 0);
    rows_.push_back(b);
  }
  if (p.cache_seqlens) options_.cache_seqlens = add_lengths("cache_seqlens", cached_);
  if (p.cache_leftpad) options_.cache_leftpad = add_lengths("cache_leftpad", leftpad_);
  if (!p.cache_batch_idx) return;
  std::vector<std::int64_t> order(static_cast<std::size_t>(p.batch_size_cache));
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = order.size(); i > 1; --i)
    std::swap(order[i - 1], order[static_cast<std::size_t>(rng_.integer(0, static_cast<std::int64_t>(i) - 1))]);
  for (std::size_t b = 0; b < rows_.size(); ++b) rows_[b] = b < order.size() && !rng_.chance(0.15) ? order[b] : -1;
  options_.cache_batch_idx = add_lengths("cache_batch_idx", rows_);
}

void DrawnKvCache::draw_rows() {
  const KvCacheProblem& p = problem_;
  if (!alone()) q_ = add_normal("q", p.dtype, rows_shape(true, p.num_heads_q, p.head_dim));
  if (!p.append) return;
  k_ = add_normal("k", p.dtype, rows_shape(false, p.num_heads_k, p.head_dim));
  if (!p.mla) v_ = add_normal("v", p.dtype, rows_shape(false, p.num_heads_k, p.head_dim_v));
}

/// Pages in random order; those that are written belong to one sequence. Other entries hold anything.
void DrawnKvCache::draw_pages() {
  const KvCacheProblem& p = problem_;
  const TensorView table = add("block_table", DType::i32, {p.batch_size, p.max_pages_per_seq}, true);
  for_each_element(table, [&](std::span<const std::int64_t>, std::int64_t at) {
    store_at(table, at, rng_.pick({-1.0, -2147483648.0, 2147483647.0, static_cast<double>(p.num_pages)}));
  });
  options_.block_table = table;
  std::vector<std::int64_t> pages(static_cast<std::size_t>(p.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  for (std::size_t i = pages.size(); i > 1; --i)
    std::swap(pages[i - 1], pages[static_cast<std::size_t>(rng_.integer(0, static_cast<std::int64_t>(i) - 1))]);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const auto n = static_cast<std::size_t>(b);
    if (cached_[n] < 0) continue;
    const std::int64_t added = !p.append ? 0 : is_packed(p) ? cu_new_[n + 1] - cu_new_[n] : p.seqlen_k_new;
    for (std::int64_t page = 0; page * p.page_size < cached_[n] + added; ++page) {
      if (p.append && next == pages.size()) {
        core::invalid_argument("num_pages: must be enough for every sequence's keys to be drawn (got ", p.num_pages,
                               ")");
      }
      if (pages.empty()) core::invalid_argument("num_pages: must be >= 1 to be drawn (got 0)");
      const std::size_t at = p.append ? next++ : static_cast<std::size_t>(rng_.integer(0, p.num_pages - 1));
      store_at(table, b * table.strides[0] + page, static_cast<double>(pages[at]));
    }
  }
}

/// Each at most once.
void DrawnKvCache::draw_slots() {
  const KvCacheProblem& p = problem_;
  const std::vector<std::int64_t> shape =
      is_packed(p) ? std::vector{p.total_k_new} : std::vector{p.batch_size, p.seqlen_k_new};
  const TensorView view = add("slots", p.slots == SlotKind::i64 ? DType::i64 : DType::i32, shape, false);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(p.num_pages * p.page_size));
  std::iota(slots.begin(), slots.end(), 0);
  for (std::size_t i = slots.size(); i > 1; --i)
    std::swap(slots[i - 1], slots[static_cast<std::size_t>(rng_.integer(0, static_cast<std::int64_t>(i) - 1))]);
  std::size_t next = 0;
  for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t at) {
    const bool skipped = next == slots.size() || rng_.chance(0.1);
    store_at(view, at, skipped ? -1.0 : static_cast<double>(slots[next++]));
  });
  options_.slots = view;
}

void DrawnKvCache::fill_cache(const TensorView& cache) {
  const KvCacheProblem& p = problem_;
  const bool nans = rng_.chance(0.6);
  for_each_element(cache, [&](std::span<const std::int64_t>, std::int64_t at) {
    store_at(cache, at, nans ? std::numeric_limits<double>::quiet_NaN() : 448.0);
  });
  if (p.slots != SlotKind::none) return;
  const bool wide = rng_.chance(0.3);
  fill_places(cache, [&] { return (wide ? 8.0 : 1.0) * rng_.normal(); });
}

void DrawnKvCache::fill_places(const TensorView& cache, const std::function<double()>& draw) {
  const KvCacheProblem& p = problem_;
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const auto n = static_cast<std::size_t>(b);
    for (std::int64_t place = leftpad_[n]; rows_[n] >= 0 && place < cached_[n]; ++place) {
      const std::int64_t at = place_offset(cache, n, place);
      for (std::int64_t h = 0; h < p.num_heads_k; ++h)
        for (std::int64_t d = 0; d < cache.shape[3]; ++d) store_at(cache, at + h * cache.strides[2] + d, draw());
    }
  }
}

std::int64_t DrawnKvCache::place_offset(const TensorView& cache, std::size_t sequence, std::int64_t place) const {
  std::int64_t row = rows_[sequence];
  if (is_paged(problem_)) {
    const TensorView& table = options_.block_table;
    const auto entry = static_cast<std::int64_t>(sequence) * table.strides[0] + place / problem_.page_size;
    row = static_cast<std::int64_t>(value_at(table, entry));
    place %= problem_.page_size;
  }
  return row * cache.strides[0] + place * cache.strides[1];
}

void DrawnKvCache::draw_caches() {
  const KvCacheProblem& p = problem_;
  k_cache_ = add("k_cache", p.cache_dtype, cache_shape(p.head_dim), true);
  fill_cache(k_cache_);
  if (p.mla) return;
  v_cache_ = add("v_cache", p.cache_dtype, cache_shape(p.head_dim_v), true);
  fill_cache(v_cache_);
}

std::vector<Output> DrawnKvCache::make_outputs(std::uint64_t seed) const {
  Random rng(seed);
  const KvCacheProblem& p = problem_;
  std::vector<Output> outputs;
  // Packed rows past the last sequence stay untouched.
  const std::int64_t rows = cu_q_.empty() ? 0 : cu_q_.back();
  if (!alone()) {
    const std::vector<std::int64_t> shape = rows_shape(true, p.num_heads_q, p.head_dim_v);
    outputs.push_back({"out", Buffer(p.dtype, shape, placement(shape.size(), p.dtype, true, rng)),
                       is_packed(p) ? 0 : -1, rows, rows_axes()});
  }
  if (p.softmax_lse) {
    const std::vector<std::int64_t> shape =
        is_packed(p) ? std::vector{p.num_heads_q, p.total_q} : std::vector{p.batch_size, p.num_heads_q, p.seqlen_q};
    outputs.push_back({"softmax_lse",
                       Buffer(DType::f32, shape, placement(shape.size(), DType::f32, false, rng)),
                       is_packed(p) ? 1 : -1,
                       rows,
                       {"batch", "head", "row"}});
    outputs.back().is_log_sum = true;
  }
  if (!p.append) return outputs;
  const auto add_changed = [&](std::string name, const TensorView& before, std::vector<std::string_view> axes) {
    if (!before.defined()) return;
    const std::vector<std::int64_t> shape(before.shape.begin(), before.shape.begin() + before.rank);
    Buffer buffer(before.dtype, shape, placement(shape.size(), before.dtype, before.rank == 4, rng));
    outputs.push_back({std::move(name), std::move(buffer), -1, 0, std::move(axes), false, Model::exact});
    copy_elements(before, outputs.back().buffer.view());
  };
  add_changed("k_cache", k_cache_, {"page", "place", "head", "dim"});
  add_changed("v_cache", v_cache_, {"page", "place", "head", "dim"});
  if (p.scales != CacheScales::token) return outputs;
  add_changed("k_scale", options_.k_scale, {"page", "place", "head"});
  add_changed("v_scale", options_.v_scale, {"page", "place", "head"});
  return outputs;
}

KvCacheArguments DrawnKvCache::arguments(const std::vector<Output>& outputs) const {
  KvCacheArguments a{q_, view_named(outputs, "k_cache", k_cache_), view_named(outputs, "v_cache", v_cache_), k_,
                     v_, view_named(outputs, "out", {}),           view_named(outputs, "softmax_lse", {}),   options_};
  a.options.k_scale = view_named(outputs, "k_scale", options_.k_scale);
  a.options.v_scale = view_named(outputs, "v_scale", options_.v_scale);
  return a;
}

AppendKvArguments DrawnKvCache::append_arguments(const std::vector<Output>& outputs) const {
  const KvCacheArguments a = arguments(outputs);
  return {a.k_cache, a.v_cache, a.k, a.v, a.options};
}

namespace {

template <typename Arguments>
void change_given(Arguments& arguments, const Change& change) {
  operations::schema::change_each_tensor<operations::kv_cache::kSchema>(arguments, [&change](TensorView& view) {
    if (view.defined()) change(view);
  });
}

}  // namespace

Plan DrawnKvCache::plan(std::string_view implementation, const std::vector<Output>& outputs,
                        const Change& change) const {
  const auto planned = [&](auto arguments) {
    change_given(arguments, change);
    const core::DeviceScope scope(arguments.k_cache.device, nullptr);
    return tilewise::plan(describe(arguments), SelectOptions{std::string(implementation)});
  };
  return alone() ? planned(append_arguments(outputs)) : planned(arguments(outputs));
}

void DrawnKvCache::launch(const Plan& plan, const std::vector<Output>& outputs, void* workspace,
                          const Change& change) const {
  const auto launched = [&](auto arguments) {
    change_given(arguments, change);
    tilewise::run(plan, arguments, workspace);
  };
  alone() ? launched(append_arguments(outputs)) : launched(arguments(outputs));
}

void DrawnKvCache::for_each_tensor(const std::vector<Output>& outputs, const Change& change,
                                   const TensorVisitor& visit) const {
  const auto visited = [&](auto arguments) {
    change_given(arguments, change);
    operations::schema::for_each_tensor(operations::KvCache::Call(arguments),
                                        [&visit](const core::ArgumentName& name, const TensorView& view, core::Access) {
                                          if (view.defined()) visit(core::concat(name), view);
                                        });
  };
  alone() ? visited(append_arguments(outputs)) : visited(arguments(outputs));
}

std::vector<ErrorBounds> DrawnKvCache::bounds(const std::vector<Output>& expected, double tanh_error) const {
  // The arguments must outlive the call made of them.
  const KvCacheArguments attention = arguments(expected);
  const AppendKvArguments append = append_arguments(expected);
  using operations::kv_cache::Call;
  const Call call = alone() ? Call(append) : Call(attention);
  return kv_cache_bounds(operations::kv_cache::make_params(call, problem_), problem_, expected, values_, tanh_error);
}

}  // namespace tilewise::verify
