// What a Hopper machine offers to kernels beyond device/tile/contract.h, written down once: kernels compile on no
// machine that lacks some of it.
#pragma once

#include "device/sm90/matrix_descriptor.h"
#include "device/sm90/ops.h"
#include "device/sm90/tensor_map.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// Barriers. The class of mbarrier.h is made of them.
template <class M>
concept HasBarriers = requires(uint64_t* barrier, int32_t n, uint32_t parity, int number, int threads) {
  { M::init_barrier(barrier, n) } -> SameAs<void>;
  { M::publish_barriers() } -> SameAs<void>;  // lets TMA see barriers that this thread initialised
  { M::arrive(barrier) } -> SameAs<void>;
  { M::arrive_and_expect(barrier, n) } -> SameAs<void>;
  // Arrives once this lane's copies by copy_async() have landed, and waits for nothing. Whoever waits for the barrier
  // lets the matrix unit see them by fence_shared_writes().
  { M::arrive_after_copies(barrier) } -> SameAs<void>;
  { M::wait(barrier, parity) } -> SameAs<void>;
  { M::test(barrier, parity) } -> SameAs<bool>;  // whether the phase has ended; true replaces wait()
  // Hardware barriers have numbers; 0 is the whole block's. `threads` counts those that wait and those that arrive.
  { M::named_barrier_sync(number, threads) } -> SameAs<void>;
  { M::named_barrier_arrive(number, threads) } -> SameAs<void>;
  { M::template alloc_registers<160>() } -> SameAs<void>;  // waits for registers that another warpgroup gives up
  { M::template dealloc_registers<32>() } -> SameAs<void>;
};

/// Clusters. Their blocks run side by side and reach each other's barriers and shared memory. A block must wait for
/// what others do to it before it ends.
template <class M>
concept HasClusters = requires(uint64_t* barrier, void* to, const TensorMap& map, uint32_t blocks, int32_t x) {
  { M::rank_in_cluster() } -> SameAs<int32_t>;
  // Arrives at the same barrier of the block of that rank. It orders what this lane has read, not what it has written.
  { M::arrive_at(barrier, x) } -> SameAs<void>;
  // All lanes of all blocks meet. Those that have waited see what came before each arrival.
  { M::arrive_at_cluster() } -> SameAs<void>;
  { M::wait_for_cluster() } -> SameAs<void>;
  // Loads to the same place of each block whose bit is set; the bytes count on the same barrier of that block.
  { M::copy_box_to_blocks(blocks, to, map, barrier, x, x) } -> SameAs<void>;
};

/// The tensor memory accelerator: boxes of a tensor move between global and shared memory by one thread's instruction.
/// What lies outside the tensor reads as zeros and is not written.
template <class M>
concept HasTma = requires(void* to, const void* from, const TensorMap& map, uint64_t* landed, float* sum, int32_t x) {
  // Loads a box of one to five dimensions, the innermost first. Its bytes count on the barrier `landed`.
  { M::copy_box(to, map, landed, x) } -> SameAs<void>;
  { M::copy_box(to, map, landed, x, x, x, x, x) } -> SameAs<void>;
  // Loads one that no other block reads: L2 evicts its lines first.
  { M::copy_box_once(to, map, landed, x, x, x, x, x) } -> SameAs<void>;
  // Copies runs of at least 16 bytes that start on 16 bytes: to shared memory, and floats that are stored or added
  // to global memory. Additions of others may come between those of a run.
  { M::copy_run(to, from, x, landed) } -> SameAs<void>;
  { M::store_run(sum, from, x) } -> SameAs<void>;
  { M::add_run(sum, from, x) } -> SameAs<void>;
  { M::prefetch_run(from, x) } -> SameAs<void>;  // into L2
  { M::prefetch_map(map) } -> SameAs<void>;
  { M::store_box(map, from, x, x, x, x, x) } -> SameAs<void>;  // written before fence_shared_writes() and a barrier
  { M::commit_stores() } -> SameAs<void>;
  { M::wait_stores_read() } -> SameAs<void>;              // until this thread's stores have read shared memory
  { M::template wait_stores_read<1>() } -> SameAs<void>;  // but for the last so many committed groups of them
  { M::wait_stores() } -> SameAs<void>;                   // until they have been written
  // Lets TMA and the matrix unit see what this thread has written to shared memory. It waits for nothing.
  { M::fence_shared_writes() } -> SameAs<void>;
};

/// wgmma. It runs while the warps go on: accumulators and operands are the matrix unit's until wgmma_wait() returns.
template <class M>
concept HasMatrixUnit =
    requires(Sm80Accumulator (&d)[8], const WgmmaRegisters& a, MatrixDescriptor tile, bool b, float f) {
      { M::wgmma_fence() } -> SameAs<void>;  // registers written before it are seen by the products that follow
      { M::wgmma_commit() } -> SameAs<void>;
      { M::order_after(f) } -> SameAs<void>;            // the next instructions are issued once f is known
      { M::template wgmma_wait<1>() } -> SameAs<void>;  // until that many committed groups are under way
      // d = A B, or d += A B. `wanted` is false where nobody looks at the result, whatever the tile holds.
      { M::template wgmma<kBf16, kKMajor, kKMajor>(d, tile, tile, b) } -> SameAs<void>;
      { M::template wgmma<kBf16, kMnMajor>(d, a, tile, b, b) } -> SameAs<void>;
      { M::template wgmma<kE4m3, kKMajor>(d, a, tile, b, b) } -> SameAs<void>;  // bytes are K-major alone
    };

template <class M>
concept Sm90Machine = TileMachine<M> && HasBarriers<M> && HasClusters<M> && HasTma<M> && HasMatrixUnit<M> &&
                      requires(float& x, int32_t i, uint32_t word, uint32_t* counter, uint64_t* wide, void* row,
                               uint32_t (&four)[4], Sm80Accumulator& d) {
                        typename M::SharedNumber;              // an int32_t in shared memory, read as one
                        { M::blocks() } -> SameAs<int32_t>;    // of the grid
                        { M::uniform(i) } -> SameAs<int32_t>;  // what steers wgmma is known to be the same
                        // All lanes have the same number, and the compiler keeps it in a uniform register from here on.
                        { M::agreed(i) } -> SameAs<int32_t>;
                        { M::shuffle_xor(word, i) } -> SameAs<uint32_t>;
                        { M::shuffle(i, i) } -> SameAs<int32_t>;         // that of another lane of the warp
                        { M::lanes_where(bool{}) } -> SameAs<uint32_t>;  // a bit for each lane of the warp
                        { M::tanh(x) } -> SameAs<float>;                 // its relative error is 2^-11
                        { M::pin(x) } -> SameAs<void>;                   // no use of x moves across it
                        { M::pin(word) } -> SameAs<void>;
                        // Products of two 16-bit elements each, rounded.
                        { M::template multiply_pairs<kBf16>(word, word) } -> SameAs<uint32_t>;
                        { M::widen_f16(uint16_t{}) } -> SameAs<float>;
                        { M::count(counter) } -> SameAs<uint32_t>;  // adds 1 to global memory: what was there before
                        { M::count_later(counter) } -> SameAs<uint32_t>;  // likewise; waits where the answer is used
                        // Returns what global memory held. The second number takes its place where that was the first.
                        { M::exchange_if(wide, *wide, *wide) } -> SameAs<uint64_t>;
                        { M::fence_global() } -> SameAs<void>;  // what was written is seen before what follows
                        // Waits until another block has released this value. TMA's additions that it waited
                        // for have arrived then, and those of this thread come behind.
                        { M::await_global(counter, word) } -> SameAs<void>;
                        { M::await_global_together(counter, word) } -> SameAs<void>;
                        { M::release_global(counter, word) } -> SameAs<void>;
                        { M::release_count(counter) } -> SameAs<void>;  // likewise, 1 more than was there
                        // Returns what some block has released by now. The answer comes late, and it orders
                        // additions that depend on it, not loads.
                        { M::peek_global(counter) } -> SameAs<uint32_t>;
                        { M::shared_address(row) } -> SameAs<uint32_t>;
                        // Moves four 8x8 matrices. Lanes 8m to 8m+7 give the addresses of matrix m's rows.
                        { M::load_matrices(four, row) } -> SameAs<void>;
                        { M::load_matrices_transposed(four, row) } -> SameAs<void>;
                        { M::store_matrices(row, four) } -> SameAs<void>;
                        { M::store_matrices_transposed(row, four) } -> SameAs<void>;
                        // Byte i of the result is the one of b's and a's that digit i of the selector names.
                        { M::permute_bytes(word, word, word) } -> SameAs<uint32_t>;
                        // Returns halves of all ones or zeros, by the top bits of the bytes of these numbers.
                        { M::spread_signs(word, word, word) } -> SameAs<uint32_t>;
                        // Returns all ones where a half of the first word is no less than that of the second,
                        // else zeros. `true` says that the second's are positive normal numbers of bf16.
                        { M::template halves_at_least<true>(word, word) } -> SameAs<uint32_t>;
                        { M::pack_e4m3(x, x, x, x) } -> SameAs<uint32_t>;  // the first one low, at most 448
                        M::template mma<kBf16>(d, four, word, word);
                      };

template <class Ops>
concept Sm90TileOps = Sm90Machine<typename Ops::Machine> && AccumulatorLayout<typename Ops::FragmentLayout>;

}  // namespace tilewise::device
