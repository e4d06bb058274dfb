// Quantising and dequantising runs of numbers, in integer arithmetic over chunks of f32 that the vectors widened: plain
// loops, which compilers turn into this instruction set's vectors. Equal to device/common/float8.h and float4.h bit for
// bit. Chunks are 64 numbers, and 32 or 16 where fewer are left: blocks of 16 would be a quarter of
// a chunk.
#pragma once

#include "backends/cpu/formats/kernels.hpp"
#include "backends/cpu/isa/elements.h"

namespace tilewise::backends::cpu {

template <class V, class In>
struct FormatRows {
  static RunExtremes extremes(const void* numbers, int64_t size) {
    uint32_t amax = 0, nan = 0;
    for_each_chunk(size, [&]<int64_t length>(Length<length>, int64_t begin) {
      float chunk[length];
      widen(static_cast<const In*>(numbers) + begin, size - begin, chunk);
      for (int64_t i = 0; i < length; ++i) {  // behind the end are zeros
        const uint32_t magnitude = __builtin_bit_cast(uint32_t, chunk[i]) & 0x7FFFFFFFu;
        const uint32_t finite = magnitude < 0x7F800000u ? magnitude : 0u;
        amax = finite > amax ? finite : amax;
        nan |= magnitude > 0x7F800000u ? 1u : 0u;
      }
    });
    return {__builtin_bit_cast(float, amax), nan != 0};
  }

  static void encode_e4m3(const void* numbers, int64_t size, float divisor, uint8_t* elements) {
    encode(
        numbers, size, divisor,
        [&](const uint32_t* codes, int64_t begin, int64_t count) {
          for (int64_t i = 0; i < count; ++i) elements[begin + i] = static_cast<uint8_t>(codes[i]);
        },
        [](float quotient) {
          const uint32_t bits = __builtin_bit_cast(uint32_t, quotient);
          const uint32_t magnitude = bits & 0x7FFFFFFFu, clamped = magnitude < 0x43E00000u ? magnitude : 0x43E00000u;
          const uint32_t normal = (clamped - (120u << 23) + 0x7FFFFu + ((clamped >> 20) & 1u)) >> 20;
          // Below 2^-6 the sum with 2^14 rounds to a multiple of 2^-9.
          const uint32_t small =
              __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, clamped) + 16384.0f) - (141u << 23);
          const uint32_t code = (clamped < 0x3C800000u ? small : normal) | ((bits >> 24) & 0x80u);
          return magnitude > 0x7F800000u ? 0x7Fu : code;
        });
  }

  static void encode_e2m1(const void* numbers, int64_t size, float divisor, uint8_t* elements) {
    encode(
        numbers, size, divisor,
        [&](const uint32_t* codes, int64_t begin, int64_t count) {
          const int64_t bytes = (count + 1) / 2;  // codes behind the end are those of zeros
          for (int64_t i = 0; i < bytes; ++i)
            elements[begin / 2 + i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
        },
        [](float quotient) {
          const uint32_t bits = __builtin_bit_cast(uint32_t, quotient);
          const uint32_t magnitude = bits & 0x7FFFFFFFu, clamped = magnitude < 0x40C00000u ? magnitude : 0x40C00000u;
          const uint32_t normal = (clamped - (126u << 23) + 0x1FFFFFu + ((clamped >> 22) & 1u)) >> 22;
          // Below 1 the sum with 2^22 rounds to a multiple of a half.
          const uint32_t small =
              __builtin_bit_cast(uint32_t, __builtin_bit_cast(float, clamped) + 4194304.0f) - (149u << 23);
          const uint32_t code = (clamped < 0x3F800000u ? small : normal) | ((bits >> 28) & 8u);
          return magnitude > 0x7F800000u ? 0u : code;
        });
  }

  static void decode_e4m3(const uint8_t* elements, int64_t size, float scale, float global, void* numbers) {
    decode(
        size, scale, global, numbers,
        [&](int64_t begin, int64_t count, uint32_t* codes) {
          for (int64_t i = 0; i < count; ++i) codes[i] = elements[begin + i];
        },
        [](uint32_t code) {
          const uint32_t magnitude = code & 0x7Fu, sign = (code & 0x80u) << 24;
          const float normal = __builtin_bit_cast(float, (magnitude << 20) + (120u << 23));
          // What 2^-6 with the same mantissa has beyond 2^-6.
          const float small = __builtin_bit_cast(float, (magnitude << 20) + (121u << 23)) - 0.015625f;
          float value = magnitude < 8 ? small : normal;
          value = magnitude == 0x7Fu ? __builtin_nanf("") : value;
          return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) | sign);
        });
  }

  static void decode_e2m1(const uint8_t* elements, int64_t size, float scale, float global, void* numbers) {
    const auto load = [&](int64_t begin, int64_t count, uint32_t* codes) {
      for (int64_t i = 0; i < (count + 1) / 2; ++i) {
        const uint32_t pair = elements[begin / 2 + i];
        codes[2 * i] = pair & 15u;
        codes[2 * i + 1] = pair >> 4;
      }
    };
    decode(size, scale, global, numbers, load, [](uint32_t code) {
      const uint32_t magnitude = code & 7u, sign = (code & 8u) << 28;
      const uint32_t normal = (magnitude << 22) + (126u << 23), half = magnitude == 0 ? 0u : 0x3F000000u;
      return __builtin_bit_cast(float, (magnitude < 2 ? half : normal) | sign);
    });
  }

  static constexpr void add_to(FormatKernels& kernels, NumberIndex index) {
    kernels.extremes[index] = &extremes;
    kernels.encode_e4m3[index] = &encode_e4m3;
    kernels.encode_e2m1[index] = &encode_e2m1;
    kernels.decode_e4m3[index] = &decode_e4m3;
    kernels.decode_e2m1[index] = &decode_e2m1;
  }

 private:
  static constexpr int64_t kLargeChunk = 64, kHalfChunk = 32, kSmallChunk = 16;  // whole numbers of vectors
  static_assert(kSmallChunk % V::kLanes == 0);
  template <int64_t length>
  struct Length {};

  /// Calls visit(length, begin). The last chunk may be longer than what is left.
  template <class Visit>
  TILEWISE_INLINE static void for_each_chunk(int64_t size, const Visit& visit) {
    int64_t begin = 0;
    for (; begin + kLargeChunk <= size; begin += kLargeChunk) visit(Length<kLargeChunk>{}, begin);
    for (; begin + kHalfChunk <= size; begin += kHalfChunk) visit(Length<kHalfChunk>{}, begin);
    for (; begin < size; begin += kSmallChunk) visit(Length<kSmallChunk>{}, begin);
  }

  /// The first of `size` numbers, zeros behind the last.
  template <int64_t length>
  TILEWISE_INLINE static void widen(const In* numbers, int64_t size, float (&chunk)[length]) {
    if (size >= length) {
      for (int64_t i = 0; i < length; i += V::kLanes) V::store(chunk + i, V::load(numbers + i));
      return;
    }
    In rest[length] = {};
    for (int64_t i = 0; i < size; ++i) rest[i] = numbers[i];
    for (int64_t i = 0; i < length; i += V::kLanes) V::store(chunk + i, V::load(rest + i));
  }

  template <class Store, class Code>
  TILEWISE_INLINE static void encode(const void* numbers, int64_t size, float divisor, Store&& store, Code&& code) {
    for_each_chunk(size, [&]<int64_t length>(Length<length>, int64_t begin) {
      float chunk[length];
      uint32_t codes[length];
      widen(static_cast<const In*>(numbers) + begin, size - begin, chunk);
      for (int64_t i = 0; i < length; ++i) codes[i] = code(chunk[i] / divisor);
      const int64_t count = size - begin < length ? size - begin : length;
      if (count % 2 != 0) codes[count] = 0;  // a NaN divisor makes more of a zero
      store(codes, begin, count);
    });
  }

  template <class Load, class Value>
  TILEWISE_INLINE static void decode(int64_t size, float scale, float global, void* numbers, Load&& load,
                                     Value&& value) {
    In* out = static_cast<In*>(numbers);
    for_each_chunk(size, [&]<int64_t length>(Length<length>, int64_t begin) {
      float chunk[length];
      if (begin + length <= size) {
        uint32_t codes[length];
        load(begin, length, codes);
        for (int64_t i = 0; i < length; ++i) chunk[i] = value(codes[i]) * scale * global;
        for (int64_t i = 0; i < length; i += V::kLanes) V::store(out + begin + i, V::load(chunk + i));
        return;
      }
      uint32_t codes[length] = {};
      load(begin, size - begin, codes);
      for (int64_t i = 0; i < length; ++i) chunk[i] = value(codes[i]) * scale * global;
      In rest[length];
      for (int64_t i = 0; i < length; i += V::kLanes) V::store(rest + i, V::load(chunk + i));
      for (int64_t i = begin; i < size; ++i) out[i] = rest[i - begin];
    });
  }
};

template <class V>
consteval FormatKernels make_format_kernels() {
  FormatKernels kernels{};
  FormatRows<V, float>::add_to(kernels, kNumbersF32);
  FormatRows<V, Bf16>::add_to(kernels, kNumbersBf16);
  FormatRows<V, F16>::add_to(kernels, kNumbersF16);
  return kernels;
}

}  // namespace tilewise::backends::cpu
