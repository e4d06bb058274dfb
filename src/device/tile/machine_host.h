// The machines of the emulation: what machine_sm80.h and AMD's machine_*.h offer, as calls
// to the emulator that runs the lane. Ops and kernel bodies above them are the device's own.
#pragma once

#include "device/common/float8.h"
#include "device/common/float8_fnuz.h"
#include "device/tile/element.h"
#include "device/tile/host_entry.h"
#include "device/tile/registers.h"

// RDNA's operands are vectors of 32 bytes, which g++ passes otherwise where AVX is on. Whatever passes them is inlined.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace tilewise::device {

/// The emulator of this thread. All lanes of a block run on one thread.
static constinit thread_local HostBlock* host_block = nullptr;

template <int kWaveLanes>
struct HostMachine {
  static constexpr int kLanes = kWaveLanes;

  TILEWISE_INLINE static int thread() { return host_block->thread; }
  TILEWISE_INLINE static int lane() { return host_block->thread % kLanes; }
  TILEWISE_INLINE static int wave() { return host_block->thread / kLanes; }
  TILEWISE_INLINE static int block() { return host_block->block; }
  TILEWISE_INLINE static int not_hoisted(int value) { return value; }
  TILEWISE_INLINE static void barrier() { host_block->barrier(); }
  TILEWISE_INLINE static void memory_barrier() { host_block->barrier(); }
  TILEWISE_INLINE static void wave_sync() { host_block->wave_sync(); }
  TILEWISE_INLINE static bool any(bool value) { return host_block->any(value); }
  TILEWISE_INLINE static float shuffle_xor(float value, int mask) {
    return __builtin_bit_cast(float, host_block->shuffle_xor(__builtin_bit_cast(uint32_t, value), mask));
  }
  TILEWISE_INLINE static uint32_t shuffle_xor(uint32_t value, int mask) { return host_block->shuffle_xor(value, mask); }

  template <class T>
  TILEWISE_INLINE static T load_global(const T* from) {
    T value;
    host_block->load_global(&value, from, sizeof(T));
    return value;
  }
  template <class T>
  TILEWISE_INLINE static void store_global(T* to, T value) {
    host_block->store_global(to, &value, sizeof(T));
  }
  TILEWISE_INLINE static void add_global(float* to, float x) { host_block->add_global(to, x); }
  template <class T>
  TILEWISE_INLINE static T load_shared(const void* from) {
    T value;
    host_block->load_shared(&value, from, sizeof(T));
    return value;
  }
  template <class T>
  TILEWISE_INLINE static void store_shared(void* to, T value) {
    host_block->store_shared(to, &value, sizeof(T));
  }

  TILEWISE_INLINE static float exp2(float x) { return __builtin_exp2f(x); }
  TILEWISE_INLINE static float log2(float x) { return __builtin_log2f(x); }
  TILEWISE_INLINE static float reciprocal(float x) { return 1.0f / x; }

  template <int kElement>
  TILEWISE_INLINE static uint32_t pack(float low, float high) {
    if constexpr (kElement == kBf16) {
      return float_to_bf16(low) | static_cast<uint32_t>(float_to_bf16(high)) << 16;
    } else {
      return float_to_f16(low) | static_cast<uint32_t>(float_to_f16(high)) << 16;
    }
  }
};

/// Stands in for Sm80Machine.
struct HostSm80Machine : HostMachine<32> {
  /// Lane 0's, of all lanes together as on the device: a kernel in which some asked alone hung on an H200.
  TILEWISE_INLINE static int wave() {
    return static_cast<int>(host_block->shuffle_xor(static_cast<uint32_t>(thread() / kLanes), lane()));
  }
  template <int kFirst>
  TILEWISE_INLINE static uint32_t spread_bytes(uint32_t word) {
    const uint32_t two = word >> (8 * kFirst);
    return (two & 0xFFu) << 8 | (two & 0xFF00u) << 16;
  }
  template <int kElement, int kExponent>
  TILEWISE_INLINE static uint32_t scale_pair(uint32_t pair) {
    const auto scaled = [](uint32_t bits) {
      return element_to_float<kElement>(bits) * __builtin_ldexpf(1.0f, kExponent);
    };
    return pack<kElement>(scaled(pair & 0xFFFFu), scaled(pair >> 16));
  }
  template <int kElement>
  TILEWISE_INLINE static uint32_t multiply_pair(uint32_t a, uint32_t b) {
    const auto number = [](uint32_t pair, int half) {
      return element_to_float<kElement>(pair >> (16 * half) & 0xFFFFu);
    };
    return pack<kElement>(number(a, 0) * number(b, 0), number(a, 1) * number(b, 1));
  }
  TILEWISE_INLINE static Chunk load_stream(const void* from) { return load_global(static_cast<const Chunk*>(from)); }
  template <int kElement>
  TILEWISE_INLINE static void unpack_e4m3(uint32_t (&to)[2], uint32_t bytes) {
    const auto element = [bytes](int i) { return e4m3_to_float(static_cast<uint8_t>(bytes >> (8 * i))); };
    to[0] = pack<kElement>(element(0), element(1)), to[1] = pack<kElement>(element(2), element(3));
  }
  TILEWISE_INLINE static uint32_t swap_middle_bytes(uint32_t word) {
    return (word & 0xFF0000FFu) | (word & 0xFF00u) << 8 | (word >> 8 & 0xFF00u);
  }
  using HostMachine<32>::add_global;
  TILEWISE_INLINE static void add_global(float* to, const float (&x)[4]) { host_block->add_global(to, x); }
  TILEWISE_INLINE static void copy_async(void* to, const void* from, bool valid) {
    host_block->copy_async(to, from, valid);
  }
  TILEWISE_INLINE static void commit_copies() { host_block->commit_copies(); }
  template <int kPending>
  TILEWISE_INLINE static void wait_copies() {
    host_block->wait_copies(kPending);
  }
  TILEWISE_INLINE static void load_matrices(uint32_t (&to)[4], const void* row) {
    host_block->load_matrices(to, row, false);
  }
  TILEWISE_INLINE static void load_matrices_transposed(uint32_t (&to)[4], const void* row) {
    host_block->load_matrices(to, row, true);
  }
  template <int kElement>
  TILEWISE_INLINE static void mma(Sm80Accumulator& d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t b[2] = {b0, b1};
    host_block->multiply(HostMatrix::kMmaM16N8K16, kElement, d.value, a, b);
  }
};

/// What AMD's machines add: windows, byte permutes, and the faster rounding of machine_amd.h.
template <int kWaveLanes>
struct HostAmdMachine : HostMachine<kWaveLanes> {
  static constexpr bool kRoundsByAdding = true;
  TILEWISE_INLINE static int uniform(int value) { return value; }

  /// As on the device, each word past the end reads as zeros, `further` not counted.
  struct Window {
    const uint8_t* start;
    uint32_t bytes;
  };
  TILEWISE_INLINE static Window window(const void* start, uint32_t bytes) {
    return {static_cast<const uint8_t*>(start), bytes};
  }
  template <class T>
  TILEWISE_INLINE static T load_window(const Window& from, uint32_t offset, uint32_t further = 0) {
    constexpr int32_t kWord = sizeof(T) < 4 ? sizeof(T) : 4;
    const uint8_t* const start = from.start + further;
    T value{};
    if (static_cast<uint64_t>(offset) + sizeof(T) <= from.bytes) {
      host_block->load_global(&value, start + offset, sizeof(T));
      return value;
    }
    auto* to = reinterpret_cast<uint8_t*>(&value);
    for (uint64_t at = 0; at < sizeof(T) && offset + at + kWord <= from.bytes; at += kWord) {
      host_block->load_global(to + at, start + offset + at, kWord);
    }
    return value;
  }

  template <int kElement>
  TILEWISE_INLINE static uint32_t pack_nearest(float low, float high) {
    if constexpr (kElement == kBf16) {
      return high_halves(__builtin_bit_cast(uint32_t, low) + 0x8000u, __builtin_bit_cast(uint32_t, high) + 0x8000u);
    } else {
      return HostMachine<kWaveLanes>::template pack<kElement>(low, high);
    }
  }
  TILEWISE_INLINE static uint32_t choose_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t chosen = 0;
    for (int i = 0; i < 4; ++i) {
      const uint32_t number = selector >> (8 * i) & 0xFFu;
      if (number < 8) chosen |= (static_cast<uint32_t>(bytes >> (8 * number)) & 0xFFu) << (8 * i);
    }
    return chosen;
  }
  TILEWISE_INLINE static uint32_t low_halves(uint32_t a, uint32_t b) { return choose_bytes(a, b, 0x05040100u); }
  TILEWISE_INLINE static uint32_t high_halves(uint32_t a, uint32_t b) { return choose_bytes(a, b, 0x07060302u); }
};

/// Stands in for CdnaMachine.
struct HostCdnaMachine : HostAmdMachine<64> {
  static constexpr int kDies = 8;
  static constexpr int kStepsAhead = 4, kFewestAhead = 2;
  TILEWISE_INLINE static void copy_window(void* to, const Window& from, uint32_t offset, uint32_t further) {
    const bool is_inside = static_cast<uint64_t>(offset) + sizeof(Chunk) <= from.bytes;
    const uint8_t* const start = is_inside ? from.start + offset + further : from.start;
    host_block->copy_async(static_cast<Chunk*>(to) + lane(), start, is_inside);
    host_block->commit_copies();
  }
  template <int kPending>
  TILEWISE_INLINE static void wait_copies() {
    host_block->wait_copies(kPending);
  }
  /// A load counts as a copy does, which waits on the device don't tell apart.
  template <class T>
  TILEWISE_INLINE static T load_window(const Window& from, uint32_t offset, uint32_t further = 0) {
    host_block->commit_copies();
    return HostAmdMachine<64>::load_window<T>(from, offset, further);
  }
  TILEWISE_INLINE static void unpack_fnuz(float (&to)[4], uint32_t word) {
    for (int i = 0; i < 4; ++i) to[i] = fnuz_to_float(static_cast<uint8_t>(word >> (8 * i)));
  }
  /// Each lane reads what it names, and takes of its column what four lanes have read.
  TILEWISE_INLINE static HalfChunk read_transposed(const void* from) {
    const auto own = load_shared<HalfChunk>(from);
    const int column = lane() % 16;
    HalfChunk to{};
    for (int row = 0; row < 4; ++row) {
      const int other = lane() / 16 * 16 + 4 * row + column / 4;
      const uint32_t words[2] = {shuffle_xor(own.word[0], lane() ^ other), shuffle_xor(own.word[1], lane() ^ other)};
      const uint32_t element = words[column % 4 / 2] >> (16 * (column % 2)) & 0xFFFFu;
      to.word[row / 2] |= element << (16 * (row % 2));
    }
    return to;
  }
  template <int kElement>
  TILEWISE_INLINE static void mma_32x32x16(CdnaAccumulator& d, CdnaOperand a, CdnaOperand b) {
    host_block->multiply(HostMatrix::kMfma32x32x16, kElement, &d[0], reinterpret_cast<const uint32_t*>(&a),
                         reinterpret_cast<const uint32_t*>(&b));
  }
  static constexpr int kByteProducts = 4;
  template <int kPart>
  TILEWISE_INLINE static void mma_bytes(CdnaAccumulator& d, const CdnaBytes& a, const CdnaBytes& b) {
    host_block->multiply(HostMatrix::kMfma32x32x16Fp8, kE4m3, &d[0], reinterpret_cast<const uint32_t*>(&a) + 2 * kPart,
                         reinterpret_cast<const uint32_t*>(&b) + 2 * kPart);
  }
  template <bool kFours>
  TILEWISE_INLINE static void mma_scaled(CdnaAccumulator& d, const CdnaBytes& a, uint32_t a_scale, const CdnaBytes& b,
                                         uint32_t b_scale) {
    struct Scaled {
      CdnaBytes bytes;
      uint32_t scale;
    } const left{a, a_scale}, right{b, b_scale};
    constexpr HostMatrix kMatrix = kFours ? HostMatrix::kMfmaScaled32x32x64Fours : HostMatrix::kMfmaScaled32x32x64;
    host_block->multiply(kMatrix, kE4m3, &d[0], reinterpret_cast<const uint32_t*>(&left),
                         reinterpret_cast<const uint32_t*>(&right));
  }
};

/// Stands in for RdnaMachine.
struct HostRdnaMachine : HostAmdMachine<32> {
  TILEWISE_INLINE static uint32_t swap_halves(uint32_t word) { return host_block->shuffle_xor(word, 16); }
  template <int kElement>
  TILEWISE_INLINE static void mma_16x16x16(RdnaAccumulator& d, const RdnaOperand& a, const RdnaOperand& b) {
    host_block->multiply(HostMatrix::kWmma16x16x16, kElement, &d[0], reinterpret_cast<const uint32_t*>(&a),
                         reinterpret_cast<const uint32_t*>(&b));
  }
};

/// Stand in for Rdna4Machine and Gfx1250Machine.
template <int kSteps_, int kRoomyDims_>
struct HostHalvesMachine : HostAmdMachine<32> {
  static constexpr int kSteps = kSteps_, kRoomyDims = kRoomyDims_;
  template <int kElement>
  TILEWISE_INLINE static void mma_16x16(RdnaAccumulator& d, const Rdna4Steps<kSteps>& a, const Rdna4Steps<kSteps>& b) {
    constexpr HostMatrix kMatrix = kSteps == 1 ? HostMatrix::kWmma16x16x16Halves : HostMatrix::kWmma16x16x32;
    host_block->multiply(kMatrix, kElement, &d[0], reinterpret_cast<const uint32_t*>(&a),
                         reinterpret_cast<const uint32_t*>(&b));
  }
};
struct HostRdna4Machine : HostHalvesMachine<1, 192> {};
struct HostGfx1250Machine : HostHalvesMachine<2, 1024> {
  static constexpr bool kSparesScalars = true;
};

/// The entry of a stub, which runs one lane of a kernel.
template <class Kernel, class Machine>
const HostKernel* host_kernel() {
  using Params = typename Kernel::Params;
  using Shared = typename Kernel::Shared;
  static constexpr HostKernel kKernel{[](HostBlock& block, const void* params, void* shared) {
                                        host_block = &block;
                                        Kernel::run(*static_cast<const Params*>(params), *static_cast<Shared*>(shared));
                                      },
                                      [](HostBlock& block) { host_block = &block; }, Machine::kLanes,
                                      __is_empty(Shared) ? 0 : static_cast<int32_t>(sizeof(Shared)),
                                      requires { Machine::kWarpgroups; }};
  return &kKernel;
}

}  // namespace tilewise::device
