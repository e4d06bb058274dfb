// The options of a drawn KV cache call: scales, rotary tables, what scores have, and special values among its inputs.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "verify/draw_block_mask.hpp"
#include "verify/draw_functions.hpp"
#include "verify/draw_indices.hpp"
#include "verify/kv_cache_call.hpp"

namespace tilewise::verify {

void DrawnKvCache::draw_scales() {
  const KvCacheProblem& p = problem_;
  const auto draw = [&](std::string name, TensorView& view, std::optional<double>& number) {
    if (p.scales == CacheScales::tensor && rng_.chance(0.5)) {
      number = rng_.uniform(0.02, 1.5);
      return;
    }
    std::vector<std::int64_t> shape;
    if (p.scales == CacheScales::head) shape = {p.num_heads_k};
    if (p.scales == CacheScales::batch_head) shape = {p.batch_size, p.num_heads_k};
    if (p.scales == CacheScales::token) {
      shape = cache_shape(0);
      shape.pop_back();
    }
    view = add(std::move(name), DType::f32, shape, false);
    for_each_element(
        view, [&](std::span<const std::int64_t>, std::int64_t at) { store_at(view, at, rng_.uniform(0.02, 1.5)); });
  };
  if (p.scales == CacheScales::none) return;
  draw("k_scale", options_.k_scale, options_.k_scale_value);
  if (!p.mla) draw("v_scale", options_.v_scale, options_.v_scale_value);
}

void DrawnKvCache::draw_rotary() {
  const KvCacheProblem& p = problem_;
  if (p.rotary_dim == 0) return;
  std::int64_t last = 0;
  if (p.rotary_seqlens) {
    std::vector<std::int64_t> first;
    for (std::int64_t b = 0; b < p.batch_size; ++b) first.push_back(rng_.integer(0, 40));
    options_.rotary_seqlens = add_lengths("rotary_seqlens", first);
    last = 40;
  } else {
    for (const std::int64_t cached : cached_) last = std::max(last, cached);
  }
  const std::int64_t rows = last + std::max(p.seqlen_q, p.seqlen_k_new) + rng_.integer(1, 3);
  const DType dtype = operations::kv_cache::rotary_dtype(p);
  const TensorView cos = add("rotary_cos", dtype, {rows, p.rotary_dim / 2}, true);
  const TensorView sin = add("rotary_sin", dtype, {rows, p.rotary_dim / 2}, true);
  for_each_element(cos, [&](std::span<const std::int64_t> position, std::int64_t at) {
    const double angle = rng_.uniform(-4.0, 4.0);
    store_at(cos, at, std::cos(angle));
    store_at(sin, offset_of(sin, position), std::sin(angle));
  });
  options_.rotary_cos = cos;
  options_.rotary_sin = sin;
}

void DrawnKvCache::draw_scores() {
  const KvCacheProblem& p = problem_;
  if (p.alibi_slopes != AlibiKind::none) {
    const bool per_batch = p.alibi_slopes == AlibiKind::per_batch_head;
    const TensorView slopes =
        add("alibi_slopes", DType::f32,
            per_batch ? std::vector{p.batch_size, p.num_heads_q} : std::vector{p.num_heads_q}, false);
    for_each_element(
        slopes, [&](std::span<const std::int64_t>, std::int64_t at) { store_at(slopes, at, rng_.uniform(0.0, 0.3)); });
    options_.alibi_slopes = slopes;
  }
  if (p.sink == SinkKind::none) return;
  const TensorView sink = add("sink", operations::kv_cache::sink_dtype(p), {p.num_heads_q}, false);
  for_each_element(sink, [&](std::span<const std::int64_t>, std::int64_t at) { store_at(sink, at, rng_.normal()); });
  options_.sink = sink;
}

void DrawnKvCache::draw_tables() {
  for (std::size_t i = 0; i < problem_.tables.size(); ++i) {
    const TableShape& table = problem_.tables[i];
    const auto rank = static_cast<std::size_t>(table.rank);
    const TensorView view = add(std::string(operations::table_name(i)), table.dtype,
                                std::vector(table.shape.begin(), table.shape.begin() + table.rank), rank == 0);
    fill_table(view, rng_);
    options_.tables.push_back(view);
  }
}

/// From a seed of their own, so that all else is as without.
void DrawnKvCache::draw_indices(std::uint64_t seed) {
  const KvCacheProblem& p = problem_;
  if (p.top_k == 0) return;
  Random rng(seed + 0x1D1CE5u);
  std::vector<std::int64_t> shape = rows_shape(true, operations::index_heads(p), p.top_k);
  const Placement rows = placement(shape.size(), DType::i32, true, rng);
  const TensorView view = add_poisoned("key_indices", DType::i32, std::move(shape), rows, rng).buffer.view();
  for (std::size_t n = 0; n < cached_.size(); ++n) {
    const auto b = static_cast<std::int64_t>(n);
    const bool packed = !cu_q_.empty();
    const std::int64_t first = packed ? cu_q_[n] : 0, count = packed ? cu_q_[n + 1] - first : p.seqlen_q;
    const std::int64_t added = !p.append ? 0 : cu_new_.empty() ? p.seqlen_k_new : cu_new_[n + 1] - cu_new_[n];
    const std::int64_t seqlen_k = cached_[n] + added - (leftpad_.empty() ? 0 : leftpad_[n]);
    fill_indices(view, b, first, count, std::max<std::int64_t>(seqlen_k, 0), rng);
  }
  options_.key_indices = view;
}

/// Likewise.
void DrawnKvCache::draw_block_mask(std::uint64_t seed) {
  if (!operations::has_block_mask(problem_)) return;
  Random rng(seed + 0xB10C5u);
  options_.block_rows = problem_.block_mask.rows;
  options_.block_keys = problem_.block_mask.keys;
  const auto add = [&](std::string name, std::vector<std::int64_t> shape) {
    const Placement placed = placement(shape.size(), DType::i32, false, rng);
    return add_poisoned(std::move(name), DType::i32, std::move(shape), placed, rng).buffer.view();
  };
  options_.block_mask = drawn_block_mask(operations::kv_cache::blocked_scores(problem_), add, rng);
}

/// Small integers times a power of two, whose products sum exactly in any order; equal ones now and then.
void DrawnKvCache::draw_large_values(Random& rng) {
  if (!alone() && rng.chance(0.7)) {
    const auto power = [&rng](DType dtype) {
      return std::ldexp(1.0, static_cast<int>(rng.integer(0, dtype == DType::fp8_e4m3 ? 7 : 14)));
    };
    const double size_q = power(problem_.dtype), size_k = power(problem_.cache_dtype);
    const bool equal = rng.chance(0.3);
    const auto integer = [&] { return equal ? 1.0 : static_cast<double>(rng.integer(-2, 2)); };
    const auto fill = [&](const TensorView& view, double size) {
      for_each_element(view,
                       [&](std::span<const std::int64_t>, std::int64_t at) { store_at(view, at, size * integer()); });
    };
    fill(q_, size_q);
    if (k_.defined()) fill(k_, size_k);
    if (problem_.slots == SlotKind::none) fill_places(k_cache_, [&] { return size_k * integer(); });
  }
  if (!options_.sink.defined() || rng.chance(0.3)) return;
  for_each_element(options_.sink, [&](std::span<const std::int64_t>, std::int64_t at) {
    if (rng.chance(0.6)) store_at(options_.sink, at, large_value(options_.sink.dtype, rng));
  });
}

void DrawnKvCache::plant_special_values(Random& rng) {
  const auto plant = [&](const TensorView& view, std::int64_t offset, int first_axis) {
    for (int axis = first_axis; axis < view.rank; ++axis) {
      const auto n = static_cast<std::size_t>(axis);
      if (view.shape[n] == 0) return;
      offset += rng.integer(0, view.shape[n] - 1) * view.strides[n];
    }
    store_at(view, offset, special_value(rng));
  };
  const std::int64_t count = rng.integer(1, 3);
  for (std::int64_t n = 0; n < count; ++n) {
    const TensorView& view = rng.pick({q_, k_, v_, k_cache_, v_cache_, k_cache_, v_cache_});
    if (!view.defined()) continue;
    if (view.data != k_cache_.data && view.data != v_cache_.data) {
      plant(view, 0, 0);
      continue;
    }
    if (cached_.empty() || problem_.slots != SlotKind::none) continue;
    const auto b = static_cast<std::size_t>(rng.integer(0, problem_.batch_size - 1));
    if (rows_[b] < 0 || cached_[b] <= leftpad_[b]) continue;
    plant(view, place_offset(view, b, rng.integer(leftpad_[b], cached_[b] - 1)), 2);
  }
}

}  // namespace tilewise::verify
