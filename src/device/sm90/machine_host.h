// Hopper's machine under emulation: what machine.h offers, as calls to the emulator that runs the lane.
#pragma once

#include "device/common/float16.h"
#include "device/common/float8.h"
#include "device/sm90/matrix_descriptor.h"
#include "device/sm90/tensor_map.h"
#include "device/tile/machine_host.h"

namespace tilewise::device {

/// Stands in for HopperMachine.
struct HostSm90Machine : HostSm80Machine {
  static constexpr bool kWarpgroups = true;

  class SharedNumber {
   public:
    SharedNumber(const SharedNumber&) = delete;  // where it lies only the emulator reads
    TILEWISE_INLINE operator int32_t() const { return load_shared<int32_t>(&value_); }

   private:
    int32_t value_;
  };

  TILEWISE_INLINE static int32_t blocks() { return engine().blocks; }
  TILEWISE_INLINE static int32_t uniform(int32_t value) {
    return static_cast<int32_t>(host_block->shuffle_xor(static_cast<uint32_t>(value), lane()));  // lane 0's
  }
  TILEWISE_INLINE static int32_t agreed(int32_t value) { return uniform(value); }
  TILEWISE_INLINE static int32_t shuffle(int32_t value, int from) {
    return static_cast<int32_t>(host_block->shuffle_xor(static_cast<uint32_t>(value), lane() ^ from));
  }
  TILEWISE_INLINE static uint32_t lanes_where(bool value) {
    uint32_t lanes = static_cast<uint32_t>(value) << lane();
    for (int bit = 1; bit < 32; bit *= 2) lanes |= host_block->shuffle_xor(lanes, bit);
    return lanes;
  }
  /// As far off as the machine's may be: 11 bits of the fraction, cut.
  TILEWISE_INLINE static float tanh(float x) {
    constexpr uint32_t kKept = ~((1u << (23 - 11)) - 1);
    return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, __builtin_tanhf(x)) & kKept);
  }
  TILEWISE_INLINE static float widen_f16(uint16_t bits) { return f16_to_float(bits); }
  TILEWISE_INLINE static void pin(float&) {}
  TILEWISE_INLINE static void pin(uint32_t&) {}
  template <int kElement>
  TILEWISE_INLINE static uint32_t multiply_pairs(uint32_t a, uint32_t b) {
    const auto product = [&](int half) {
      const auto x = static_cast<uint16_t>(a >> (16 * half)), y = static_cast<uint16_t>(b >> (16 * half));
      return element_to_float<kElement>(x) * element_to_float<kElement>(y);
    };
    return pack<kElement>(product(0), product(1));
  }
  TILEWISE_INLINE static uint32_t count(uint32_t* counter) { return engine().count_global(counter); }
  TILEWISE_INLINE static uint32_t count_later(uint32_t* counter) { return count(counter); }
  TILEWISE_INLINE static uint64_t exchange_if(uint64_t* to, uint64_t expected, uint64_t desired) {
    return engine().exchange_global_if(to, expected, desired);
  }
  TILEWISE_INLINE static void fence_global() {}
  TILEWISE_INLINE static uint32_t peek_global(const uint32_t* word) { return engine().peek_global(word); }
  TILEWISE_INLINE static void await_global(const uint32_t* word, uint32_t value) { engine().await_global(word, value); }
  TILEWISE_INLINE static void await_global_together(const uint32_t* word, uint32_t value) { await_global(word, value); }
  TILEWISE_INLINE static void release_global(uint32_t* word, uint32_t value) { engine().release_global(word, value); }
  TILEWISE_INLINE static void release_count(uint32_t* counter) { engine().release_count(counter); }
  TILEWISE_INLINE static uint32_t shared_address(const void* pointer) { return engine().shared_address(pointer); }
  TILEWISE_INLINE static void store_matrices(void* row, const uint32_t (&from)[4]) {
    engine().store_matrices(row, from, false);
  }
  TILEWISE_INLINE static void store_matrices_transposed(void* row, const uint32_t (&from)[4]) {
    engine().store_matrices(row, from, true);
  }

  TILEWISE_INLINE static uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
    uint32_t chosen = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t from = selector >> (4 * i) & 7u;
      chosen |= static_cast<uint32_t>(bytes >> (8 * from) & 0xFFu) << (8 * i);
    }
    return chosen;
  }
  TILEWISE_INLINE static uint32_t spread_signs(uint32_t word, uint32_t low, uint32_t high) {
    const auto half = [word](uint32_t byte) { return word >> (8 * byte + 7) & 1u ? 0xFFFFu : 0u; };
    return half(low) | half(high) << 16;
  }
  template <bool kNormal>
  TILEWISE_INLINE static uint32_t halves_at_least(uint32_t word, uint32_t bounds) {
    return ((word & 0xFFFFu) >= (bounds & 0xFFFFu) ? 0xFFFFu : 0u) | (word >> 16 >= bounds >> 16 ? 0xFFFF0000u : 0u);
  }
  TILEWISE_INLINE static uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
    const float x[4] = {x0, x1, x2, x3};
    uint32_t packed = 0;
    for (int i = 0; i < 4; ++i) packed |= static_cast<uint32_t>(float_to_e4m3(x[i])) << (8 * i);
    return packed;
  }

  TILEWISE_INLINE static void init_barrier(uint64_t* barrier, int32_t arrivals) {
    engine().init_barrier(barrier, arrivals);
  }
  TILEWISE_INLINE static void publish_barriers() { engine().publish_barriers(); }
  TILEWISE_INLINE static void arrive(uint64_t* barrier) { engine().arrive(barrier, 0); }
  TILEWISE_INLINE static void arrive_and_expect(uint64_t* barrier, int32_t bytes) { engine().arrive(barrier, bytes); }
  TILEWISE_INLINE static void arrive_after_copies(uint64_t* barrier) { engine().arrive_after_copies(barrier); }
  TILEWISE_INLINE static void wait(uint64_t* barrier, uint32_t parity) { engine().wait(barrier, parity); }
  TILEWISE_INLINE static bool test(uint64_t* barrier, uint32_t parity) { return engine().test(barrier, parity); }
  TILEWISE_INLINE static void named_barrier_sync(int number, int threads) { engine().meet_at(number, threads, true); }
  TILEWISE_INLINE static void named_barrier_arrive(int number, int threads) {
    engine().meet_at(number, threads, false);
  }
  template <int kRegisters>
  TILEWISE_INLINE static void alloc_registers() {
    engine().set_registers(kRegisters);
  }
  template <int kRegisters>
  TILEWISE_INLINE static void dealloc_registers() {
    engine().set_registers(kRegisters);
  }

  TILEWISE_INLINE static int32_t rank_in_cluster() { return engine().rank_in_cluster; }
  TILEWISE_INLINE static void arrive_at(uint64_t* barrier, int32_t rank) { engine().arrive_at(barrier, rank); }
  TILEWISE_INLINE static void arrive_at_cluster() { engine().arrive_at_cluster(); }
  TILEWISE_INLINE static void wait_for_cluster() { engine().wait_for_cluster(); }

  template <class... X>
  TILEWISE_INLINE static void copy_box(void* to, const TensorMap& map, uint64_t* landed, const X&... x) {
    copy_box_to_blocks(0, to, map, landed, x...);
  }
  template <class... X>
  TILEWISE_INLINE static void copy_box_to_blocks(uint32_t blocks, void* to, const TensorMap& map, uint64_t* landed,
                                                 const X&... x) {
    const int32_t at[] = {static_cast<int32_t>(x)...};
    engine().copy_box(to, &map, landed, at, sizeof...(X), blocks);
  }
  template <class... X>
  TILEWISE_INLINE static void copy_box_once(void* to, const TensorMap& map, uint64_t* landed, const X&... x) {
    copy_box(to, map, landed, x...);
  }
  TILEWISE_INLINE static void copy_run(void* to, const void* from, int32_t bytes, uint64_t* landed) {
    engine().copy_run(to, from, bytes, landed);
  }
  TILEWISE_INLINE static void add_run(float* to, const void* from, int32_t bytes) { engine().add_run(to, from, bytes); }
  TILEWISE_INLINE static void store_run(float* to, const void* from, int32_t bytes) {
    engine().store_run(to, from, bytes);
  }
  TILEWISE_INLINE static void prefetch_run(const void* from, int32_t bytes) { engine().prefetch_run(from, bytes); }
  TILEWISE_INLINE static void prefetch_map(const TensorMap&) {}
  template <class... X>
  TILEWISE_INLINE static void store_box(const TensorMap& map, const void* from, const X&... x) {
    const int32_t at[] = {static_cast<int32_t>(x)...};
    engine().store_box(&map, from, at, sizeof...(X));
  }
  TILEWISE_INLINE static void commit_stores() { engine().commit_stores(); }
  template <int kPending = 0>
  TILEWISE_INLINE static void wait_stores_read() {
    engine().wait_stores(false, kPending);
  }
  TILEWISE_INLINE static void wait_stores() { engine().wait_stores(true, 0); }
  TILEWISE_INLINE static void fence_shared_writes() { engine().fence_shared_writes(); }

  TILEWISE_INLINE static void wgmma_fence() { engine().fence_products(); }
  TILEWISE_INLINE static void order_after(float) {}
  TILEWISE_INLINE static void wgmma_commit() { engine().commit_products(); }
  template <int kPending>
  TILEWISE_INLINE static void wgmma_wait() {
    engine().wait_products(kPending);
  }
  template <int kElement, Major kMajorA, Major kMajorB, int kTiles>
  TILEWISE_INLINE static void wgmma(Sm80Accumulator (&d)[kTiles], MatrixDescriptor a, MatrixDescriptor b,
                                    bool accumulate) {
    engine().begin_product({kElement, 8 * kTiles, d[0].value, nullptr, a.bits, b.bits, kMajorA == kMnMajor,
                            kMajorB == kMnMajor, accumulate, true});
  }
  template <int kElement, Major kMajorB, int kTiles>
  TILEWISE_INLINE static void wgmma(Sm80Accumulator (&d)[kTiles], const WgmmaRegisters& a, MatrixDescriptor b,
                                    bool accumulate, bool wanted) {
    engine().begin_product(
        {kElement, 8 * kTiles, d[0].value, a.word, 0, b.bits, false, kMajorB == kMnMajor, accumulate, wanted});
  }

 private:
  TILEWISE_INLINE static HostWarpgroups& engine() { return *host_block->warpgroups; }
};

}  // namespace tilewise::device
