// Pairs (token, slot) by expert, in the order of pairs within each. A block has a chunk of the pairs, whose experts it
// keeps in shared memory, and every thread walks all of them for the experts that are its own. Two launches of several
// chunks: the first one counts each chunk's pairs of each expert, the second one places them. One chunk takes the
// second launch alone.
#pragma once

#include "device/moe/config.h"
#include "device/moe/ids.h"
#include "device/moe/params.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class ExpertSort {
  using Machine = typename Ops::Machine;
  static constexpr int kThreads = C.waves * Machine::kLanes, kOwn = ceil_div(C.experts, kThreads);
  static constexpr int32_t kPastEnd = -2;

 public:
  using Params = ExpertSortParams;
  struct Shared {
    Chunk experts[ExpertSortConfig::kChunk / 4];  // of the chunk's pairs
    Chunk totals[C.experts / 4];                  // pairs of each expert, of all chunks
  };

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const int32_t first_pair = Machine::block() * ExpertSortConfig::kChunk;
    const int32_t pairs = minimum(p.shape.pairs() - first_pair, ExpertSortConfig::kChunk);
    keep_experts(p, shared, first_pair, pairs);
    Machine::barrier();
    int32_t next[kOwn];
    for_own([&](int i, int32_t expert) {
      int32_t count = 0;
      if (C.counts || p.chunks == 1) for_pairs(shared, pairs, expert, [&](int32_t) { ++count; });
      next[i] = count;
    });
    if constexpr (C.counts) {
      for_own([&](int i, int32_t expert) {
        if (expert < p.shape.num_experts) Machine::store_global(count_of(p, Machine::block(), expert), next[i]);
      });
    } else {
      find_places(p, shared, next);
      for_own([&](int i, int32_t expert) {
        for_pairs(shared, pairs, expert, [&](int32_t at) { place(p, first_pair + at, next[i]++); });
      });
    }
  }

 private:
  /// visit(i, expert) for the experts of a thread, neighbours of its neighbours'. Some may be none.
  template <class Visit>
  TILEWISE_INLINE static void for_own(const Visit& visit) {
    TILEWISE_UNROLL
    for (int i = 0; i < kOwn; ++i) visit(i, i * kThreads + Machine::thread());
  }

  TILEWISE_INLINE static void keep_experts(const Params& p, Shared& shared, int32_t first_pair, int32_t pairs) {
    for (int32_t i = Machine::thread(); i < ceil_div(pairs, 4); i += kThreads) {
      Chunk experts;
      TILEWISE_UNROLL
      for (int j = 0; j < 4; ++j) {
        int32_t expert = kPastEnd;
        if (4 * i + j < pairs) {
          const int32_t pair = first_pair + 4 * i + j, token = pair / p.shape.top_k;
          expert = load_expert<Machine>(p.shape, p.topk_ids, token, pair - token * p.shape.top_k);
          if (!C.counts && expert == kNobody) Machine::store_global(p.routed.rows + pair, kNobody);
        }
        experts.word[j] = static_cast<uint32_t>(expert);
      }
      Machine::store_shared(&shared.experts[i], experts);
    }
  }

  /// visit(place in the chunk) for each pair of an expert.
  template <class Visit>
  TILEWISE_INLINE static void for_pairs(const Shared& shared, int32_t pairs, int32_t expert, const Visit& visit) {
    TILEWISE_NO_UNROLL
    for (int32_t i = 0; i < ceil_div(pairs, 4); ++i) {
      const Chunk four = Machine::template load_shared<Chunk>(&shared.experts[i]);
      TILEWISE_UNROLL
      for (int j = 0; j < 4; ++j) {
        if (four.word[j] == static_cast<uint32_t>(expert)) visit(4 * i + j);
      }
    }
  }

  TILEWISE_INLINE static int32_t* count_of(const Params& p, int32_t chunk, int32_t expert) {
    return p.counts + int64_t{chunk} * p.shape.num_experts + expert;
  }

  /// From counts of a single chunk, or those of the first launch, to where each expert's first pair of this chunk goes.
  TILEWISE_INLINE static void find_places(const Params& p, Shared& shared, int32_t (&next)[kOwn]) {
    auto* const totals = reinterpret_cast<int32_t*>(shared.totals);
    for_own([&](int i, int32_t expert) {
      int32_t total = next[i], before = 0;
      for (int32_t chunk = 0; p.chunks > 1 && expert < p.shape.num_experts && chunk < p.chunks; ++chunk) {
        const int32_t count = Machine::load_global(count_of(p, chunk, expert));
        total += count;
        if (chunk < Machine::block()) before += count;
      }
      if (expert < C.experts) Machine::store_shared(totals + expert, total);
      next[i] = before;
    });
    Machine::barrier();
    int32_t offset[kOwn] = {}, all = 0;
    TILEWISE_NO_UNROLL
    for (int32_t e = 0; e < p.shape.num_experts; ++e) {
      const int32_t total = Machine::template load_shared<int32_t>(totals + e);
      for_own([&](int i, int32_t expert) { offset[i] += e < expert ? total : 0; });
      all += total;
    }
    for_own([&](int i, int32_t expert) {
      next[i] += offset[i];
      if (Machine::block() != 0 || expert >= p.shape.num_experts) return;
      Machine::store_global(p.routed.offsets + expert, offset[i]);
      if (expert == 0) Machine::store_global(p.routed.offsets + p.shape.num_experts, all);
    });
  }

  TILEWISE_INLINE static void place(const Params& p, int32_t pair, int32_t row) {
    Machine::store_global(p.routed.rows + pair, row);
    Machine::store_global(p.routed.tokens + row, pair / p.shape.top_k);
    Machine::store_global(p.routed.weights + row, load_weight<Machine>(p.shape, p.topk_weights, pair));
  }
};

}  // namespace tilewise::device
