// The options of a drawn KV cache call: scales, rotary tables, what scores have, and special values among its inputs.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

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
  options_.rotary_interleaved = p.rotary_interleaved;
  options_.rotary_offset = p.rotary_offset;
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
  options_.mask = p.mask;
  options_.window_left = p.window_left;
  options_.window_right = p.window_right;
  options_.softmax_scale = p.softmax_scale;
  options_.softcap = p.softcap;
  options_.num_splits = p.num_splits;
  options_.batch_invariant = p.batch_invariant;
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
