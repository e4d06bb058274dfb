// What a machine and its operations offer to kernels, written down once. Kernels are templates of TileOps, so a
// machine_*.h or ops_*.h that lacks something does not compile, and the compiler names the line here that it lacks.
#pragma once

#include "device/tile/mma.h"

namespace tilewise::device {

template <class T, class U>
concept SameAs = IsSame<T, U>::value;

/// A table of fragment_layout.h.
template <class Layout>
concept AccumulatorLayout = requires(int lane, int i) {
  requires Layout::kRegisters* Layout::kLanes == Layout::kRows* Layout::kCols;  // an element stands in one register
  requires Layout::kRowMask < Layout::kLanes;        // lanes that share a row differ in these bits
  requires Layout::kRowSlots <= Layout::kRegisters;  // rows that a lane holds parts of
  { Layout::place(lane, i) } -> SameAs<Place>;       // row and column of register i
  { Layout::slot(i) } -> SameAs<int>;                // which of the lane's rows register i belongs to
};

/// What every machine_*.h offers. A machine may add, and kernels make use of:
///   uniform(int)                a value that is the same in every lane, made known as such
///   highest_of_wave(int), sum_of_wave(int), bits_of_wave(word)    of its lanes, in one instruction, the same in each
///   keep_order()                instructions stay on their side of it
///   not_folded(place)           a place in shared memory, the same in each lane, that addresses are counted from
///   set_priority<kLevel>()      of the wave among those that share its matrix unit
///   copy_window(to, window, offset, further), wait_copies<kPending>()    copies of 16 bytes a lane, as windows are
///   read, straight
///                               to shared memory; until so many of the wave's copies and loads, or less, are under way
///   read_transposed(from)       of four rows of sixteen elements that sixteen lanes name, a column for each lane
///   kStepsAhead, kFewestAhead   of a stream of products (Ops::stream_ABt()), whose operands are read so many steps
///   ahead compute_by_here(x)          x is computed by here, not behind a later branch wait_for_step_before(),
///   let_next_step_begin()    steps of a plan overlap pack_e4m3(float, float)     two floats to fp8, as float_to_e4m3()
///   does unpack_e4m3<kBf16>(two words, word)    a word's fp8 bytes to elements: what products of ByteTiles take, with
///   swap_middle_bytes(word)     bytes 0, 2, 1 and 3 of it
///   unpack_fnuz(four floats, word)                 four e4m3fnuz bytes, exactly
///   numbers_of_e4m3(four floats, word)             the same of e4m3
///   numbers_of_e2m1(eight floats, word)            the same of e2m1
///   mma_bytes<kPart>(sums, bytes, bytes)           one of kByteProducts instructions that multiply fp8 as it is
///   mma_scaled<kFours>(sums, bytes, scale, bytes, scale)    of fp8, or e2m1 where kFours, times powers of two
///   unknown(word)               the same word, of whose bits the compiler knows nothing
///   kDies                       dies with a cache of their own, to which blocks go in turn
///   kSparesScalars              see platform.h
///   kRoundsByAdding             pack_nearest() adds to the bits, which a NaN of full payload does not survive
template <class M>
concept TileMachine = requires(int i, float x, bool b, const float* from, float* to, const void* there, void* here) {
  requires M::kLanes > 0;                     // of a wave
  { M::thread() } -> SameAs<int>;             // of the block
  { M::lane() } -> SameAs<int>;               // of the wave
  { M::wave() } -> SameAs<int>;               // of the block; the same in every lane
  { M::block() } -> SameAs<int>;              // of the grid
  { M::not_hoisted(i) } -> SameAs<int>;       // i >= 0, worked out anew where it stands in a loop
  { M::barrier() } -> SameAs<void>;           // of the block; orders shared memory
  { M::memory_barrier() } -> SameAs<void>;    // of the block; orders global memory, too
  { M::wave_sync() } -> SameAs<void>;         // of the wave; orders shared memory
  { M::any(b) } -> SameAs<bool>;              // whether b holds in a lane of the wave
  { M::shuffle_xor(x, i) } -> SameAs<float>;  // x of lane ^ i
  { M::load_global(from) } -> SameAs<float>;  // any type of 2, 4, 8 or 16 bytes, aligned, here and below
  { M::store_global(to, x) } -> SameAs<void>;
  { M::add_global(to, x) } -> SameAs<void>;  // atomic, in any order
  { M::template load_shared<Chunk>(there) } -> SameAs<Chunk>;
  { M::store_shared(here, x) } -> SameAs<void>;
  { M::exp2(x) } -> SameAs<float>;  // approximate, as are the next two
  { M::log2(x) } -> SameAs<float>;
  { M::reciprocal(x) } -> SameAs<float>;
  { M::template pack<kBf16>(x, x) } -> SameAs<uint32_t>;  // two elements, to nearest even, the first one low
  { M::template pack<kF16>(x, x) } -> SameAs<uint32_t>;
};

/// Machines that copy from global to shared memory while lanes go on.
template <class M>
concept CopiesAsynchronously =
    requires(void* to, const void* from, bool valid, float* sum, const float (&x)[4], uint32_t word) {
      { M::copy_async(to, from, valid) } -> SameAs<void>;         // 16 bytes; zeros, nothing read, unless valid
      { M::commit_copies() } -> SameAs<void>;                     // closes a group of this lane's copies
      { M::template wait_copies<0>() } -> SameAs<void>;           // until so many groups, or less, are under way
      { M::add_global(sum, x) } -> SameAs<void>;                  // 4 floats, 16 bytes aligned; atomic, in any order
      { M::template spread_bytes<2>(word) } -> SameAs<uint32_t>;  // two bytes from the 2nd on, to upper bytes of halves
      { M::template scale_pair<kBf16, 120>(word) } -> SameAs<uint32_t>;  // two elements, each times 2^120
      { M::template scale_pair<kF16, 8>(word) } -> SameAs<uint32_t>;
    };

/// Machines whose tiles pass through registers.
template <class M>
concept LoadsThroughWindows = requires(typename M::Window window, const void* start, uint32_t word) {
  { M::window(start, word) } -> SameAs<typename M::Window>;           // of so many bytes; the same in every lane
  { M::template load_window<Chunk>(window, word) } -> SameAs<Chunk>;  // at a byte offset; zeros past the end
  { M::template load_window<HalfChunk>(window, word) } -> SameAs<HalfChunk>;
  { M::template load_window<uint16_t>(window, word, word) } -> SameAs<uint16_t>;  // from so many bytes on, for all
  { M::low_halves(word, word) } -> SameAs<uint32_t>;  // the lower 16 bits of two words, the first ones low
  { M::high_halves(word, word) } -> SameAs<uint32_t>;
};

/// Tiles that contracts are tried on.
struct Samples {
  using Tile = SharedTile<kBf16, 32, 32>;
  using Columns = SharedTile<kBf16, 32, 32, kSwizzledSpread>;
  template <class Ops>
  using Operand = typename Ops::template Operand<kBf16, 32, 32>;
  template <class Ops>
  using Product = Fragment<Ops, 32, 32>;
  static Chunk load(int row, int chunk);
};

/// Operations that read tiles transposed.
template <class Ops>
concept ReadsTransposed =
    requires(Samples::Product<Ops>& to, const TilePart<Samples::Tile>& a, const Samples::Tile& b) {
      { Ops::mma_AtB(to, a, b, ColumnPart<1>{0}) } -> SameAs<void>;  // to += A^T B
    };

/// Operations that read a transposed copy of a tile instead.
template <class Ops>
concept ReadsTransposedCopies = requires(Samples::Columns& copy, int i) {
  requires Ops::kChunkMates > 0;                               // blocks of 4 rows so far apart fill a chunk of the copy
  requires Ops::kMostHeldBytes > 0;                            // of a tile on its way, a lane, where registers are few
  { Ops::transposed_place(copy, i, i) } -> SameAs<uint16_t*>;  // where rows [i, i + 4) of a column stand
};

/// Operations that load a block's own rows from global memory straight to registers.
template <class Ops>
concept GathersRows = requires(Samples::Operand<Ops>& to) {
  { Ops::gather_rows(to, Samples::load) } -> SameAs<void>;  // load(row, chunk) returns 8 elements
};

/// Operations that read them from a tile.
template <class Ops>
concept LoadsOperands = requires(Samples::Operand<Ops>& to, const TilePart<Samples::Tile>& from) {
  { Ops::load_operand(to, from) } -> SameAs<void>;
};

/// What every ops_*.h offers.
template <class Ops>
concept TileOps =
    TileMachine<typename Ops::Machine> && AccumulatorLayout<typename Ops::FragmentLayout> &&
    requires(Samples::Product<Ops>& to, const Samples::Operand<Ops>& a, const TilePart<Samples::Tile>& part,
             const Samples::Tile& b, typename Ops::Accumulator accumulator) {
      requires Ops::kMachineMultiplies;  // the machine has the instructions that the operations use
      requires Ops::Machine::kLanes == Ops::FragmentLayout::kLanes;
      requires Ops::kRoomyDims > 0;                   // widths of a wave's operands beyond which registers are few
      { accumulator[0] } -> SameAs<float&>;           // register of a lane; pair(i): where it computes with two at once
      { Ops::finish_copies() } -> SameAs<void>;       // waits for this lane's copies; a barrier shows them to all
      { Ops::mma_ABt(to, a, b) } -> SameAs<void>;     // to += A B^T, A in registers
      { Ops::mma_ABt(to, part, b) } -> SameAs<void>;  // the same, A read as it is needed
      { Ops::mma_AB(to, a, b) } -> SameAs<void>;      // to += A B; b is the transposed copy where there are such
      { Ops::template to_operand<kBf16>(to) } -> SameAs<Samples::Operand<Ops>>;  // rounded, in registers
      Ops::template to_operand<kF16>(to);
    } &&
    (!Ops::kAsyncCopies || CopiesAsynchronously<typename Ops::Machine>) &&
    (Ops::kAsyncCopies || LoadsThroughWindows<typename Ops::Machine>) &&
    (!Ops::kTransposedCopies || ReadsTransposedCopies<Ops>) && (Ops::kTransposedCopies || ReadsTransposed<Ops>) &&
    (!Ops::kDirectRows || GathersRows<Ops>) && (Ops::kDirectRows || LoadsOperands<Ops>);

}  // namespace tilewise::device
