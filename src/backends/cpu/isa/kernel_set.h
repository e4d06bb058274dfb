// Builds the table of one instruction set's kernels.
#pragma once

#include "backends/cpu/isa/backward.h"
#include "backends/cpu/isa/compute_real.h"
#include "backends/cpu/isa/decode.h"
#include "backends/cpu/isa/forward.h"

namespace tilewise::backends::cpu {

template <class V, class In>
double dot_rows(const void* a, const void* b, int64_t size) {
  const In *x = static_cast<const In*>(a), *y = static_cast<const In*>(b);
  typename V::F sum = V::zero();
  int64_t i = 0;
  for (; i + V::kLanes <= size; i += V::kLanes) sum = V::fma(V::load(x + i), V::load(y + i), sum);
  if (i < size) {
    In last_x[V::kLanes] = {}, last_y[V::kLanes] = {};
    for (int64_t j = i; j < size; ++j) {
      last_x[j - i] = x[j];
      last_y[j - i] = y[j];
    }
    sum = V::fma(V::load(last_x), V::load(last_y), sum);
  }
  return V::reduce_add(sum);
}

template <class V, class In>
void store_scaled_row(const void* from, int64_t size, double factor, void* to) {
  using Real = typename V::Real;
  store_scaled<V>(static_cast<const Real*>(from), size, static_cast<Real>(factor), static_cast<In*>(to));
}

/// Numbers below 2^-6 are what 2^-6 and their mantissa have beyond 2^-6: no subnormal float is ever made.
template <class V>
void dequantize_row(const void* from, int64_t size, float scale, void* to) {
  const uint8_t* codes = static_cast<const uint8_t*>(from);
  float* values = static_cast<float*>(to);
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t magnitude = codes[i] & 0x7Fu, sign = (codes[i] & 0x80u) << 24;
    const float normal = __builtin_bit_cast(float, (magnitude << 20) + (120u << 23));
    const float small = __builtin_bit_cast(float, (magnitude << 20) + (121u << 23)) - 0.015625f;
    float value = magnitude < 8 ? small : normal;
    value = magnitude == 0x7F ? __builtin_nanf("") : value;
    values[i] = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) | sign) * scale;
  }
}

/// One element type computed by C.
template <class C, class In>
struct For {
  static constexpr void add_to(KernelSet& set, ElementIndex element) {
    set.forward[element] = &Forward<C, In>::run;
    set.forward_scratch[element] = &Forward<C, In>::scratch_bytes;
    set.decode[element] = &Decode<C, In>::run;
    set.decode_scratch[element] = &Decode<C, In>::scratch_bytes;
    if constexpr (C::template decodes_fp8<In>()) {
      set.decode_fp8[element] = &Decode<C, In, E4m3>::run;
      set.decode_fp8_scratch[element] = &Decode<C, In, E4m3>::scratch_bytes;
    }
    set.begin_keys[element] = &Backward<C, In>::begin_keys;
    set.add_queries[element] = &Backward<C, In>::add_queries;
    set.end_keys[element] = &Backward<C, In>::end_keys;
    set.backward_scratch[element] = &Backward<C, In>::scratch_bytes;
    set.dot[element] = &dot_rows<typename C::V, In>;
    set.store_scaled[element] = &store_scaled_row<typename C::V, In>;
    if constexpr (sizeof(typename C::V::Real) == sizeof(float)) set.dequantize = &dequantize_row<typename C::V>;
    set.max_rows = Forward<C, In>::kMaxRows;
    set.forward_keys = Forward<C, In>::kBlockKeys;
    set.decode_max_rows = Decode<C, In>::kMaxRows;
    set.decode_keys = Decode<C, In>::kBlockKeys;
    set.backward_keys = Backward<C, In>::kBlockKeys;
    set.backward_rows = Backward<C, In>::kBlockRows;
  }
};

/// What decoding over keys and values in fp8 needs, with queries in In.
template <class C, class In>
consteval KernelSet make_fp8_decode_set(ElementIndex element) {
  KernelSet set{};
  set.decode_fp8[element] = &Decode<C, In, E4m3>::run;
  set.decode_fp8_scratch[element] = &Decode<C, In, E4m3>::scratch_bytes;
  set.store_scaled[element] = &store_scaled_row<typename C::V, In>;
  set.decode_max_rows = Decode<C, In, E4m3>::kMaxRows;
  return set;
}

/// An element type left to another instruction set.
struct NoElement {
  static constexpr void add_to(KernelSet&, ElementIndex) {}
};

template <class F32, class Bfloat16, class Float16, class F64>
consteval KernelSet make_kernel_set() {
  KernelSet set{};
  F32::add_to(set, kElementF32);
  Bfloat16::add_to(set, kElementBf16);
  Float16::add_to(set, kElementF16);
  F64::add_to(set, kElementF64);
  return set;
}

}  // namespace tilewise::backends::cpu
