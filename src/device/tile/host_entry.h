// What an emulated kernel and its emulator know of each other: the calls a lane makes, and the entry
// that starts one. The kernel is compiled for the host at run time, the emulator is in the library.
#pragma once

#include "device/common/tensors.h"

namespace tilewise::device {

/// Matrix instructions, each with its own register layout. K of MFMA is 16: one instruction on
/// gfx950, two on older ones.
enum class HostMatrix : int32_t {
  kMmaM16N8K16,
  kMfma32x32x16,
  kMfma32x32x16Fp8,
  kMfmaScaled32x32x64,       // operands are 8 words and their scale's
  kMfmaScaled32x32x64Fours,  // the same, of e2m1 times e4m3
  kWmma16x16x16,
  kWmma16x16x16Halves,
  kWmma16x16x32
};

/// A warp's share of a product that runs beside its lanes (wgmma): 16 rows of its warpgroup's 64.
struct HostProduct {
  int32_t element, columns;
  float* d;                     // of 4 registers for 8 columns each
  const uint32_t* a_registers;  // null where A is a tile
  uint64_t a_tile, b_tile;      // descriptors
  bool a_mn_major, b_mn_major;  // of tiles; else K-major
  bool accumulate, wanted;
};

/// What a block of a machine with warpgroups, barriers in shared memory and TMA does besides. Barriers are
/// addresses in shared memory, tensor maps what the host has written.
class HostWarpgroups {
 public:
  int32_t blocks = 1;           // of the grid
  int32_t rank_in_cluster = 0;  // of this block

  virtual uint32_t shared_address(const void* pointer) = 0;
  virtual uint32_t count_global(uint32_t* counter) = 0;
  virtual uint64_t exchange_global_if(uint64_t* to, uint64_t expected, uint64_t desired) = 0;
  virtual uint32_t peek_global(const uint32_t* word) = 0;
  virtual void await_global(const uint32_t* word, uint32_t value) = 0;
  virtual void release_global(uint32_t* word, uint32_t value) = 0;
  virtual void release_count(uint32_t* counter) = 0;
  virtual void store_matrices(void* row, const uint32_t* from, bool transposed) = 0;  // collective
  virtual void set_registers(int32_t count) = 0;                                      // of this lane, from now on

  virtual void init_barrier(void* barrier, int32_t arrivals) = 0;
  virtual void publish_barriers() = 0;
  virtual void arrive(void* barrier, int32_t bytes) = 0;  // with bytes that the phase is to wait for besides
  virtual void arrive_after_copies(void* barrier) = 0;    // once copy_async()'s of this lane have landed
  virtual void wait(void* barrier, uint32_t parity) = 0;
  virtual bool test(void* barrier, uint32_t parity) = 0;                  // true is as good as having waited
  virtual void meet_at(int32_t number, int32_t threads, bool waits) = 0;  // a named barrier
  virtual void arrive_at(void* barrier, int32_t rank) = 0;                // at that of another block of the cluster
  virtual void arrive_at_cluster() = 0;                                   // at the barrier of all its lanes
  virtual void wait_for_cluster() = 0;

  /// `blocks`: a bit for each block of the cluster that gets a copy, to the same place and counted on the same barrier
  /// of its own; 0: this one alone.
  virtual void copy_box(void* to, const void* map, void* landed, const int32_t* at, int32_t rank, uint32_t blocks) = 0;
  virtual void copy_run(void* to, const void* from, int32_t bytes, void* landed) = 0;
  virtual void prefetch_run(const void* from, int32_t bytes) = 0;
  virtual void store_box(const void* map, const void* from, const int32_t* at, int32_t rank) = 0;
  virtual void store_run(float* to, const void* from, int32_t bytes) = 0;
  virtual void add_run(float* to, const void* from, int32_t bytes) = 0;  // floats, until wait_stores() returns
  virtual void commit_stores() = 0;
  /// Until at most so many groups of this lane's stores are yet to be written, or to be read.
  virtual void wait_stores(bool written, int32_t pending) = 0;
  virtual void fence_shared_writes() = 0;

  virtual void fence_products() = 0;  // collective, as are the next three
  virtual void begin_product(const HostProduct& product) = 0;
  virtual void commit_products() = 0;
  virtual void wait_products(int32_t pending) = 0;

 protected:
  ~HostWarpgroups() = default;
};

/// A block under emulation, as its lanes see it: one lane runs at a time, until it must wait for others.
/// Calls marked collective return once every lane of the wave (barrier: of the block) has made them.
class HostBlock {
 public:
  int32_t thread = 0, block = 0;         // of the lane that runs
  HostWarpgroups* warpgroups = nullptr;  // where the kernel asked for them

  virtual void barrier() = 0;                                      // collective
  virtual void wave_sync() = 0;                                    // collective
  virtual bool any(bool value) = 0;                                // collective
  virtual uint32_t shuffle_xor(uint32_t value, int32_t mask) = 0;  // collective

  virtual void load_global(void* to, const void* from, int32_t bytes) = 0;
  virtual void store_global(void* to, const void* from, int32_t bytes) = 0;
  virtual void add_global(float* to, float x) = 0;
  virtual void add_global(float* to, const float (&x)[4]) = 0;
  virtual void load_shared(void* to, const void* from, int32_t bytes) = 0;
  virtual void store_shared(void* to, const void* from, int32_t bytes) = 0;

  virtual void copy_async(void* to, const void* from, bool valid) = 0;  // 16 bytes
  virtual void commit_copies() = 0;
  virtual void wait_copies(int32_t pending) = 0;

  virtual void load_matrices(uint32_t* to, const void* row, bool transposed) = 0;  // collective
  /// Operands, of ElementType `element`, and accumulators are the lane's registers. Collective.
  virtual void multiply(HostMatrix matrix, int32_t element, float* d, const uint32_t* a, const uint32_t* b) = 0;

 protected:
  ~HostBlock() = default;
};

/// What the one function of a compiled stub returns.
struct HostKernel {
  /// `params` is the kernel's own parameter struct.
  void (*run_lane)(HostBlock& block, const void* params, void* shared);
  void (*enter)(HostBlock& block);  // from now on it is this block's lanes that run
  int32_t lanes;                    // of a wave
  int32_t shared_bytes;             // of the block's shared struct, 0 where it is empty
  bool warpgroups;                  // whether its lanes need a HostWarpgroups
};

}  // namespace tilewise::device
