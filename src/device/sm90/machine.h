// A Hopper GPU: what it can do beyond sm_80's, as PTX in small named wrappers. contract.h says what each does.
#pragma once

#include "device/sm90/tma.h"
#include "device/sm90/wgmma.h"
#include "device/tile/machine_sm80.h"

namespace tilewise::device {

struct HopperMachine : Sm80Machine {
  using SharedNumber = int32_t;
  TILEWISE_INLINE static int32_t blocks() { return static_cast<int32_t>(gridDim.x); }
  TILEWISE_INLINE static int32_t uniform(int32_t value) { return __shfl_sync(~0u, value, 0); }
  TILEWISE_INLINE static int32_t agreed(int32_t value) {
    return static_cast<int32_t>(__reduce_or_sync(~0u, static_cast<uint32_t>(value)));
  }
  TILEWISE_INLINE static uint32_t lanes_where(bool value) { return __ballot_sync(~0u, value); }
  using Sm80Machine::shuffle_xor;
  TILEWISE_INLINE static uint32_t shuffle_xor(uint32_t value, int mask) { return __shfl_xor_sync(~0u, value, mask); }
  TILEWISE_INLINE static int32_t shuffle(int32_t value, int lane) { return __shfl_sync(~0u, value, lane); }
  TILEWISE_INLINE static float tanh(float x) {
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  TILEWISE_INLINE static float widen_f16(uint16_t bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
  TILEWISE_INLINE static void pin(float& x) { asm volatile("" : "+f"(x)::"memory"); }
  TILEWISE_INLINE static void pin(uint32_t& x) { asm volatile("" : "+r"(x)::"memory"); }
  /// What follows is issued when this sum, which is never negative, is known: among instructions without
  /// branches the assembler puts a wait for products before arithmetic that would have hidden behind them.
  TILEWISE_INLINE static void order_after(float sum) {
    if (any(sum < 0.0f)) asm volatile("trap;" ::: "memory");
  }
  template <int kElement>
  TILEWISE_INLINE static uint32_t multiply_pairs(uint32_t a, uint32_t b) {
    uint32_t product;
    if constexpr (kElement == kBf16) {
      asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    } else {
      asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
    }
    return product;
  }
  TILEWISE_INLINE static uint32_t count(uint32_t* counter) { return atomicAdd(counter, 1u); }
  /// Not an addition, which the compiler has warps make together, with a shuffle that waits for the answer at once.
  TILEWISE_INLINE static uint32_t count_later(uint32_t* counter) {
    uint32_t before;
    constexpr uint32_t kNever = 0x7FFFFFFF;  // from where it would begin at 0 again
    asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(counter), "r"(kNever) : "memory");
    return before;
  }
  TILEWISE_INLINE static uint64_t exchange_if(uint64_t* to, uint64_t expected, uint64_t desired) {
    return atomicCAS(reinterpret_cast<unsigned long long*>(to), expected, desired);
  }
  TILEWISE_INLINE static void fence_global() { __threadfence(); }
  TILEWISE_INLINE static uint32_t peek_global(const uint32_t* word) {
    uint32_t found;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(word));
    return found;
  }
  TILEWISE_INLINE static void await_global(const uint32_t* word, uint32_t value) {
    uint32_t found;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(word) : "memory");
    } while (found != value);
    asm volatile("fence.proxy.async.global;" ::: "memory");
  }
  /// By all lanes of a warp, which are known to be together still: where each asks for itself, nothing stays in uniform
  /// registers around that loop.
  TILEWISE_INLINE static void await_global_together(const uint32_t* word, uint32_t value) {
    asm volatile(
        "{ .reg .pred p; .reg .u32 found;\n"
        "WAIT_%=: ld.acquire.gpu.global.u32 found, [%0];\n"
        "setp.eq.u32 p, found, %1;\n"
        "vote.sync.all.pred p, p, 0xffffffff;\n"
        "@!p bra WAIT_%=; }\n"
        "fence.proxy.async.global;" ::"l"(word),
        "r"(value)
        : "memory");
  }
  /// TMA's additions are seen by others once a release has waited for them, 1,200 cycles. wait_stores()
  /// alone does not: it is the instruction of wait_stores_read(), and with a relaxed store 15 of 250 runs had bits of
  /// their own.
  TILEWISE_INLINE static void release_global(uint32_t* word, uint32_t value) {
    asm volatile("fence.proxy.async.global;\n st.release.gpu.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
  }
  TILEWISE_INLINE static void release_count(uint32_t* counter) {
    asm volatile("fence.proxy.async.global;\n red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
  }
  TILEWISE_INLINE static uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
  }
  TILEWISE_INLINE static void store_matrices(void* row, const uint32_t (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
  }

  TILEWISE_INLINE static void store_matrices_transposed(void* row, const uint32_t (&from)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                 : "memory");
  }

  TILEWISE_INLINE static uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    return __byte_perm(a, b, selector);
  }
  TILEWISE_INLINE static uint32_t spread_signs(uint32_t word, uint32_t low, uint32_t high) {
    uint32_t spread;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(spread) : "r"(word), "r"(0x8888u | low * 0x11u | high * 0x1100u));
    return spread;
  }
  /// The lesser of both is the bound where the half reaches it. Equality is asked of floats, which have an instruction
  /// for two that answers with masks: bounds that are no normal numbers are turned into 1.0, as what equals them then.
  template <bool kNormal>
  TILEWISE_INLINE static uint32_t halves_at_least(uint32_t word, uint32_t bounds) {
    constexpr uint32_t kOnes = 0x3F803F80u;  // 1.0 in bf16, twice
    uint32_t least, reached;
    asm("min.u16x2 %0, %1, %2;" : "=r"(least) : "r"(word), "r"(bounds));
    asm("set.eq.u32.bf16x2 %0, %1, %2;"
        : "=r"(reached)
        : "r"(kNormal ? least : least ^ bounds ^ kOnes), "r"(kNormal ? bounds : kOnes));
    return reached;
  }
  TILEWISE_INLINE static uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
    uint32_t packed;
    asm("{ .reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high}; }"
        : "=r"(packed)
        : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
    return packed;
  }

  // ------------------------------------------------------------------ barriers
  TILEWISE_INLINE static void init_barrier(uint64_t* barrier, int32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
  }
  TILEWISE_INLINE static void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
  TILEWISE_INLINE static void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
  }
  TILEWISE_INLINE static void arrive_and_expect(uint64_t* barrier, int32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
  }
  TILEWISE_INLINE static void arrive_after_copies(uint64_t* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
  }
  TILEWISE_INLINE static void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{ .reg .pred p;\n"
        "WAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@!p bra WAIT_%=; }" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
  }
  TILEWISE_INLINE static bool test(uint64_t* barrier, uint32_t parity) {
    uint32_t ended;
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(ended)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return ended != 0;
  }
  TILEWISE_INLINE static void named_barrier_sync(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
  }
  TILEWISE_INLINE static void named_barrier_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
  }

  // ------------------------------------------------------------------ clusters
  TILEWISE_INLINE static int32_t rank_in_cluster() {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return static_cast<int32_t>(rank);
  }
  /// With .release.cluster it would wait for all that this thread has in memory (MEMBAR.ALL.GPU).
  TILEWISE_INLINE static void arrive_at(uint64_t* barrier, int32_t rank) {
    asm volatile(
        "{ .reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
  }
  TILEWISE_INLINE static void arrive_at_cluster() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
  TILEWISE_INLINE static void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

  // ------------------------------------------------------------------ registers
  template <int kRegisters>
  TILEWISE_INLINE static void alloc_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
  template <int kRegisters>
  TILEWISE_INLINE static void dealloc_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }

  // ------------------------------------------------------------------ TMA
  template <class... X>
  TILEWISE_INLINE static void copy_box(void* to, const TensorMap& map, uint64_t* landed, const X&... x) {
    Tma<sizeof...(X)>::load(shared_address(to), map, shared_address(landed), x...);
  }
  template <class... X>
  TILEWISE_INLINE static void copy_box_to_blocks(uint32_t blocks, void* to, const TensorMap& map, uint64_t* landed,
                                                 const X&... x) {
    Tma<sizeof...(X)>::load_to_blocks(static_cast<uint16_t>(blocks), shared_address(to), map, shared_address(landed),
                                      x...);
  }
  template <class... X>
  TILEWISE_INLINE static void copy_box_once(void* to, const TensorMap& map, uint64_t* landed, const X&... x) {
    uint64_t policy;
    // Made anew each time: kept, it would take two of the few registers of the warp that loads tiles.
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    Tma<sizeof...(X)>::load_by_policy(policy, shared_address(to), map, shared_address(landed), x...);
  }
  TILEWISE_INLINE static void copy_run(void* to, const void* from, int32_t bytes, uint64_t* landed) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(landed))
                 : "memory");
  }
  TILEWISE_INLINE static void add_run(float* to, const void* from, int32_t bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
                 "r"(shared_address(from)), "r"(bytes)
                 : "memory");
  }
  TILEWISE_INLINE static void store_run(float* to, const void* from, int32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
  }
  template <class... X>
  TILEWISE_INLINE static void store_box(const TensorMap& map, const void* from, const X&... x) {
    Tma<sizeof...(X)>::store(map, shared_address(from), x...);
  }
  TILEWISE_INLINE static void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
  template <int kPending = 0>
  TILEWISE_INLINE static void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
  }
  TILEWISE_INLINE static void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
  TILEWISE_INLINE static void prefetch_run(const void* from, int32_t bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
  }
  TILEWISE_INLINE static void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map));
  }
  TILEWISE_INLINE static void fence_shared_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

  // ------------------------------------------------------------------ matrix unit
  TILEWISE_INLINE static void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
  TILEWISE_INLINE static void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
  template <int kPending>
  TILEWISE_INLINE static void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
  }
  template <int kElement, Major kMajorA, Major kMajorB, int kTiles>
  TILEWISE_INLINE static void wgmma(Sm80Accumulator (&d)[kTiles], MatrixDescriptor a, MatrixDescriptor b,
                                    bool accumulate) {
    Wgmma<kElement, kTiles * 8>::template multiply<kMajorA, kMajorB>(d, a, b, accumulate);
  }
  template <int kElement, Major kMajorB, int kTiles>
  TILEWISE_INLINE static void wgmma(Sm80Accumulator (&d)[kTiles], const WgmmaRegisters& a, MatrixDescriptor b,
                                    bool accumulate, bool /*wanted*/) {
    Wgmma<kElement, kTiles * 8>::template multiply<kMajorB>(d, a, b, accumulate);
  }
};

}  // namespace tilewise::device
