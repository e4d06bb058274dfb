// What AMD's GPUs have in common: the compiler's builtins in small named wrappers. A kernel's only
// inputs are the workgroup id, the work-item id and its arguments.
#pragma once

#include "device/common/tensors.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// Numbers of so many bytes that memory moves as one.
template <int kBytes>
struct MovedBytes {
  using Type = uint32_t __attribute__((ext_vector_type(kBytes / 4)));
};
template <>
struct MovedBytes<4> {
  using Type = uint32_t;
};
template <>
struct MovedBytes<2> {
  using Type = uint16_t;
};
template <>
struct MovedBytes<1> {
  using Type = uint8_t;
};
template <int kBytes>
using MovedAs = typename MovedBytes<kBytes>::Type;

template <int kLanes_>
struct AmdMachine {
  static constexpr int kLanes = kLanes_;
  static constexpr bool kRoundsByAdding = true;  // pack_nearest()

  TILEWISE_INLINE static int thread() { return static_cast<int>(__builtin_amdgcn_workitem_id_x()); }
  TILEWISE_INLINE static int lane() { return thread() % kLanes; }
  /// The same value in every lane, and known to be so.
  TILEWISE_INLINE static int wave() { return uniform(thread() / kLanes); }
  TILEWISE_INLINE static int block() { return static_cast<int>(__builtin_amdgcn_workgroup_id_x()); }

  /// Tells the compiler what it may fail to see: that every lane has the same value.
  TILEWISE_INLINE static int uniform(int value) { return __builtin_amdgcn_readfirstlane(value); }

  /// Orders shared memory alone: loads of global memory stay under way across it.
  TILEWISE_INLINE static void barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
  }
  TILEWISE_INLINE static void memory_barrier() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  }
  TILEWISE_INLINE static void wave_sync() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront", "local");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront", "local");
  }

  TILEWISE_INLINE static bool any(bool value) {
    if constexpr (kLanes == 64) {
      return __builtin_amdgcn_ballot_w64(value) != 0;
    } else {
      return __builtin_amdgcn_ballot_w32(value) != 0;
    }
  }
  TILEWISE_INLINE static float shuffle_xor(float value, int mask) {
    const int from = 4 * (lane() ^ mask);  // a byte address
    return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(from, __builtin_bit_cast(int, value)));
  }

  template <class T>
  TILEWISE_INLINE static T load_global(const T* from) {
    return load_from<kGlobalMemory, T>(from);
  }
  template <class T>
  TILEWISE_INLINE static void store_global(T* to, T value) {
    store_to<kGlobalMemory>(to, value);
  }
  /// Adds to memory that other blocks add to at the same time, in any order.
  TILEWISE_INLINE static void add_global(float* to, float x) {
    using Global = __attribute__((address_space(kGlobalMemory))) float;
    __builtin_amdgcn_global_atomic_fadd_f32((Global*)to, x);
  }
  /// A stretch of global memory, the same in every lane. Reads at byte offsets past its end give zeros.
  struct Window {
    __amdgpu_buffer_rsrc_t resource;
  };
  TILEWISE_INLINE static Window window(const void* start, uint32_t bytes) {
#if defined(__GFX9__)
    constexpr int kRaw = 0x00027000;  // 32-bit data, not a structured buffer
#else
    constexpr int kRaw = 0x31004000;  // the same, bounds checked by byte
#endif
    const auto address = __builtin_bit_cast(uint64_t, start);
    const auto low = static_cast<uint32_t>(uniform(static_cast<int>(address)));
    const auto high = static_cast<uint32_t>(uniform(static_cast<int>(address >> 32)));
    auto* const uniform_start = __builtin_bit_cast(void*, uint64_t{high} << 32 | low);
    return {__builtin_amdgcn_make_buffer_rsrc(uniform_start, 0, uniform(static_cast<int>(bytes)), kRaw)};
  }
  /// All lanes read `further` on, and what they read there is in the window: where it ends some machines look at the
  /// offset alone.
  template <class T>
  TILEWISE_INLINE static T load_window(const Window& from, uint32_t offset, uint32_t further = 0) {
    static_assert(sizeof(T) == 16 || sizeof(T) == 8 || sizeof(T) == 2);
    const int at = static_cast<int>(offset), on = static_cast<int>(further);
    if constexpr (sizeof(T) == 16) {
      return __builtin_bit_cast(T, __builtin_amdgcn_raw_buffer_load_b128(from.resource, at, on, 0));
    } else if constexpr (sizeof(T) == 8) {
      return __builtin_bit_cast(T, __builtin_amdgcn_raw_buffer_load_b64(from.resource, at, on, 0));
    } else {
      return __builtin_bit_cast(T, __builtin_amdgcn_raw_buffer_load_b16(from.resource, at, on, 0));
    }
  }

  /// The value (not negative) itself, but computed anew where it stands in a loop: for rare paths, whose addresses
  /// would otherwise occupy registers all along.
  TILEWISE_INLINE static int not_hoisted(int value) {
    asm volatile("" : "+v"(value));
    __builtin_assume(value >= 0);
    return value;
  }

  /// The same place in shared memory, the same in every lane, of which the compiler does not know that.
  template <class T>
  TILEWISE_INLINE static T* not_folded(T* place) {
    auto at = static_cast<uint32_t>(reinterpret_cast<uint64_t>(place));  // its lower half is the place
    asm("" : "+s"(at));
    return (T*)(__attribute__((address_space(kSharedMemory))) T*)at;
  }

  /// Instructions stay on their side of it: bounds how many loads the compiler asks for ahead.
  TILEWISE_INLINE static void keep_order() { __builtin_amdgcn_sched_barrier(0); }

  /// Which waves of a SIMD issue first, from 0 to 3.
  template <int kLevel>
  TILEWISE_INLINE static void set_priority() {
    __builtin_amdgcn_s_setprio(kLevel);
  }

  template <class Accumulator>
  TILEWISE_INLINE static void compute_by_here(Accumulator& x) {
    asm volatile("" : "+v"(x.value));
  }

  template <class T>
  TILEWISE_INLINE static T load_shared(const void* from) {
    return load_from<kSharedMemory, T>(from);
  }
  template <class T>
  TILEWISE_INLINE static void store_shared(void* to, T value) {
    store_to<kSharedMemory>(to, value);
  }

  TILEWISE_INLINE static float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
  TILEWISE_INLINE static float log2(float x) { return __builtin_amdgcn_logf(x); }
  TILEWISE_INLINE static float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }

  /// Two floats as two 16-bit elements, rounded to nearest even, the first one low.
  template <int kElement>
  TILEWISE_INLINE static uint32_t pack(float low, float high) {
    using Floats = float __attribute__((ext_vector_type(2)));
    if constexpr (kElement == kBf16) {
      using Elements = __bf16 __attribute__((ext_vector_type(2)));
      return __builtin_bit_cast(uint32_t, __builtin_convertvector((Floats{low, high}), Elements));
    } else {
      using Elements = _Float16 __attribute__((ext_vector_type(2)));
      return __builtin_bit_cast(uint32_t, __builtin_convertvector((Floats{low, high}), Elements));
    }
  }

  /// The same to nearest with ties away from zero where that is faster, for operands of products.
  template <int kElement>
  TILEWISE_INLINE static uint32_t pack_nearest(float low, float high) {
#if !defined(__gfx950__) && !defined(__gfx1250__)
    if constexpr (kElement == kBf16) {
      return high_halves(__builtin_bit_cast(uint32_t, low) + 0x8000u, __builtin_bit_cast(uint32_t, high) + 0x8000u);
    }
#endif
    return pack<kElement>(low, high);
  }

  /// Four bytes out of eight: those of `a` are numbers 0 to 3, those of `b` 4 to 7; the selector names
  /// them, the lowest first. 12 is a byte of zeros.
  TILEWISE_INLINE static uint32_t choose_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    return __builtin_amdgcn_perm(b, a, selector);
  }
#if defined(__gfx950__) || defined(__GFX12__)
  /// Four e4m3 bytes, exactly.
  TILEWISE_INLINE static void numbers_of_e4m3(float (&to)[4], uint32_t word) {
    const auto low = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), false);
    const auto high = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(word), true);
    to[0] = low[0], to[1] = low[1], to[2] = high[0], to[3] = high[1];
  }
#endif
  /// The lower, or upper, 16 bits of two words, those of the first one low.
  TILEWISE_INLINE static uint32_t low_halves(uint32_t a, uint32_t b) { return choose_bytes(a, b, 0x05040100u); }
  TILEWISE_INLINE static uint32_t high_halves(uint32_t a, uint32_t b) { return choose_bytes(a, b, 0x07060302u); }

 private:
  static constexpr int kGlobalMemory = 1, kSharedMemory = 3;  // address spaces, as LLVM numbers them

  // What memory an address is in is said outright, and of numbers rather than structs, whose copies forget it: the
  // compiler loses sight of it where addresses pass through shared memory, or are chosen between, and then asks both.
  template <int kSpace, class T>
  TILEWISE_INLINE static T load_from(const void* from) {
    return __builtin_bit_cast(T, *(const __attribute__((address_space(kSpace))) MovedAs<sizeof(T)>*)from);
  }
  template <int kSpace, class T>
  TILEWISE_INLINE static void store_to(void* to, const T& value) {
    using Moved = MovedAs<sizeof(T)>;
    *(__attribute__((address_space(kSpace))) Moved*)to = __builtin_bit_cast(Moved, value);
  }
};

}  // namespace tilewise::device
