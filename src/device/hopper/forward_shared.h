// Shared memory of the forward kernel, and what its warps tell each other through it.
#pragma once

#include "device/hopper/config.h"
#include "device/hopper/mbarrier.h"

namespace tilewise::device {

inline constexpr int kChunkColumns = 64, kChunkRowBytes = 128;

/// Rows x Cols 16-bit elements as the copy engine leaves them and the matrix unit reads them: chunks of 64 columns,
/// each row of a chunk 128 bytes, whose 16-byte pieces are permuted by the row.
template <int Rows, int Cols>
struct alignas(1024) SwizzledTile {
  static constexpr int kChunks = (Cols + kChunkColumns - 1) / kChunkColumns;
  static constexpr int kChunkBytes = Rows * kChunkRowBytes, kBytes = kChunks * kChunkBytes;
  static_assert(Rows % 8 == 0, "a swizzled pattern is 8 rows");
  uint8_t bytes[kBytes];

  TILEWISE_INLINE uint8_t* chunk(int index) { return bytes + index * kChunkBytes; }
  /// 8 elements of a row, `piece` counted over all chunks.
  TILEWISE_INLINE uint8_t* piece(int row, int piece) {
    return chunk(piece / 8) + row * kChunkRowBytes + ((piece % 8 ^ row % 8) << 4);
  }
};

/// A tile of queries to work on, as the producer hands it out.
template <class Number>
struct WorkTileOf {
  static constexpr int32_t kNoMore = -1;
  Number tile, head, batch;          // tile kNoMore: the end. head: a key head where heads are packed
  Number begin, end;                 // tiles of keys, at least one
  Number q_row, k_row, leftpad;      // where the used part starts, in rows of the tensors
  Number seqlen_q, seqlen_k, all_q;  // used queries and keys, queries in memory
  Number diagonal;                   // query i stands at key i + diagonal
};
using WorkTile = WorkTileOf<int32_t>;
/// One that lies in shared memory.
template <class Machine>
using SharedWork = WorkTileOf<typename Machine::SharedNumber>;

inline constexpr int kWorkStages = 4;

template <class Machine, HopperForwardConfig C>
struct HopperForwardShared {
  static constexpr int kColumns = C.head_dim > C.head_dim_v ? C.head_dim : C.head_dim_v;
  using RowTile = SwizzledTile<C.kRows, kColumns>;  // of one warpgroup: Q, and later its rows of O
  using KeyTile = SwizzledTile<C.block_n, C.head_dim>;
  using ValueTile = SwizzledTile<C.block_n, C.head_dim_v>;

  RowTile rows[C.q_stages][C.consumers()];
  KeyTile keys[C.stages];
  ValueTile values[C.stages];
  SharedWork<Machine> work[kWorkStages];
  Ring<Machine, C.q_stages> row_rings[C.consumers()];  // one for each warpgroup
  Ring<Machine, C.stages> key_ring, value_ring;
  Ring<Machine, kWorkStages> work_ring;
  Barrier<Machine> last_values;  // the last tile of a sequence has landed, and its end is to be cleared

  /// Whether Q's place takes O on its way out; the copy engine hands it back then, by one thread of the warpgroup.
  static constexpr bool kStagesOut = C.q_stages > 1;

  /// By one thread, before any other looks at them.
  TILEWISE_INLINE void init_barriers() {
    constexpr int32_t kWarps = 4 * C.consumers();
    for (auto& ring : row_rings) ring.init(1, kStagesOut ? 1 : 4);
    key_ring.init(1, kWarps);
    value_ring.init(1, kWarps);
    work_ring.init(1, kWarps + 1);  // and the warp that brings values
    last_values.init(1);
    Machine::publish_barriers();
  }
};

/// Hardware barriers by number; 0 is the block's.
enum NamedBarrier : int { kTurn = 1, kWarpgroup = 5 };  // of warpgroup i: kTurn + i, kWarpgroup + i

}  // namespace tilewise::device
