// V in fp8 on its way to the matrix unit, whose operands in fp8 are K-major: three warps turn
// tiles [key, dim] into [dim, key]. Keys change their order within each 32, to the one in which a lane holds its
// weights, so that weights are an operand as they are rounded.
#pragma once

#include "device/hopper/forward_work.h"

namespace tilewise::device {

template <class Machine, auto C>
class ValueTransposer {
  using Shared = HopperForwardShared<Machine, C>;
  static constexpr int kKeys = 32, kDims = 16;  // of a block: what a lane's four matrices of 8 x 16 bytes hold
  static constexpr int kParts = C.block_n / kKeys, kAllDims = C.head_dim_v / kDims;
  /// Blocks that are loaded before one is stored. Beside matrix products a load takes some 250 cycles: one or two at a
  /// time, what has 256 columns takes 7 to 10% longer.
  static constexpr int kTogether = minimum(kParts, 4);

 public:
  /// index: which of the warps.
  TILEWISE_INLINE ValueTransposer(const ForwardParamsOf<C>& params, Shared& shared, int32_t index)
      : p_(params), shared_(shared), index_(index) {
    const int32_t lane = Machine::lane(), row = lane % 8, matrix = lane / 8;
    // Of 16 dims the lanes of a quarter hold two each, an even and an odd one. Those of the upper half store the odd
    // one first, lest rows of a matrix that share a swizzle meet in a bank.
    const bool upper = lane / 4 >= 4;
    first_bytes_ = upper ? 0x7531u : 0x6420u;
    second_bytes_ = upper ? 0x6420u : 0x7531u;
    stored_dim_ = 2 * row + ((matrix % 2 == 1) != (row >= 4) ? 1 : 0);
    stored_piece_ = matrix / 2;
  }

  TILEWISE_INLINE void run() {
    RingPlace<kRawStages> raw;
    RingPlace<C.stages> values;
    RingPlace<kWorkStages> works;
    for (;;) {
      const WorkTile work = take_work<Machine>(shared_, works);
      if (work.tile == WorkTile::kNoMore) break;
      for_each_key_tile<Machine, C, true>(p_, work, [&](int32_t tile, int32_t) {
        const int32_t used = work.seqlen_k - tile * C.block_n;
        raw.wait_full(shared_.raw_ring);
        values.wait_empty(shared_.value_ring);
        auto& from = shared_.raw_values[raw.stage];
        auto& to = shared_.values[values.stage];
        if (!C.lengths || used >= C.block_n) {
          transpose<false>(from, to, 0);
        } else {
          transpose<true>(from, to, used);
        }
        Machine::fence_shared_writes();
        Machine::wave_sync();
        if (Machine::lane() == 0) {
          shared_.raw_ring.empty[raw.stage].arrive();
          shared_.value_ring.full[values.stage].arrive();
        }
        raw.advance(), values.advance();
      });
    }
  }

 private:
  /// kEnds: keys from `used` on belong to nobody. Their weights are 0, but 0 times what lies there need not be.
  template <bool kEnds>
  TILEWISE_INLINE void transpose(typename Shared::RawTile& from, typename Shared::ValueTile& to, int32_t used) const {
    TILEWISE_NO_UNROLL
    for (int32_t dims = index_; dims < kAllDims; dims += Shared::kTransposers) {
      TILEWISE_UNROLL
      for (int first = 0; first < kParts; first += kTogether) {
        uint32_t word[kTogether][4];
        TILEWISE_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          if (first + i >= kParts) continue;
          Machine::load_matrices_transposed(word[i], from.piece((first + i) * kKeys + Machine::lane(), dims));
        }
        TILEWISE_UNROLL
        for (int i = 0; i < kTogether; ++i) {
          if (first + i < kParts) store_block<kEnds>(word[i], to, dims, first + i, used);
        }
      }
    }
  }

  /// 32 keys of 16 dims, in the order in which lanes hold their weights.
  template <bool kEnds>
  TILEWISE_INLINE void store_block(const uint32_t (&word)[4], typename Shared::ValueTile& to, int32_t dims, int part,
                                   int32_t used) const {
    uint32_t stored[4];
    TILEWISE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const uint32_t low = word[2 * half], high = word[2 * half + 1];
      const uint32_t kept = kEnds ? kept_bytes(used - part * kKeys - 16 * half) : ~0u;
      stored[2 * half] = Machine::permute_bytes(low, high, first_bytes_) & kept;
      stored[2 * half + 1] = Machine::permute_bytes(low, high, second_bytes_) & kept;
    }
    Machine::store_matrices(to.piece(dims * kDims + stored_dim_, 2 * part + stored_piece_), stored);
  }

  /// A lane's four keys of 16 are 2t, 2t + 1, 2t + 8 and 2t + 9: those below `count`.
  TILEWISE_INLINE static uint32_t kept_bytes(int32_t count) {
    const int32_t first = 2 * (Machine::lane() % 4);
    return (first < count ? 0xFFu : 0u) | (first + 1 < count ? 0xFF00u : 0u) | (first + 8 < count ? 0xFF0000u : 0u) |
           (first + 9 < count ? 0xFF000000u : 0u);
  }

  const ForwardParamsOf<C>& p_;
  Shared& shared_;
  int32_t index_, stored_dim_, stored_piece_;
  uint32_t first_bytes_, second_bytes_;
};

}  // namespace tilewise::device
