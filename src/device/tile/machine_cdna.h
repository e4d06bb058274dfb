// AMD GPUs with MFMA (gfx90a, gfx942, gfx950). Lanes are a wave's 64.
#pragma once

#include "device/tile/machine_amd.h"
#include "device/tile/registers.h"

namespace tilewise::device {

struct CdnaMachine : AmdMachine<64> {
#if defined(__gfx942__) || defined(__gfx950__)
  static constexpr int kDies = 8;
#endif
#if defined(__gfx950__)
  static constexpr int kStepsAhead = 8;  // of stream_ABt(): products take half as long
#else
  static constexpr int kStepsAhead = 4;
#endif
#if defined(__gfx90a__)
  static constexpr int kFewestAhead = 1;  // where registers are few: products take twice as long as gfx942's
#else
  static constexpr int kFewestAhead = 2;
#endif
  /// d += a * b^T of 32 x 16 and 32 x 16 elements; lane l holds row l % 32 of a and of b. The order of
  /// the 16 is free as long as a and b agree.
  template <int kElement>
  TILEWISE_INLINE static void mma_32x32x16(CdnaAccumulator& d, CdnaOperand a, CdnaOperand b) {
#if defined(__gfx950__)
    using Bf16s = __bf16 __attribute__((ext_vector_type(8)));
    using F16s = _Float16 __attribute__((ext_vector_type(8)));
    if constexpr (kElement == kBf16) {
      d.value = __builtin_amdgcn_mfma_f32_32x32x16_bf16(__builtin_bit_cast(Bf16s, a), __builtin_bit_cast(Bf16s, b),
                                                        d.value, 0, 0, 0);
    } else {
      d.value = __builtin_amdgcn_mfma_f32_32x32x16_f16(__builtin_bit_cast(F16s, a), __builtin_bit_cast(F16s, b),
                                                       d.value, 0, 0, 0);
    }
#else
    struct Parts {
      uint64_t low, high;
    };
    const Parts left = __builtin_bit_cast(Parts, a), right = __builtin_bit_cast(Parts, b);
    mma_32x32x8<kElement>(d, left.low, right.low);
    mma_32x32x8<kElement>(d, left.high, right.high);
#endif
  }

#if defined(__gfx950__)
  /// d += a * b^T of 32 x 64 and 32 x 64 bytes in so many instructions; the order of the 64 is free, likewise.
  static constexpr int kByteProducts = 1;
  template <int kPart>
  TILEWISE_INLINE static void mma_bytes(CdnaAccumulator& d, const CdnaBytes& a, const CdnaBytes& b) {
    using Bytes = int __attribute__((ext_vector_type(8)));
    constexpr int kFp8 = 0;
    // Scales that are no registers: the instruction without scales.
    d.value = __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(
        __builtin_bit_cast(Bytes, a), __builtin_bit_cast(Bytes, b), d.value, kFp8, kFp8, 0, 0, 0, 0);
  }
  /// The same of rows of two stretches of 32 numbers, each times 2^(scale - 127): a lane's scale is that of row
  /// lane % 32 and stretch lane / 32. kFours: a's are e2m1, of which a lane has a stretch, in half[0].
  template <bool kFours>
  TILEWISE_INLINE static void mma_scaled(CdnaAccumulator& d, const CdnaBytes& a, uint32_t a_scale, const CdnaBytes& b,
                                         uint32_t b_scale) {
    using Bytes = int __attribute__((ext_vector_type(8)));
    constexpr int kFp8 = 0, kFp4 = 4, kLowestByte = 0;
    d.value = __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(
        __builtin_bit_cast(Bytes, a), __builtin_bit_cast(Bytes, b), d.value, kFours ? kFp4 : kFp8, kFp8, kLowestByte,
        static_cast<int>(a_scale), kLowestByte, static_cast<int>(b_scale));
  }
#elif defined(__gfx942__)
  static constexpr int kByteProducts = 4;
  template <int kPart>
  TILEWISE_INLINE static void mma_bytes(CdnaAccumulator& d, const CdnaBytes& a, const CdnaBytes& b) {
    struct Parts {
      int64_t part[2];
    };
    const auto eight = [](const CdnaBytes& of) {
      return __builtin_bit_cast(Parts, of.half[kPart / 2]).part[kPart % 2];
    };
    d.value = __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(eight(a), eight(b), d.value, 0, 0, 0);
  }
#endif

#if defined(__gfx942__)
  /// Four e4m3fnuz bytes, exactly.
  TILEWISE_INLINE static void unpack_fnuz(float (&to)[4], uint32_t word) {
    const auto low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), false);
    const auto high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), true);
    to[0] = low[0], to[1] = low[1], to[2] = high[0], to[3] = high[1];
  }
  /// A word of whose bits the compiler knows nothing, so that it leaves what is made of it as it is written.
  TILEWISE_INLINE static uint32_t unknown(uint32_t word) {
    asm("" : "+v"(word));
    return word;
  }
#endif
#if defined(__gfx950__)
  /// The 8 e2m1 numbers of a word, exactly.
  TILEWISE_INLINE static void numbers_of_e2m1(float (&to)[8], uint32_t word) {
    two_of_e2m1<0>(to, word), two_of_e2m1<1>(to, word), two_of_e2m1<2>(to, word), two_of_e2m1<3>(to, word);
  }
  /// Two of the 8 e2m1 numbers of a word as bf16, times 2^(scale - 127).
  template <int kPair>
  TILEWISE_INLINE static uint32_t scaled_fours(uint32_t word, uint32_t scale) {
    return __builtin_bit_cast(
        uint32_t, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(word, __builtin_bit_cast(float, scale << 23), kPair));
  }
  /// Four e4m3 bytes to elements, exactly.
  template <int kElement>
  TILEWISE_INLINE static void unpack_e4m3(uint32_t (&to)[2], uint32_t word) {
    if constexpr (kElement == kBf16) {
      to[0] = __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(word, 1.0f, false));
      to[1] = __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(word, 1.0f, true));
    } else {
      to[0] = __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_f16_fp8(word, 1.0f, false));
      to[1] = __builtin_bit_cast(uint32_t, __builtin_amdgcn_cvt_scalef32_pk_f16_fp8(word, 1.0f, true));
    }
  }

  /// Copies 16 bytes a lane from an offset in a window, which may differ between lanes, to a place in shared memory
  /// that is the same in all of them and 16 bytes further for each lane; zeros past the window's end, and
  /// `further` as load_window()'s.
  TILEWISE_INLINE static void copy_window(void* to, const Window& from, uint32_t offset, uint32_t further) {
    const auto place =
        static_cast<int>(reinterpret_cast<uint64_t>(to));  // its lower half is the place in shared memory
    // No builtin: of its copies the compiler takes every read of shared memory to wait for all.
    asm volatile("s_nop 0\n\tbuffer_load_dwordx4 %1, %2, %3 offen lds"
                 :
                 : "{m0}"(uniform(place)), "v"(offset), "s"(from.resource), "s"(further)
                 : "memory");
  }
  /// Until so many of this wave's copies, or less, are under way.
  template <int kPending>
  TILEWISE_INLINE static void wait_copies() {
    static_assert(kPending < 64);
    __builtin_amdgcn_s_waitcnt((kPending & 15) | 0x0F70 | kPending >> 4 << 14);  // vmcnt alone
  }

  /// Of sixteen lanes each four names 16 elements of a row, four a lane: returns, of column lane % 16, those of the
  /// four rows.
  TILEWISE_INLINE static HalfChunk read_transposed(const void* from) {
    using Four = short __attribute__((ext_vector_type(4)));
    return __builtin_bit_cast(HalfChunk,
                              __builtin_amdgcn_ds_read_tr16_b64_v4i16((__attribute__((address_space(3))) Four*)from));
  }
#endif

 private:
#if defined(__gfx950__)
  template <int kByte>
  TILEWISE_INLINE static void two_of_e2m1(float (&to)[8], uint32_t word) {
    const auto two = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(word, 1.0f, kByte);
    to[2 * kByte] = two[0], to[2 * kByte + 1] = two[1];
  }
#endif
  template <int kElement>
  TILEWISE_INLINE static void mma_32x32x8(CdnaAccumulator& d, uint64_t a, uint64_t b) {
    using Bf16s = short __attribute__((ext_vector_type(4)));
    using F16s = _Float16 __attribute__((ext_vector_type(4)));
    if constexpr (kElement == kBf16) {
      d.value = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(Bf16s, a), __builtin_bit_cast(Bf16s, b),
                                                         d.value, 0, 0, 0);
    } else {
      d.value = __builtin_amdgcn_mfma_f32_32x32x8f16(__builtin_bit_cast(F16s, a), __builtin_bit_cast(F16s, b), d.value,
                                                     0, 0, 0);
    }
  }
};

}  // namespace tilewise::device
