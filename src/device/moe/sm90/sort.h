// Pairs (token, slot) by expert, in the order of pairs within each. A block has a chunk of the pairs, whose experts it
// keeps in shared memory, and each of its warps a few experts. Two launches of several chunks: the first one counts
// each chunk's pairs of each expert, the second one places them. One chunk takes the second launch alone.
#pragma once

#include "device/moe/sm90/config.h"
#include "device/moe/sm90/pairs.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeSortConfig C>
class Sm90MoeSort {
  using Machine = typename Ops::Machine;
  static constexpr int kOwn = C.own_experts, kAtOnce = 4;
  static_assert(C.warps <= Machine::kLanes && MoeSortConfig::kChunk % (32 * kAtOnce) == 0);
  static constexpr int32_t kPastEnd = -2;

 public:
  using Params = MoeSortParams;
  struct Shared {
    Chunk experts[MoeSortConfig::kChunk / 4];  // of the chunk's pairs
    Chunk totals[C.warps];                     // the first word: pairs of a warp's experts, of all chunks
  };

  TILEWISE_INLINE static void run(const MoeSortParams& p, Shared& shared) {
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    keep_experts(p, shared);
    Machine::barrier();
    const int32_t first = Machine::wave() * kOwn;
    ExpertCounts counts{};
    if (C.counts || p.chunks == 1) counts = count(shared, first);
    if constexpr (C.counts) {
      if (Machine::lane() == 0) {
        TILEWISE_UNROLL
        for (int i = 0; i < kOwn / 4; ++i) {
          Machine::store_global(counts_of(p, Machine::block(), first) + i, counts.four(i));
        }
      }
    } else {
      ExpertCounts next = find_places(p, shared, first, counts);
      place(p, shared, first, next);
    }
  }

 private:
  /// The experts of four adjacent pairs a thread.
  TILEWISE_INLINE static void keep_experts(const MoeSortParams& p, Shared& shared) {
    const bool dense = p.topk_ids.slot_stride == 1 && p.topk_ids.token_stride == p.shape.top_k;
    for (int32_t i = Machine::thread(); i < MoeSortConfig::kChunk / 4; i += 32 * C.warps) {
      Chunk experts;
      TILEWISE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int32_t pair = Machine::block() * MoeSortConfig::kChunk + 4 * i + j;
        const int32_t token = dense ? 0 : pair / p.shape.top_k;  // a division less
        int32_t expert = kPastEnd;
        if (pair < p.shape.pairs()) {
          expert = load_expert<Machine>(p.shape, p.topk_ids, token, pair - token * p.shape.top_k);
          if (!C.counts && expert == kNobody) Machine::store_global(p.sorted.rows + pair, kNobody);
        }
        experts.word[j] = static_cast<uint32_t>(expert);
      }
      Machine::store_shared(&shared.experts[i], experts);
    }
  }
  /// visit(the pair's place in the chunk, its expert) for kAtOnce pairs of a lane at a time: 32 adjacent ones each.
  template <class Visit>
  TILEWISE_INLINE static void for_pairs(const Shared& shared, const Visit& visit) {
    const auto* const experts = reinterpret_cast<const int32_t*>(shared.experts);
    TILEWISE_NO_UNROLL
    for (int32_t at = Machine::lane(); at < MoeSortConfig::kChunk; at += 32 * kAtOnce) {
      int32_t expert[kAtOnce];
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) expert[i] = Machine::template load_shared<int32_t>(experts + at + 32 * i);
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) visit(at + 32 * i, expert[i]);
    }
  }

  /// A number for each of a warp's experts.
  struct ExpertCounts {
    int32_t value[kOwn];
    TILEWISE_INLINE Chunk four(int i) const {
      const auto word = [&](int j) { return static_cast<uint32_t>(value[4 * i + j]); };
      return {{word(0), word(1), word(2), word(3)}};
    }
  };
  /// Of a chunk, from this expert on; 16 bytes hold those of four.
  TILEWISE_INLINE static Chunk* counts_of(const MoeSortParams& p, int32_t chunk, int32_t first) {
    return reinterpret_cast<Chunk*>(p.counts + int64_t{chunk} * C.most_experts() + first);
  }

  TILEWISE_INLINE static ExpertCounts count(const Shared& shared, int32_t first) {
    ExpertCounts counts{};
    for_pairs(shared, [&](int32_t, int32_t expert) TILEWISE_INLINE_LAMBDA {
      TILEWISE_UNROLL
      for (int e = 0; e < kOwn; ++e) counts.value[e] += expert == first + e;
    });
    for (int32_t& x : counts.value) x = sum_of_wave<Machine>(x);
    return counts;
  }

  /// Where the chunk's first pair of each of the warp's experts goes. `own` are counts of a single chunk.
  TILEWISE_INLINE static ExpertCounts find_places(const MoeSortParams& p, Shared& shared, int32_t first,
                                                  const ExpertCounts& own) {
    const int lane = Machine::lane(), wave = Machine::wave();
    ExpertCounts before{}, total = own;
    if (p.chunks > 1) {
      total = {};
      TILEWISE_NO_UNROLL
      for (int32_t chunk = lane; chunk < p.chunks; chunk += 32) {
        TILEWISE_UNROLL
        for (int e = 0; e < kOwn; e += 4) {
          const Chunk four = Machine::load_global(counts_of(p, chunk, first) + e / 4);
          TILEWISE_UNROLL
          for (int i = 0; i < 4; ++i) {
            const auto x = static_cast<int32_t>(four.word[i]);
            total.value[e + i] += x, before.value[e + i] += chunk < Machine::block() ? x : 0;
          }
        }
      }
      for (int32_t& x : total.value) x = sum_of_wave<Machine>(x);
      for (int32_t& x : before.value) x = sum_of_wave<Machine>(x);
    }
    int32_t all = 0, offset = 0;
    for (const int32_t x : total.value) all += x;
    if (lane == 0) Machine::store_shared(&shared.totals[wave], Chunk{{static_cast<uint32_t>(all), 0, 0, 0}});
    Machine::barrier();
    if (lane < wave) offset = static_cast<int32_t>(Machine::template load_shared<Chunk>(&shared.totals[lane]).word[0]);
    offset = sum_of_wave<Machine>(offset);
    TILEWISE_UNROLL
    for (int e = 0; e < kOwn; ++e) {
      const bool tells = Machine::block() == 0 && lane == 0 && first + e < p.shape.num_experts;
      if (tells) Machine::store_global(p.sorted.offsets + first + e, offset);
      before.value[e] += offset;
      offset += total.value[e];
      if (tells && first + e == p.shape.num_experts - 1) {
        Machine::store_global(p.sorted.offsets + p.shape.num_experts, offset);
      }
    }
    return before;
  }

  TILEWISE_INLINE static void place(const MoeSortParams& p, const Shared& shared, int32_t first, ExpertCounts& next) {
    const uint32_t lanes_before = (1u << Machine::lane()) - 1;
    for_pairs(shared, [&](int32_t at, int32_t expert) TILEWISE_INLINE_LAMBDA {
      TILEWISE_UNROLL
      for (int e = 0; e < kOwn; ++e) {
        const bool own = expert == first + e;
        const uint32_t lanes = Machine::lanes_where(own);
        if (lanes == 0) continue;  // of most
        if (own) {
          const int32_t pair = Machine::block() * MoeSortConfig::kChunk + at;
          const int32_t row = next.value[e] + popcount(lanes & lanes_before);
          Machine::store_global(p.sorted.pairs + row, pair);
          Machine::store_global(p.sorted.rows + pair, row);
        }
        next.value[e] += popcount(lanes);
      }
    });
  }
};

}  // namespace tilewise::device
