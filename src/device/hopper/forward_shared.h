// Shared memory of the forward kernel, and what its warps tell each other through it.
#pragma once

#include "device/common/philox.h"
#include "device/hopper/config.h"
#include "device/sm90/mbarrier.h"
#include "device/sm90/swizzled_tile.h"

namespace tilewise::device {

/// A tile of queries to work on, as the producer hands it out.
template <class Number>
struct alignas(16) WorkTileOf {
  static constexpr int32_t kNoMore = -1;
  Number tile, head, batch;          // tile kNoMore: the end. head: a key head where heads are packed
  Number begin, end;                 // tiles of keys, at least one
  Number part;                       // which of the parts of the keys these are
  Number q_row, k_row, leftpad;      // where the used part starts, in rows of the tensors
  Number seqlen_q, seqlen_k, all_q;  // used queries and keys, queries in memory
  Number diagonal;                   // query i stands at key i + diagonal
  Number k_batch;                    // entry of k and v, or row of the block table, that has its keys
  Number first_key;                  // none before it is seen; of listed tiles where the second entry stands
  Number first_entry;                // of listed tiles
};
using WorkTile = WorkTileOf<int32_t>;
/// One that lies in shared memory.
template <class Machine>
using SharedWork = WorkTileOf<typename Machine::SharedNumber>;

inline constexpr int kWorkStages = 4;

inline constexpr int kRawStages = 2;

/// V in fp8 as it comes. The matrix unit wants K-major operands, so that warps transpose it.
template <auto C, bool kTransposed>
struct RawValues {
  using RawTile = SwizzledTile<C.block_n, C.head_dim_v, 1>;
  RawTile raw_values[kRawStages];
};
template <auto C>
struct RawValues<C, false> {};

/// A bias that comes in boxes: each warpgroup's own rows of it, beside each stage of K.
template <auto C, bool kInBoxes>
struct BiasStages {
  using BiasTile = SwizzledTile<C.kRows, C.block_n, bias_bytes(C), C.bias_row_bytes()>;
  BiasTile bias[C.stages][C.consumers()];
};
template <auto C>
struct BiasStages<C, false> {};

/// What draws of dropout have in common, beside each stage of K: of every 32 keys and a pair in 8 of them.
template <auto C>
struct DrawStages {
  DropoutColumn columns[C.stages][C.block_n / 8];
};

/// In a cluster, both blocks' stages of K and V are refilled together, half of the keys by each block. So a stage is
/// empty once the readers of both have handed it back, and full once both halves have landed.
template <class Machine, auto C>
struct HopperForwardShared : RawValues<C, C.fp8()>, BiasStages<C, C.bias_boxes != 0> {
  static constexpr int kTransposers = C.fp8() ? 3 : 0;            // warps
  static constexpr int kValueWarps = C.fp8() ? kTransposers : 1;  // who leave V as it is multiplied
  static constexpr int kKeyBringers = C.page_size == 0 ? 0 : 1;   // of pages; contiguous keys take a thread
  static constexpr int kDrawBringers = C.shares_draws() ? 1 : 0;

  /// Whether Q's place takes O on its way out; TMA hands it back then, by one thread of the warpgroup.
  static constexpr bool kStagesOut = C.q_stages > 1;
  static_assert(!C.split || !kStagesOut, "parts are stored from registers");

  static constexpr int kQueryColumns = C.head_dim * C.element_bytes() / 2;  // of 16 bits
  static constexpr int kColumns = kStagesOut && C.head_dim_v > kQueryColumns ? C.head_dim_v : kQueryColumns;
  using RowTile = SwizzledTile<C.kRows, kColumns>;  // of one warpgroup: Q, and later its rows of O
  using QueryTile = SwizzledTile<C.kRows, C.head_dim, C.element_bytes()>;
  using KeyTile = SwizzledTile<C.block_n, C.head_dim, C.element_bytes()>;
  using ValueTile = Choose<C.fp8(), SwizzledTile<C.head_dim_v, C.block_n, 1>, SwizzledTile<C.block_n, C.head_dim_v>>;

  RowTile rows[C.q_stages][C.consumers()];
  KeyTile keys[C.stages];
  ValueTile values[C.stages];
  Choose<C.shares_draws(), DrawStages<C>, NoShared> draws;
  SharedWork<Machine> work[kWorkStages];
  Ring<Machine, C.q_stages> row_rings[C.consumers()];  // one for each warpgroup
  Ring<Machine, C.stages> key_ring, value_ring;
  Ring<Machine, kRawStages> raw_ring;
  Ring<Machine, kWorkStages> work_ring;
  Barrier<Machine> last_values;  // the last tile of a sequence has landed, and its end is to be cleared

  /// By one thread, before any other looks at them.
  TILEWISE_INLINE void init_barriers() {
    constexpr int32_t kWarps = 4 * C.consumers(), kReaders = kWarps * C.blocks_of_cluster();
    for (auto& ring : row_rings) ring.init(1, kStagesOut ? 1 : 4);
    key_ring.init(1 + kDrawBringers * kWarpArrivals, C.shares_draws() ? kReaders * kWarpArrivals : kReaders);
    value_ring.init(kValueWarps, kReaders);
    work_ring.init(1, kWarps + kValueWarps + kKeyBringers + kDrawBringers);
    if constexpr (C.fp8()) raw_ring.init(1, kTransposers);
    last_values.init(1);
    Machine::publish_barriers();
  }
};

/// By a warp: the next tile of queries to work on, as far as values go, read and handed back. Number by number: all at
/// once would take 16 of the 24 registers that these warps have at head_dim 256.
template <class Machine, class Shared>
TILEWISE_INLINE WorkTile take_work(Shared& shared, RingPlace<kWorkStages>& place) {
  place.wait_full(shared.work_ring);
  const SharedWork<Machine>& slot = shared.work[place.stage];
  WorkTile work{};
  work.tile = slot.tile, work.head = slot.head, work.batch = slot.batch, work.k_batch = slot.k_batch;
  work.begin = slot.begin, work.end = slot.end;
  work.k_row = slot.k_row, work.seqlen_k = slot.seqlen_k, work.first_key = slot.first_key;
  work.first_entry = slot.first_entry;
  Machine::wave_sync();
  if (Machine::thread() % 32 == 0) shared.work_ring.empty[place.stage].arrive();
  place.advance();
  return work;
}

/// Hardware barriers by number; 0 is the block's.
enum NamedBarrier : int { kTurn = 1, kWarpgroup = 5 };  // of warpgroup i: kTurn + i, kWarpgroup + i

}  // namespace tilewise::device
