// wgmma's PTX, one struct for each element type and width.
#pragma once

#include "device/common/tensors.h"
#include "device/sm90/matrix_descriptor.h"
#include "device/sm90/wgmma_operands.h"
#include "device/tile/registers.h"

namespace tilewise::device {

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
// Both operands of e4m3 are K-major; K is 32 elements.
#define TILEWISE_WGMMA_FP8_TEXT(n, a, b, flag)                                                           \
  "{ .reg .pred accumulate; setp.ne.b32 accumulate, %" #flag ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
  "k32.f32.e4m3.e4m3 {" TILEWISE_WGMMA_D##n "}, " a ", %" #b ", accumulate, 1, 1; }"

#define TILEWISE_DEFINE_WGMMA_FP8(n, o0, o1, o2, o3, o4, o5, o6)                                                   \
  template <>                                                                                                      \
  struct Wgmma<kE4m3, n> {                                                                                         \
    template <Major kMajorA, Major kMajorB>                                                                        \
    TILEWISE_INLINE static void multiply(Sm80Accumulator (&d)[n / 8], MatrixDescriptor a, MatrixDescriptor b,      \
                                         bool accumulate) {                                                        \
      static_assert(kMajorA == kKMajor && kMajorB == kKMajor);                                                     \
      asm volatile(TILEWISE_WGMMA_FP8_TEXT(n, "%" #o0, o1, o2)                                                     \
                   : TILEWISE_WGMMA_R##n(d)                                                                        \
                   : "l"(a.bits), "l"(b.bits), "r"(static_cast<int32_t>(accumulate)));                             \
    }                                                                                                              \
    template <Major kMajorB>                                                                                       \
    TILEWISE_INLINE static void multiply(Sm80Accumulator (&d)[n / 8], const WgmmaRegisters& a, MatrixDescriptor b, \
                                         bool accumulate) {                                                        \
      static_assert(kMajorB == kKMajor);                                                                           \
      asm volatile(TILEWISE_WGMMA_FP8_TEXT(n, "{%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}", o4, o5)                  \
                   : TILEWISE_WGMMA_R##n(d)                                                                        \
                   : "r"(a.word[0]), "r"(a.word[1]), "r"(a.word[2]), "r"(a.word[3]), "l"(b.bits),                  \
                     "r"(static_cast<int32_t>(accumulate)));                                                       \
    }                                                                                                              \
  };

#define TILEWISE_DEFINE_WGMMA_BF16(...) TILEWISE_DEFINE_WGMMA(kBf16, "bf16", __VA_ARGS__)
#define TILEWISE_DEFINE_WGMMA_F16(...) TILEWISE_DEFINE_WGMMA(kF16, "f16", __VA_ARGS__)
TILEWISE_FOR_EACH_WGMMA_WIDTH(TILEWISE_DEFINE_WGMMA_BF16)
TILEWISE_FOR_EACH_ODD_WGMMA_WIDTH(TILEWISE_DEFINE_WGMMA_BF16)
TILEWISE_FOR_EACH_WGMMA_WIDTH(TILEWISE_DEFINE_WGMMA_F16)
TILEWISE_FOR_EACH_ODD_WGMMA_WIDTH(TILEWISE_DEFINE_WGMMA_F16)
TILEWISE_FOR_EACH_WGMMA_WIDTH(TILEWISE_DEFINE_WGMMA_FP8)
#undef TILEWISE_DEFINE_WGMMA_BF16
#undef TILEWISE_DEFINE_WGMMA_F16
#undef TILEWISE_DEFINE_WGMMA
#undef TILEWISE_DEFINE_WGMMA_FP8
#undef TILEWISE_WGMMA_FP8_TEXT
#undef TILEWISE_WGMMA_TEXT

}  // namespace tilewise::device
