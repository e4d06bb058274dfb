// Appending to a cache; see append.hpp.
#include "backends/cpu/kv_cache/append.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "backends/cpu/rows.hpp"
#include "core/parallel.hpp"
#include "device/common/float8.h"
#include "operations/elements.hpp"
#include "operations/kv_cache/sequence.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::kv_cache::CachePlace, operations::kv_cache::KvCacheParams, operations::kv_cache::RotaryTables;
using operations::kv_cache::ScaleTensor, operations::kv_cache::Sequence;

constexpr std::int64_t kLargestHeadDim = 576;
constexpr std::int64_t kTokensATask = 16;

/// The scale that makes the row's largest value e4m3's. A NaN has no say; 1 where the quotient vanishes.
float scale_of(const float* row, std::int64_t size) {
  float largest = 0.0f;
  for (std::int64_t d = 0; d < size; ++d) largest = std::abs(row[d]) > largest ? std::abs(row[d]) : largest;
  const float scale = largest / device::kLargestE4m3;
  return scale > 0.0f ? scale : 1.0f;
}

/// Keys or values of a call: where they come from and go.
struct Stream {
  const device::Tensor4 &from, &cache;
  const ScaleTensor& scales;
  std::int64_t dim;
  bool rotated;
};

void append_token(const KvCacheParams& p, const Stream& stream, std::int64_t b, std::int64_t row,
                  const CachePlace& place, std::int64_t position) {
  const std::size_t size = size_of(p.dtype), cache_size = size_of(p.cache_dtype);
  std::array<float, kLargestHeadDim> values;
  for (std::int64_t h = 0; h < p.num_heads_k; ++h) {
    const void* from = row_address(stream.from, b, row, h, size);
    void* to = mutable_row_address(stream.cache, place.row, place.place, h, cache_size);
    if (!stream.rotated && p.scales == CacheScales::none) {
      std::memcpy(to, from, static_cast<std::size_t>(stream.dim) * size);
      continue;
    }
    load_row(p.dtype, from, stream.dim, values.data());
    if (stream.rotated) rotate_row(p.rotary, position, values.data());
    if (p.scales == CacheScales::none) {
      store_row(p.dtype, values.data(), stream.dim, to);
      continue;
    }
    if (p.scales == CacheScales::token)
      *stream.scales.at(b, place.row, place.place, h) = scale_of(values.data(), stream.dim);
    const float scale = stream.scales.load(b, place.row, place.place, h);
    auto* codes = static_cast<std::uint8_t*>(to);
    for (std::int64_t d = 0; d < stream.dim; ++d)
      codes[d] = device::float_to_e4m3(values[static_cast<std::size_t>(d)] / scale);
  }
}

}  // namespace

void load_row(DType dtype, const void* from, std::int64_t size, float* to) {
  if (dtype == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(float));
    return;
  }
  const auto* halves = static_cast<const std::uint16_t*>(from);
  if (dtype == DType::bf16) {
    for (std::int64_t d = 0; d < size; ++d) to[d] = device::bf16_to_float(halves[d]);
  } else {
    for (std::int64_t d = 0; d < size; ++d) to[d] = device::f16_to_float(halves[d]);
  }
}

void store_row(DType dtype, const float* from, std::int64_t size, void* to) {
  if (dtype == DType::f32) {
    std::memcpy(to, from, static_cast<std::size_t>(size) * sizeof(float));
    return;
  }
  auto* halves = static_cast<std::uint16_t*>(to);
  if (dtype == DType::bf16) {
    for (std::int64_t d = 0; d < size; ++d) halves[d] = device::float_to_bf16(from[d]);
  } else {
    for (std::int64_t d = 0; d < size; ++d) halves[d] = device::float_to_f16(from[d]);
  }
}

void rotate_row(const RotaryTables& r, std::int64_t position, float* row) {
  const std::int64_t half = r.dim / 2;
  const auto angle = [&r](const void* table, std::int64_t at) { return operations::load_element(r.dtype, table, at); };
  for (std::int64_t i = 0; i < half; ++i) {
    float& x = row[r.offset + (r.interleaved ? 2 * i : i)];
    float& y = row[r.offset + (r.interleaved ? 2 * i + 1 : i + half)];
    const double cosine = angle(r.cos, position * r.cos_stride + i), sine = angle(r.sin, position * r.sin_stride + i);
    const double first = x * cosine - y * sine, second = x * sine + y * cosine;
    x = static_cast<float>(first);
    y = static_cast<float>(second);
  }
}

void append_keys(const KvCacheParams& p) {
  const Stream keys{p.k, p.k_cache, p.k_scale, p.head_dim, p.rotary.dim > 0};
  const Stream values{p.v, p.v_cache, p.v_scale, p.head_dim_v, false};
  const std::int64_t blocks = (p.seqlen_k_new + kTokensATask - 1) / kTokensATask;
  const double tokens = static_cast<double>(p.batch_size) * static_cast<double>(p.seqlen_k_new);
  const double elements = tokens * static_cast<double>(p.num_heads_k * (p.head_dim + p.head_dim_v));
  // An element takes as long as some ten multiply-adds.
  core::parallel_for(p.batch_size * blocks, workers_for(20.0 * elements), [&](std::int64_t task, int) {
    const std::int64_t b = task / blocks, first = task % blocks * kTokensATask;
    const Sequence s = sequence_of(p, b);
    const std::int64_t position = p.rotary.dim > 0 ? rotary_position(p, s, b) : 0;
    for (std::int64_t t = first; t < std::min(first + kTokensATask, s.seqlen_new); ++t) {
      const CachePlace place = new_place(p, s, b, t);
      if (place.row < 0) continue;
      append_token(p, keys, b, s.new_row + t, place, position + t);
      if (!p.mla) append_token(p, values, b, s.new_row + t, place, 0);
    }
  });
}

}  // namespace tilewise::backends::cpu
