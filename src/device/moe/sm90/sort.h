// Pairs (token, slot) by expert, in the order of pairs within each: counts of each warp's share of the ids, then
// places. A block does a few experts and reads all ids, so that one launch is enough and no block waits for another:
// 131,072 ids of 128 experts are 16 MB from L2 each of two times.
#pragma once

#include "device/moe/sm90/config.h"
#include "device/moe/sm90/pairs.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeSortConfig C>
class Sm90MoeSort {
  using Machine = typename Ops::Machine;
  static constexpr int kExperts = MoeSortConfig::kExperts, kAtOnce = 4;
  static_assert(kExperts == 4 && C.warps <= Machine::kLanes);

 public:
  using Params = MoeSortParams;
  struct Shared {
    Chunk counts[C.warps], below[C.warps];  // of each warp's ids: of this block's experts; of lower ones
  };

  TILEWISE_INLINE static void run(const MoeSortParams& p, Shared& shared) {
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    const int32_t share = ceil_div(ceil_div(p.shape.pairs(), C.warps), 32 * kAtOnce) * (32 * kAtOnce);
    const int32_t begin = minimum(p.shape.pairs(), Machine::wave() * share);
    const int32_t end = minimum(p.shape.pairs(), begin + share);
    const int32_t first = Machine::block() * kExperts;
    count(p, shared, first, begin, end);
    Machine::barrier();
    Places places(shared, first, p);
    place(p, places, first, begin, end);
  }

 private:
  /// visit(pairs, their experts) for kAtOnce pairs of a lane at a time: 32 adjacent ones of a warp each.
  template <class Visit>
  TILEWISE_INLINE static void for_pairs(const MoeSortParams& p, int32_t begin, int32_t end, const Visit& visit) {
    const bool dense = p.topk_ids.slot_stride == 1 && p.topk_ids.token_stride == p.shape.top_k;
    TILEWISE_NO_UNROLL
    for (int32_t at = begin; at < end; at += 32 * kAtOnce) {
      int32_t pair[kAtOnce], expert[kAtOnce];
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        pair[i] = at + 32 * i + Machine::lane();
        // Of dense ids a division less, which would take most of the time.
        const int32_t token = dense ? 0 : pair[i] / p.shape.top_k;
        expert[i] = kPastEnd;
        if (pair[i] < end)
          expert[i] = load_expert<Machine>(p.shape, p.topk_ids, token, pair[i] - token * p.shape.top_k);
      }
      visit(pair, expert);
    }
  }

  TILEWISE_INLINE static void count(const MoeSortParams& p, Shared& shared, int32_t first, int32_t begin, int32_t end) {
    int32_t counts[kExperts] = {}, below = 0;
    for_pairs(p, begin, end, [&](const int32_t (&)[kAtOnce], const int32_t (&expert)[kAtOnce]) TILEWISE_INLINE_LAMBDA {
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        TILEWISE_UNROLL
        for (int e = 0; e < kExperts; ++e) counts[e] += expert[i] == first + e;
        below += expert[i] >= 0 && expert[i] < first;
      }
    });
    Chunk sums;
    TILEWISE_UNROLL
    for (int e = 0; e < kExperts; ++e) sums.word[e] = static_cast<uint32_t>(sum_of_wave<Machine>(counts[e]));
    const Chunk all_below{{static_cast<uint32_t>(sum_of_wave<Machine>(below)), 0, 0, 0}};
    const int wave = Machine::wave();
    if (Machine::lane() == 0) {
      Machine::store_shared(&shared.counts[wave], sums), Machine::store_shared(&shared.below[wave], all_below);
    }
  }

  /// Where this warp's next pair of each expert goes.
  struct Places {
    int32_t next[kExperts];

    TILEWISE_INLINE Places(const Shared& shared, int32_t first, const MoeSortParams& p) {
      const int lane = Machine::lane(), wave = Machine::wave();
      Chunk counts{}, below{};
      if (lane < C.warps) {
        counts = Machine::template load_shared<Chunk>(&shared.counts[lane]);
        below = Machine::template load_shared<Chunk>(&shared.below[lane]);
      }
      int32_t offset = sum_of_wave<Machine>(static_cast<int32_t>(below.word[0]));
      TILEWISE_UNROLL
      for (int e = 0; e < kExperts; ++e) {
        const auto count = static_cast<int32_t>(counts.word[e]);
        if (Machine::thread() == 0 && first + e < p.shape.num_experts) {
          Machine::store_global(p.sorted.offsets + first + e, offset);
        }
        next[e] = offset + sum_of_wave<Machine>(lane < wave ? count : 0);
        offset += sum_of_wave<Machine>(count);
        if (Machine::thread() == 0 && first + e == p.shape.num_experts - 1) {
          Machine::store_global(p.sorted.offsets + p.shape.num_experts, offset);
        }
      }
    }
  };

  TILEWISE_INLINE static void place(const MoeSortParams& p, Places& places, int32_t first, int32_t begin, int32_t end) {
    const uint32_t lanes_before = (1u << Machine::lane()) - 1;
    for_pairs(p, begin, end,
              [&](const int32_t (&pair)[kAtOnce], const int32_t (&expert)[kAtOnce]) TILEWISE_INLINE_LAMBDA {
                TILEWISE_UNROLL
                for (int i = 0; i < kAtOnce; ++i) {
                  TILEWISE_UNROLL
                  for (int e = 0; e < kExperts; ++e) {
                    const bool own = expert[i] == first + e;
                    const uint32_t lanes = Machine::lanes_where(own);
                    if (own) {
                      const int32_t row = places.next[e] + popcount(lanes & lanes_before);
                      Machine::store_global(p.sorted.pairs + row, pair[i]);
                      Machine::store_global(p.sorted.rows + pair[i], row);
                    }
                    places.next[e] += popcount(lanes);
                  }
                  if (first == 0 && expert[i] == kNobody) Machine::store_global(p.sorted.rows + pair[i], kNobody);
                }
              });
  }

  static constexpr int32_t kPastEnd = -2;
};

}  // namespace tilewise::device
