// What instructions cost a warp scheduler by themselves and beside products: one warpgroup multiplies without a pause
// while two work through a mix of instructions. instruction_costs.py writes the mixes behind this text.
#include "device/sm90/machine.h"

namespace tilewise::device {

using Machine = HopperMachine;

// instruction_costs.py reads these.
constexpr int kGroup = 128;    // threads of a warpgroup
constexpr int kWorkers = 2;    // warpgroups
constexpr int kScores = 8;     // of a lane, that a mix is of
constexpr int kRepeats = 800;  // of a mix, unrolled eight times, so that the loop's own instructions don't count
constexpr int kSharedBytes = 51200;

constexpr int kRows = 64, kColumns = 128;    // of a product 16 deep: 64 cycles of the matrix unit
constexpr int kDepth = 128, kProducts = 64;  // of the tiles; between two looks at whether to go on
constexpr int kUnrolled = 8;
enum NamedBarriers : int { kBegin = 1, kWorkersDone, kLook };

struct Shared {
  alignas(1024) uint16_t rows[kDepth / 64][kRows][64];
  alignas(1024) uint16_t columns[kDepth / 64][kColumns][64];
  volatile int done;
  int goes_on;
};
static_assert(sizeof(Shared) <= kSharedBytes);

/// Independent values of each kind, of a lane.
struct Values {
  float score[kScores], weight[kScores], sum[kScores], packed[kScores], addend[kScores], factor;
  uint32_t word[kScores], bits[kScores], draw[kScores], low[kScores];
};

// One instruction each, of values that no other one of the mix has, unless a kernel's would. ptxas keeps them all:
// nvdisasm shows 64 in a loop of 64, where two additions of integers became one of three.
TILEWISE_INLINE void ffma(Values& x, int i) {
  asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x.score[i]) : "f"(x.factor), "f"(x.addend[i]));
}
TILEWISE_INLINE void fmul(Values& x, int i) { asm volatile("mul.f32 %0, %0, %1;" : "+f"(x.score[i]) : "f"(x.factor)); }
TILEWISE_INLINE void fadd(Values& x, int i) { asm volatile("add.f32 %0, %0, %1;" : "+f"(x.sum[i]) : "f"(x.addend[i])); }
TILEWISE_INLINE void ex2(Values& x, int i) { asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x.weight[i])); }
TILEWISE_INLINE void tanh(Values& x, int i) { asm volatile("tanh.approx.f32 %0, %0;" : "+f"(x.weight[i])); }
TILEWISE_INLINE void pack(Values& x, int i) {
  asm volatile("{ .reg .b32 pair; cvt.rn.bf16x2.f32 pair, %0, %1; mov.b32 %0, pair; }"
               : "+f"(x.packed[i])
               : "f"(x.addend[i]));
}
TILEWISE_INLINE void max(Values& x, int i) {
  asm volatile("max.f32 %0, %0, %1;" : "+f"(x.packed[i]) : "f"(x.addend[i]));
}
TILEWISE_INLINE void lop3(Values& x, int i) {
  asm volatile("lop3.b32 %0, %0, 0x12345678, %0, 0x6a;" : "+r"(x.word[i]));
}
TILEWISE_INLINE void prmt(Values& x, int i) {
  asm volatile("prmt.b32 %0, %0, %1, 0x2143;" : "+r"(x.word[i]) : "r"(x.bits[i]));
}
TILEWISE_INLINE void hmul2(Values& x, int i) {
  asm volatile("mul.rn.f16x2 %0, %0, %1;" : "+r"(x.low[i]) : "r"(x.bits[i]));
}
TILEWISE_INLINE void imad(Values& x, int i) {
  asm volatile("mad.lo.u32 %0, %0, %1, %1;" : "+r"(x.draw[i]) : "r"(x.bits[i]));
}
TILEWISE_INLINE void mul_wide(Values& x, int i) {
  uint64_t product;
  asm volatile("mul.wide.u32 %0, %1, 0xD2511F53;" : "=l"(product) : "r"(x.draw[i]));
  x.low[i] = static_cast<uint32_t>(product), x.draw[i] = static_cast<uint32_t>(product >> 32);
}

/// Multiplies until the workers are done. Writes how long it took, and for how many products.
TILEWISE_INLINE void multiply(Shared& shared, uint64_t* to, float* sink) {
  Sm80Accumulator sums[kColumns / 8] = {};
  const auto A = MatrixDescriptor::of<Machine>(shared.rows, 16), B = MatrixDescriptor::of<Machine>(shared.columns, 16);
  const bool leads = threadIdx.x % kGroup == 0;
  Machine::named_barrier_sync(kBegin, (kWorkers + 1) * kGroup);
  const long long begin = clock64();
  uint64_t products = 0;
  for (int goes_on = 1; goes_on != 0;) {
    TILEWISE_NO_UNROLL
    for (int at_once = 0; at_once < kProducts; at_once += 2 * kDepth / 16) {
      Machine::wgmma_fence();
      TILEWISE_UNROLL
      for (int k = 0; k < 2 * kDepth / 16; ++k) {
        const int chunk = k / 4 % 2, bytes = k % 4 * 32;
        Machine::template wgmma<kBf16, kKMajor, kKMajor>(
            sums, A.advanced(chunk * static_cast<int>(sizeof shared.rows[0]) + bytes),
            B.advanced(chunk * static_cast<int>(sizeof shared.columns[0]) + bytes), true);
      }
      Machine::wgmma_commit();
      Machine::template wgmma_wait<1>();
    }
    products += kProducts;
    if (leads) shared.goes_on = shared.done == 0;
    Machine::named_barrier_sync(kLook, kGroup);
    goes_on = shared.goes_on;
    Machine::named_barrier_sync(kLook, kGroup);
  }
  Machine::template wgmma_wait<0>();
  if (leads) to[1] = static_cast<uint64_t>(clock64() - begin), to[2] = products;
  float all = 0;
  for (const Sm80Accumulator& sum : sums) all += sum[0] + sum[1] + sum[2] + sum[3];
  if (all == 1.0f) *sink = all;
}

/// Works through a mix. Writes how long one warp took for kRepeats of it.
template <class Mix>
TILEWISE_INLINE void work(Shared& shared, bool beside, float factor, uint64_t* to, float* sink) {
  const auto lane = static_cast<float>(threadIdx.x);
  Values x{};
  x.factor = factor;
  for (int i = 0; i < kScores; ++i) {
    const auto number = static_cast<uint32_t>(i);
    x.score[i] = x.sum[i] = factor * lane + number, x.weight[i] = x.packed[i] = number, x.addend[i] = lane - number;
    x.word[i] = threadIdx.x * 7 + number, x.bits[i] = threadIdx.x * 5 + number, x.draw[i] = x.low[i] = ~x.word[i];
  }
  Machine::named_barrier_sync(kBegin, (kWorkers + (beside ? 1 : 0)) * kGroup);
  const long long begin = clock64();
  TILEWISE_NO_UNROLL
  for (int repeat = 0; repeat < kRepeats; repeat += kUnrolled) {
    TILEWISE_UNROLL
    for (int i = 0; i < kUnrolled; ++i) Mix::work(x);
  }
  const long long end = clock64();
  float all = 0;
  for (int i = 0; i < kScores; ++i) {
    all += x.score[i] + x.weight[i] + x.sum[i] + x.packed[i] + static_cast<float>(x.word[i] ^ x.draw[i] ^ x.low[i]);
  }
  if (all == 1.0f) *sink = all;
  Machine::named_barrier_sync(kWorkersDone, kWorkers * kGroup);
  if (threadIdx.x == 0) shared.done = 1, to[0] = static_cast<uint64_t>(end - begin);
}

/// to: cycles of the workers, cycles of the products, their number.
template <class Mix>
TILEWISE_INLINE void measure(Shared& shared, int beside, float factor, uint64_t* to, float* sink) {
  auto* words = reinterpret_cast<uint32_t*>(&shared);
  for (uint32_t i = threadIdx.x; i < (sizeof shared.rows + sizeof shared.columns) / 4; i += blockDim.x) {
    words[i] = 0x3C003C00u + (i * 2654435761u & 0x803F803Fu);  // two numbers in bf16 of about 0.01, of either sign
  }
  if (threadIdx.x == 0) shared.done = 0;
  __syncthreads();
  Machine::fence_shared_writes();
  __syncthreads();
  if (threadIdx.x < kWorkers * kGroup) {
    work<Mix>(shared, beside != 0, factor, to, sink);
  } else if (beside != 0) {
    multiply(shared, to, sink);
  }
}

}  // namespace tilewise::device

#define TILEWISE_MEASURE(name, ...)                                                                                 \
  namespace tilewise::device {                                                                                      \
  struct name {                                                                                                     \
    TILEWISE_INLINE static void work(Values& x) { __VA_ARGS__ }                                                     \
  };                                                                                                                \
  }                                                                                                                 \
  extern "C" __global__ void __launch_bounds__((tilewise::device::kWorkers + 1) * tilewise::device::kGroup, 1)      \
      measure_##name(int beside, float factor, unsigned long* to, float* sink) {                                    \
    extern __shared__ __align__(1024) unsigned char memory[];                                                       \
    tilewise::device::measure<tilewise::device::name>(*reinterpret_cast<tilewise::device::Shared*>(memory), beside, \
                                                      factor, to, sink);                                            \
  }
