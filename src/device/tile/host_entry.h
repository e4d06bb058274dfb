// What an emulated kernel and its emulator know of each other: the calls a lane makes, and the entry
// that starts one. The kernel is compiled for the host at run time, the emulator is in the library.
#pragma once

#include "device/common/tensors.h"

namespace tilewise::device {

/// Matrix instructions, each with its own register layout. K of MFMA is 16: one instruction on
/// gfx950, two on older ones.
enum class HostMatrix : int32_t { kMmaM16N8K16, kMfma32x32x16, kWmma16x16x16 };

/// A block under emulation, as its lanes see it: one lane runs at a time, until it must wait for others.
/// Calls marked collective return once every lane of the wave (barrier: of the block) has made them.
class HostBlock {
 public:
  int32_t thread = 0, block = 0;  // of the lane that runs

  virtual void barrier() = 0;                                      // collective
  virtual void wave_sync() = 0;                                    // collective
  virtual bool any(bool value) = 0;                                // collective
  virtual uint32_t shuffle_xor(uint32_t value, int32_t mask) = 0;  // collective

  virtual void load_global(void* to, const void* from, int32_t bytes) = 0;
  virtual void store_global(void* to, const void* from, int32_t bytes) = 0;
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
  int32_t lanes;         // of a wave
  int32_t shared_bytes;  // of the block's shared struct, 0 where it is empty
};

}  // namespace tilewise::device
