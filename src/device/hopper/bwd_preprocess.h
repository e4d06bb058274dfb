// The Hopper backward pass's preprocess kernel: of every query its log-sum-exp and delta, as consumer warpgroups read
// them, and zeros where dq will be summed up. A block has a multiprocessor, and tiles of out and dO stream past by TMA,
// which loads twice as much a second as lanes do. So a few blocks can preprocess later heads while the other
// multiprocessors already work on gradients.
#pragma once

#include "device/attention/grid_place.h"
#include "device/attention/tensor_rows.h"
#include "device/hopper/config.h"
#include "device/hopper/large_lse.h"
#include "device/hopper/params.h"
#include "device/sm90/contract.h"
#include "device/sm90/mbarrier.h"
#include "device/sm90/swizzled_tile.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

template <class Machine, HopperBwdPreprocessConfig C>
struct HopperBwdPreprocessShared {
  using Tile = SwizzledTile<C.tile_rows(), C.head_dim_v>;
  static_assert(2 * Tile::kBytes == C.stage_bytes());

  struct Stage {
    Tile out, dout;
  } stages[C.kStages];
  float zeros[C.kZeros];
  Ring<Machine, C.kStages> ring;     // emptied by the warp that tells
  Barrier<Machine> made[C.kStages];  // all statistics of a stage's tile

  /// By one thread, before any other looks at them.
  TILEWISE_INLINE void init_barriers() {
    ring.init(1, 1);
    TILEWISE_UNROLL
    for (Barrier<Machine>& stage : made) stage.init(C.kTeamWarps);
    Machine::publish_barriers();
  }
};

/// A tile of queries of a head.
template <HopperBwdPreprocessConfig C>
struct BwdPreprocessPlace {
  int32_t head = 0, batch = 0;  // a query head
  int32_t first = 0;            // query
  Sequence s{};

  BwdPreprocessPlace() = default;
  TILEWISE_INLINE BwdPreprocessPlace(const HopperBwdPreprocessParams& p, int32_t tile) {
    const int32_t of_all = divide(tile, p.grid.by_tiles);
    batch = divide(of_all, p.grid.by_heads);
    head = of_all - batch * p.grid.num_heads;
    first = (tile - of_all * p.grid.num_tiles) * C.tile_rows();
    s = sequence_at<C>(p.shape, batch);
  }
  /// Whether any row is the sequence's.
  TILEWISE_INLINE bool has_rows() const { return !C.lengths || first < s.all_q; }
  TILEWISE_INLINE int64_t head_of_all(const HopperBwdPreprocessParams& p) const {
    return int64_t{batch} * p.grid.num_heads + head;
  }
};

/// A block's tiles, of first_tiles its share, and where it is one of late_blocks, of the rest: those with rows, which
/// come through the ring, and of these the ones that are left by `of` to `mine`.
template <class Machine, HopperBwdPreprocessConfig C>
class BwdPreprocessTiles {
  using Place = BwdPreprocessPlace<C>;

 public:
  TILEWISE_INLINE BwdPreprocessTiles(const HopperBwdPreprocessParams& p, int mine = 0, int of = 1)
      : p_(p), of_(of), tile_(Machine::block() < p.first_tiles ? Machine::block() : first_late()) {
    find(mine);
  }
  TILEWISE_INLINE bool has_any() const { return tile_ < p_.tiles; }
  TILEWISE_INLINE int32_t number() const { return tile_; }
  TILEWISE_INLINE const Place& place() const { return place_; }
  TILEWISE_INLINE RingPlace<C.kStages> at() const { return ring_place<C.kStages>(count_); }
  TILEWISE_INLINE void advance() {
    step(), ++count_;
    find(of_ - 1);
  }

 private:
  TILEWISE_INLINE void find(int others) {
    TILEWISE_NO_UNROLL
    for (; has_any(); step()) {
      place_ = Place(p_, tile_);
      if (!place_.has_rows()) continue;
      if (others-- == 0) return;
      ++count_;
    }
  }
  TILEWISE_INLINE void step() {
    if (tile_ >= p_.first_tiles) {
      tile_ += p_.late_blocks;
    } else if ((tile_ += Machine::blocks()) >= p_.first_tiles) {
      tile_ = first_late();
    }
  }
  TILEWISE_INLINE int32_t first_late() const {
    return Machine::block() < p_.late_blocks ? p_.first_tiles + Machine::block() : p_.tiles;
  }

  const HopperBwdPreprocessParams& p_;
  const int of_;
  int32_t tile_;
  uint32_t count_ = 0;
  Place place_;
};

/// A warp's rows of a tile. Lanes side by side share a row; each has the log-sum-exp of one and stores that one's
/// statistics.
template <class Machine, HopperBwdPreprocessConfig C>
class BwdRowStatistics {
  using Place = BwdPreprocessPlace<C>;
  using Shared = HopperBwdPreprocessShared<Machine, C>;
  static constexpr int kRows = C.tile_rows() / C.kTeamWarps, kLanesARow = lanes_a_delta_row(C, Machine::kLanes),
                       kStride = Machine::kLanes / kLanesARow, kCount = kRows / kStride;
  static_assert(kCount >= 1 && kCount <= kLanesARow && kCount * kStride == kRows &&
                kRows * C.kTeamWarps == C.tile_rows());

 public:
  TILEWISE_INLINE BwdRowStatistics(const HopperBwdPreprocessParams& p, int warp, int lane)
      : p_(p), row_(warp * kRows + lane / kLanesARow), part_(lane % kLanesARow) {}

  /// What comes from memory, a tile ahead.
  struct Asked {
    float lse = -kInfinity, dlse = 0.0f;
  };
  TILEWISE_INLINE Asked ask(const Place& place) const {
    Asked asked;
    const int64_t i = place.first + row(part_);
    if (part_ >= kCount || i >= place.s.seqlen_q) return asked;
    asked.lse =
        Machine::load_global(p_.softmax_lse.data + lse_offset(p_.softmax_lse, place.s, place.batch, i, place.head));
    if (p_.dlse.data) {
      asked.dlse = Machine::load_global(p_.dlse.data + lse_offset(p_.dlse, place.s, place.batch, i, place.head));
    }
    return asked;
  }

  TILEWISE_INLINE void make(const Place& place, typename Shared::Stage& stage, const Asked& asked) const {
    float sums[kCount];
    TILEWISE_UNROLL
    for (int r = 0; r < kCount; ++r) {
      sums[r] = part_ < kParts ? dot(stage, row(r)) : 0.0f;
      if constexpr (C.lengths) {  // of others each query sees a key
        if (p_.dq.data) clear_unseeing(place, place.first + row(r));
      }
    }
    const float delta = sum_of_own_row(sums);
    const bool any_large = C.tells_large && Machine::any(is_large_lse(asked.lse * kLog2E));
    if (part_ < kCount) store(place, place.first + row(part_), delta, asked, any_large);
  }

 private:
  static constexpr int kParts = Shared::Tile::kChunks * Shared::Tile::kRowPieces;  // of a row, zeros behind its columns

  TILEWISE_INLINE int row(int r) const { return row_ + r * kStride; }
  /// By f16's own instruction: a dozen others had f16 wait for its statistics (causal 2k 37% longer).
  TILEWISE_INLINE static float widened(uint16_t bits) {
    return C.out_type == kBf16 ? bf16_to_float(bits) : Machine::widen_f16(bits);
  }

  TILEWISE_INLINE float dot(typename Shared::Stage& stage, int row) const {
    const Chunk x = Machine::template load_shared<Chunk>(stage.out.piece(row, part_)),
                y = Machine::template load_shared<Chunk>(stage.dout.piece(row, part_));
    float sum = 0.0f;
    TILEWISE_UNROLL
    for (int e = 0; e < kChunk; ++e) {
      sum += widened(x.element(e)) * widened(y.element(e));
    }
    return sum;
  }

  /// Over the lanes of a row: in each step a lane hands on half of the rows' sums that it has, as many shuffles as
  /// rows.
  TILEWISE_INLINE float sum_of_own_row(float (&sums)[kCount]) const {
    TILEWISE_UNROLL
    for (int half = kCount / 2; half >= 1; half /= 2) {
      const bool upper = (part_ & half) != 0;
      TILEWISE_UNROLL
      for (int r = 0; r < half; ++r) {
        const float kept = upper ? sums[r + half] : sums[r], sent = upper ? sums[r] : sums[r + half];
        sums[r] = kept + Machine::shuffle_xor(sent, half);
      }
    }
    TILEWISE_UNROLL
    for (int bit = kCount; bit < kLanesARow; bit *= 2) sums[0] += Machine::shuffle_xor(sums[0], bit);
    return sums[0];
  }

  /// dq of a query that is not used or sees nothing: it may be that no tile of keys adds to its tile.
  TILEWISE_INLINE void clear_unseeing(const Place& place, int64_t i) const {
    if (i >= place.s.all_q) return;
    const bool sees = i < place.s.seqlen_q &&
                      Machine::load_global(p_.softmax_lse.data + lse_offset(p_.softmax_lse, place.s, place.batch, i,
                                                                            place.head)) != -kInfinity;
    if (sees) return;
    auto* const dq = mutable_elements_of<C.out_type>(p_.dq) + query_offset(p_.dq, place.s, place.batch, i, place.head);
    for (int col = part_ * kChunk; col < p_.shape.head_dim; col += kLanesARow * kChunk) {
      Machine::store_global(reinterpret_cast<Chunk*>(dq + col), Chunk{{0, 0, 0, 0}});
    }
  }

  /// Queries that are not used or see nothing have weights of 2^-infinity.
  TILEWISE_INLINE void store(const Place& place, int64_t i, float delta, const Asked& asked, bool any_large) const {
    float lse2 = asked.lse == -kInfinity ? kInfinity : C.natural_lse ? asked.lse : asked.lse * kLog2E;
    const int64_t at = place.head_of_all(p_) * p_.rows_a_head + statistic_place(i);
    if (C.tile_rows() > C.kRows && i >= p_.rows_a_head) return;
    delta -= asked.dlse;
    if (p_.dense_delta && i < place.s.seqlen_q) {
      Machine::store_global(p_.dense_delta + dense_row(p_.shape, place.batch, i, place.head), delta);
    }
    if (lse2 == kInfinity) delta = 0.0f;
    if constexpr (C.tells_large) {  // a query without weights may be the one that is looked at
      const bool large = is_large_lse(lse2);
      if (large) lse2 = asked.lse;
      delta = with_marks(delta, large, any_large);
    }
    Machine::store_global(p_.lse2 + at, lse2);
    Machine::store_global(p_.delta + at, delta);
  }

  const HopperBwdPreprocessParams& p_;
  const int row_, part_;
};

template <Sm90TileOps Ops, HopperBwdPreprocessConfig C>
class HopperBwdPreprocess {
  using Machine = typename Ops::Machine;
  using Tiles = BwdPreprocessTiles<Machine, C>;
  using Place = BwdPreprocessPlace<C>;
  using Rows = BwdRowStatistics<Machine, C>;
  static constexpr int kMaking = C.kStages * C.kTeamWarps * Machine::kLanes;  // threads

 public:
  using Params = HopperBwdPreprocessParams;
  using Shared = HopperBwdPreprocessShared<Machine, C>;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    if (Machine::thread() == 0) {
      shared.init_barriers();
      Machine::prefetch_map(p.out_map), Machine::prefetch_map(p.dout_map);
    }
    if (p.dq_accum) {
      for (int i = 4 * Machine::thread(); i < C.kZeros; i += 4 * C.kThreads) {
        Machine::store_shared(shared.zeros + i, FloatRun<4>{{0.0f, 0.0f, 0.0f, 0.0f}});
      }
      Machine::fence_shared_writes();
    }
    Machine::barrier();
    const int32_t warp = uniform<Machine>(Machine::thread() / Machine::kLanes), of_making = warp - C.kOtherWarps;
    if (warp == 0) {
      load(p, shared);
    } else if (warp < C.kOtherWarps) {
      tell(p, shared, warp - 1);
    } else {
      clear(p, Machine::thread() - C.kOtherWarps * Machine::kLanes);
      make(p, shared, of_making / C.kTeamWarps, of_making % C.kTeamWarps);
    }
  }

 private:
  /// Words of this launch and the next, whose blocks begin once all of this one's have cleared their share.
  TILEWISE_INLINE static void clear(const Params& p, int thread) {
    constexpr int32_t kCleared = 1;  // a barrier
    clear_words(p.turns, p.all_turns, thread), clear_words(p.tile_counter, p.counters, thread);
    clear_words(p.dkdv_turns, p.gradient_turns, thread);
    if (p.tiles_done) {
      begin_words(p, thread, 0, p.first_tiles, Machine::blocks());
      if (Machine::block() < p.late_blocks) begin_words(p, thread, p.first_tiles, p.tiles, p.late_blocks);
    }
    Machine::fence_global();
    Machine::named_barrier_sync(kCleared, kMaking);
    let_next_step_begin<Machine>();
  }
  TILEWISE_INLINE static void clear_words(uint32_t* words, int64_t count, int thread) {
    const auto end = static_cast<int32_t>(count);
    TILEWISE_NO_UNROLL
    for (int32_t i = Machine::block() * kMaking + thread; i < end; i += Machine::blocks() * kMaking) {
      Machine::store_global(words + i, 0u);
    }
  }
  /// Of this block's own tiles: another block could clear what this one has told already.
  TILEWISE_INLINE static void begin_words(const Params& p, int thread, int32_t begin, int32_t end, int32_t blocks) {
    TILEWISE_NO_UNROLL
    for (int32_t tile = begin + Machine::block() + thread * blocks; tile < end; tile += kMaking * blocks) {
      Machine::store_global(p.tiles_done + tile, !C.lengths || Place(p, tile).has_rows() ? 0u : 1u);
    }
  }

  TILEWISE_INLINE static void load(const Params& p, Shared& shared) {
    TILEWISE_NO_UNROLL
    for (Tiles tiles(p); tiles.has_any(); tiles.advance()) {
      const auto at = tiles.at();
      at.wait_empty(shared.ring);
      Machine::wave_sync();
      if (Machine::lane() != 0) continue;
      const Place& place = tiles.place();
      auto& stage = shared.stages[at.stage];
      Barrier<Machine>& full = shared.ring.full[at.stage];
      const auto row = static_cast<int32_t>(place.s.q_row) + place.first;
      const int32_t batch = p.shape.cu_seqlens_q ? 0 : place.batch;
      full.arrive_and_expect(C.stage_bytes());
      TILEWISE_UNROLL
      for (int c = 0; c < Shared::Tile::kChunks; ++c) {
        const int col = c * Shared::Tile::kChunkColumns;
        Machine::copy_box_once(stage.out.chunk(c), p.out_map, full.state(), col, 0, row, place.head, batch);
        Machine::copy_box(stage.dout.chunk(c), p.dout_map, full.state(), col, 0, row, place.head, batch);
      }
    }
  }

  /// By the stage's team: what a tile costs a warp beside its rows is less than by all warps, each with fewer rows.
  TILEWISE_INLINE static void make(const Params& p, Shared& shared, int team, int warp) {
    const Rows rows(p, warp, Machine::lane());
    Tiles tiles(p, team, C.kStages);
    if (!tiles.has_any()) return;
    auto asked = rows.ask(tiles.place());
    TILEWISE_NO_UNROLL
    for (bool more = true; more;) {
      const Place place = tiles.place();
      const auto at = tiles.at();
      const auto had = asked;
      tiles.advance();
      more = tiles.has_any();
      if (more) asked = rows.ask(tiles.place());
      at.wait_full(shared.ring);
      rows.make(place, shared.stages[at.stage], had);
      arrive_as_warp(shared.made[at.stage], Machine::lane());
    }
  }

  /// Zeros for dq's sums, and word of tiles that are made, by one lane of the stage's warp, since a release takes as
  /// long as a tile. The place that the team has read is free before that.
  TILEWISE_INLINE static void tell(const Params& p, Shared& shared, int teller) {
    if (Machine::lane() != 0) return;
    TILEWISE_NO_UNROLL
    for (Tiles tiles(p, teller, C.kStages); tiles.has_any(); tiles.advance()) {
      const auto at = tiles.at();
      if (p.dq_accum) clear_sums(p, shared, tiles.place());
      shared.made[at.stage].wait(at.parity);
      shared.ring.empty[at.stage].arrive();
      if (p.tiles_done) {
        if (p.dq_accum) Machine::wait_stores();
        Machine::release_global(p.tiles_done + tiles.number(), 1u);
      }
    }
    Machine::wait_stores_read();
  }
  TILEWISE_INLINE static void clear_sums(const Params& p, const Shared& shared, const Place& place) {
    const int32_t rows = minimum(C.tile_rows(), static_cast<int32_t>(p.rows_a_head) - place.first);
    const int32_t floats = rows * C.head_dim;
    float* const sums = p.dq_accum + place.head_of_all(p) * p.dq_accum_a_head + int64_t{place.first} * C.head_dim;
    TILEWISE_NO_UNROLL
    for (int32_t i = 0; i < floats; i += C.kZeros) {
      Machine::store_run(sums + i, shared.zeros, minimum(C.kZeros, floats - i) * static_cast<int32_t>(sizeof(float)));
    }
    Machine::commit_stores();
  }
};

}  // namespace tilewise::device
