// What mask_mod leaves of a tile of queries and keys: by its bounds there, and where these leave it open asked score by
// score.
#pragma once

#include "device/attention/config.h"
#include "device/attention/params.h"
#include "device/attention/score_bounds.h"
#include "device/tile/platform.h"

namespace tilewise::device {

/// Queries, by their q_idx, or keys.
struct TileSide {
  int32_t begin, end;
};
TILEWISE_INLINE TileSide side_of(int32_t tile, int32_t size, int64_t all) {
  return {tile * size, minimum((tile + 1) * size, static_cast<int32_t>(all))};
}

template <class Machine, class Functions>
class TileClassifier {
 public:
  /// Lanes take keys side by side, each its own with one query after the other, so that what depends on one of both is
  /// computed once for several scores. A tile of which some is seen and some is not needs no further look.
  TILEWISE_INLINE static TileClass class_of(const ScoreTable (&tables)[kMostTables], int32_t batch,
                                            const TileSide& queries, const TileSide& keys) {
    if (queries.begin >= queries.end || keys.begin >= keys.end) return kTileHidden;
    if constexpr (Functions::kBounded) {
      const Bounds seen = Functions::template sees_within<Machine>(tables, Bounds{batch, batch}, Bounds{0, 0},
                                                                   Bounds{queries.begin, queries.end - 1},
                                                                   Bounds{keys.begin, keys.end - 1});
      if (seen.low == 1) return kTileSeen;
      if (seen.high == 0) return kTileHidden;
    }
    const auto sees = [&](int32_t query, int32_t key) {
      return Functions::template sees<Machine>(tables, batch, 0, query, key);
    };
    Count seen{};
    TILEWISE_NO_UNROLL
    for (int32_t first_key = keys.begin; first_key < keys.end; first_key += Machine::kLanes) {
      const int32_t key = minimum(first_key + Machine::lane(), keys.end - 1);
      int32_t query = queries.begin;
      TILEWISE_NO_UNROLL
      for (; query + kQueries <= queries.end; query += kQueries) {
        TILEWISE_UNROLL
        for (int32_t i = 0; i < kQueries; ++i) seen.add(sees(query + i, key));
        if (seen.is_mixed()) return kTileMixed;
      }
      TILEWISE_NO_UNROLL
      for (; query < queries.end; ++query) seen.add(sees(query, key));
      if (seen.is_mixed()) return kTileMixed;
    }
    return seen.any() ? kTileSeen : kTileHidden;
  }

 private:
  static constexpr int32_t kQueries = 8;  // between two looks

  /// Of a lane's scores. Numbers, since a chain of predicates would wait for each of them.
  struct Count {
    int32_t seen = 0, all = 0;
    TILEWISE_INLINE void add(bool is_seen) { seen += is_seen ? 1 : 0, ++all; }
    TILEWISE_INLINE bool any() const { return Machine::any(seen != 0); }
    TILEWISE_INLINE bool is_mixed() const { return any() && Machine::any(seen != all); }
  };
};

}  // namespace tilewise::device
