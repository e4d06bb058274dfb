// wgmma: a warpgroup's product of 64 rows with N columns, 16 elements deep, accumulated in fp32. It runs while the
// warps go on; accumulators and operands are the matrix unit's until wgmma_wait() returns.
#pragma once

#include "device/common/tensors.h"
#include "device/hopper/mbarrier.h"
#include "device/hopper/wgmma_operands.h"
#include "device/tile/fragment_layout.h"

namespace tilewise::device {

/// Where an operand tile lies in shared memory and how: rows of 64 elements (128 bytes), swizzled as the copy engine's
/// 128-byte mode leaves them, 8 rows to a pattern of 1024 bytes.
struct MatrixDescriptor {
  uint64_t bits;

  /// `chunk_bytes`: between a tile's chunks of 64 columns; read only where the tile's rows are the depth of the
  /// product.
  TILEWISE_INLINE static MatrixDescriptor of(const void* tile, uint32_t chunk_bytes) {
    constexpr uint64_t kPatternBytes = 1024, kSwizzle128 = uint64_t{1} << 62;
    return {uint64_t{(shared_address(tile) & 0x3FFFFu) >> 4} | uint64_t{chunk_bytes >> 4} << 16 |
            (kPatternBytes >> 4) << 32 | kSwizzle128};
  }
  TILEWISE_INLINE MatrixDescriptor advanced(uint32_t bytes) const { return {bits + (bytes >> 4)}; }
};

/// An operand in registers: 64 x 16 elements of a warpgroup, in the order of two accumulators of 8 columns.
struct WgmmaRegisters {
  uint32_t word[4];
};

/// Whether an operand's rows in shared memory run along the depth of the product ("K-major") or across it.
enum Major : int32_t { kAlongDepth = 0, kAcrossDepth = 1 };

/// Registers written before it are seen by the products that follow.
TILEWISE_INLINE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TILEWISE_INLINE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most kPending committed groups are under way.
template <int kPending>
TILEWISE_INLINE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// The compiler moves no use of these registers across it.
template <class Fragment>
TILEWISE_INLINE void pin_registers(Fragment& fragment) {
  fragment.for_each(0, [](int, int, auto&& x) { asm volatile("" : "+f"(x)::"memory"); });
}

/// One instruction of width N. d: Sm80Accumulator[N / 8], the layout of mma.sync being wgmma's too.
template <int kElement, int N>
struct Wgmma;

#define TILEWISE_WGMMA_TEXT(type, n, a, b, flag, majors)                                                 \
  "{ .reg .pred accumulate; setp.ne.b32 accumulate, %" #flag ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
  "k16.f32." type "." type " {" TILEWISE_WGMMA_D##n "}, " a ", %" #b ", accumulate, 1, 1, " majors "; }"

#define TILEWISE_DEFINE_WGMMA(type, text, n, o0, o1, o2, o3, o4, o5, o6)                                           \
  template <>                                                                                                      \
  struct Wgmma<type, n> {                                                                                          \
    /* d = A B, or d += A B. */                                                                                    \
    template <Major kMajorA, Major kMajorB>                                                                        \
    TILEWISE_INLINE static void multiply(Sm80Accumulator (&d)[n / 8], MatrixDescriptor a, MatrixDescriptor b,      \
                                         bool accumulate) {                                                        \
      asm volatile(TILEWISE_WGMMA_TEXT(text, n, "%" #o0, o1, o2, "%" #o3 ", %" #o4)                                \
                   : TILEWISE_WGMMA_R##n(d)                                                                        \
                   : "l"(a.bits), "l"(b.bits), "r"(static_cast<int32_t>(accumulate)), "n"(int{kMajorA}),           \
                     "n"(int{kMajorB}));                                                                           \
    }                                                                                                              \
    template <Major kMajorB>                                                                                       \
    TILEWISE_INLINE static void multiply(Sm80Accumulator (&d)[n / 8], const WgmmaRegisters& a, MatrixDescriptor b, \
                                         bool accumulate) {                                                        \
      asm volatile(TILEWISE_WGMMA_TEXT(text, n, "{%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}", o4, o5, "%" #o6)       \
                   : TILEWISE_WGMMA_R##n(d)                                                                        \
                   : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "l"(b.bits),                  \
                     "r"(static_cast<int32_t>(accumulate)), "n"(int{kMajorB}));                                    \
    }                                                                                                              \
  };
#define TILEWISE_DEFINE_WGMMA_BF16(...) TILEWISE_DEFINE_WGMMA(kBf16, "bf16", __VA_ARGS__)
#define TILEWISE_DEFINE_WGMMA_F16(...) TILEWISE_DEFINE_WGMMA(kF16, "f16", __VA_ARGS__)
TILEWISE_FOR_EACH_WGMMA_WIDTH(TILEWISE_DEFINE_WGMMA_BF16)
TILEWISE_FOR_EACH_WGMMA_WIDTH(TILEWISE_DEFINE_WGMMA_F16)
#undef TILEWISE_DEFINE_WGMMA_BF16
#undef TILEWISE_DEFINE_WGMMA_F16
#undef TILEWISE_DEFINE_WGMMA
#undef TILEWISE_WGMMA_TEXT

}  // namespace tilewise::device
