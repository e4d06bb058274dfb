// NVIDIA GPUs from sm_80: PTX in small named wrappers. Lanes are a warp's 32.
#pragma once

#include "device/common/tensors.h"
#include "device/tile/registers.h"

namespace tilewise::device {

struct Sm80Machine {
  static constexpr int kLanes = 32;

  TILEWISE_INLINE static int thread() { return static_cast<int>(threadIdx.x); }
  TILEWISE_INLINE static int lane() { return static_cast<int>(threadIdx.x % 32); }
  /// The same value in every lane, and known to be so.
  TILEWISE_INLINE static int wave() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0); }
  TILEWISE_INLINE static int block() { return static_cast<int>(blockIdx.x); }
  /// The same value, recomputed where it is used: what derives from it stays out of the registers that
  /// live through a loop.
  TILEWISE_INLINE static int not_hoisted(int value) {
    asm volatile("" : "+r"(value));
    return value;
  }
  TILEWISE_INLINE static void barrier() { __syncthreads(); }
  TILEWISE_INLINE static void memory_barrier() { __syncthreads(); }
  TILEWISE_INLINE static void wave_sync() { __syncwarp(); }
  TILEWISE_INLINE static bool any(bool value) { return __any_sync(~0u, value); }
  TILEWISE_INLINE static float shuffle_xor(float value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
  TILEWISE_INLINE static int32_t highest_of_wave(int32_t value) { return __reduce_max_sync(~0u, value); }
  TILEWISE_INLINE static int32_t sum_of_wave(int32_t value) { return __reduce_add_sync(~0u, value); }
  TILEWISE_INLINE static uint32_t bits_of_wave(uint32_t value) { return __reduce_or_sync(~0u, value); }

  template <class T>
  TILEWISE_INLINE static T load_global(const T* from) {
    return *from;
  }
  template <class T>
  TILEWISE_INLINE static void store_global(T* to, T value) {
    *to = value;
  }
  /// Adds to memory that other blocks add to at the same time, in any order.
  TILEWISE_INLINE static void add_global(float* to, float x) {
    asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(x) : "memory");
  }
  /// The same of 4 floats, 16 bytes aligned.
  TILEWISE_INLINE static void add_global(float* to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
                 "f"(x[3])
                 : "memory");
#else
    TILEWISE_UNROLL
    for (int i = 0; i < 4; ++i) add_global(to + i, x[i]);
#endif
  }
  template <class T>
  TILEWISE_INLINE static T load_shared(const void* from) {
    return *static_cast<const T*>(from);
  }
  template <class T>
  TILEWISE_INLINE static void store_shared(void* to, T value) {
    *static_cast<T*>(to) = value;
  }

  TILEWISE_INLINE static float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  TILEWISE_INLINE static float log2(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  TILEWISE_INLINE static float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }

  /// Two floats as two 16-bit elements, rounded to nearest even, the first one low.
  template <int kElement>
  TILEWISE_INLINE static uint32_t pack(float low, float high) {
    uint32_t packed;
    if constexpr (kElement == kBf16) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
  }

#if __CUDA_ARCH__ >= 890
  /// As float_to_e4m3(), in the lower 16 bits, the first one low.
  TILEWISE_INLINE static uint32_t pack_e4m3(float low, float high) {
    uint16_t packed;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(high), "f"(low));
    return packed;
  }
  /// Four bytes as elements, two to a word, the first ones low. Exact: every e4m3 number is a normal one of f16.
  template <int kElement>
  TILEWISE_INLINE static void unpack_e4m3(uint32_t (&to)[2], uint32_t bytes) {
    asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2;"
        "cvt.rn.f16x2.e4m3x2 %0, low; cvt.rn.f16x2.e4m3x2 %1, high; }"
        : "=r"(to[0]), "=r"(to[1])
        : "r"(bytes));
    if constexpr (kElement == kBf16) {
      TILEWISE_UNROLL
      for (int i = 0; i < 2; ++i) {
        float first, second;
        asm("{ .reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
            : "=f"(first), "=f"(second)
            : "r"(to[i]));
        to[i] = pack<kBf16>(first, second);
      }
    }
  }
#endif
  /// Bytes 0, 2, 1 and 3 of a word.
  TILEWISE_INLINE static uint32_t swap_middle_bytes(uint32_t word) { return __byte_perm(word, 0, 0x3120); }

  /// Of programmatic dependent launch; nothing where a launch is not.
  TILEWISE_INLINE static void wait_for_step_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  }
  TILEWISE_INLINE static void let_next_step_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
  }

  /// Two bytes of a word from kFirst on, each the upper one of a half word.
  template <int kFirst>
  TILEWISE_INLINE static uint32_t spread_bytes(uint32_t word) {
    return __byte_perm(word, 0, kFirst == 0 ? 0x1404 : 0x3424);
  }
  /// Two 16-bit elements times 2^kExponent, each rounded.
  template <int kElement, int kExponent>
  TILEWISE_INLINE static uint32_t scale_pair(uint32_t pair) {
    constexpr uint32_t kPower = kElement == kBf16 ? (kExponent + 127) << 7 : (kExponent + 15) << 10;
    uint32_t product;
    if constexpr (kElement == kBf16) {
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(pair), "r"(kPower * 0x10001u), "r"(0x80008000u));
    } else {
      asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(pair), "r"(kPower * 0x10001u));
    }
    return product;
  }

  /// The products of two pairs of 16-bit elements, each rounded.
  template <int kElement>
  TILEWISE_INLINE static uint32_t multiply_pair(uint32_t a, uint32_t b) {
    uint32_t product;
    if constexpr (kElement == kBf16) {
      asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
    } else {
      asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    }
    return product;
  }

  /// 16 bytes that nobody writes and no other block asks for: they take no room in L1.
  TILEWISE_INLINE static Chunk load_stream(const void* from) {
    Chunk to;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
        : "l"(from));
    return to;
  }

  /// Starts copying 16 bytes to shared memory; zeros where `valid` is false, and nothing is read then.
  TILEWISE_INLINE static void copy_async(void* to, const void* from, bool valid) {
    const uint32_t size = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(size)
                 : "memory");
  }
  TILEWISE_INLINE static void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  /// Waits until at most kPending groups of this lane's copies are under way.
  template <int kPending>
  TILEWISE_INLINE static void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
  }

  /// Four 8x8 matrices; lanes 8m to 8m+7 give the addresses of the rows of matrix m.
  TILEWISE_INLINE static void load_matrices(uint32_t (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
  TILEWISE_INLINE static void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
  }

  /// d += a * b of 16 x 16 and 16 x 8 elements.
  template <int kElement>
  TILEWISE_INLINE static void mma(Sm80Accumulator& d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kElement == kBf16) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }

 private:
  TILEWISE_INLINE static uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
  }
};

}  // namespace tilewise::device
