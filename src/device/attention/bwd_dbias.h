// dbias: a block owns a patch of it and adds up what reaches it over the dimensions that the bias was
// broadcast along, in a fixed order, so that no atomics are needed and the sum is reproducible.
#pragma once

#include "device/attention/bwd_patch.h"
#include "device/attention/config.h"
#include "device/attention/grid_place.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <class Ops, auto C>
struct BwdDbiasShared {
  union {
    BwdPatchTiles<Ops, C> tiles;
    float dbias[C.block_m()][C.block_n];
  };
};

template <TileOps Ops, auto C>
class BwdDbias {
  using Machine = typename Ops::Machine;
  static constexpr int kThreads = C.waves * Machine::kLanes;

 public:
  using Params = typename FunctionsOf<C>::template ParamsOf<BwdDbiasParams>;
  using Patch = BwdPatch<Ops, C, Params>;
  using Scores = typename Patch::Scores;
  using Shared = BwdDbiasShared<Ops, C>;

  TILEWISE_INLINE static void run(const Params& params, Shared& shared) {
    BwdDbias kernel(params, shared);
    kernel.visit_sequences();
    kernel.finish();
  }

 private:
  /// Indices [begin, end) of a dimension that end in one index of dbias.
  struct Span {
    int64_t begin, end;
  };
  TILEWISE_INLINE static Span span_of(int64_t index, int64_t size, int64_t all) {
    return size > 1 ? Span{index, index + 1} : Span{0, all};
  }

  TILEWISE_INLINE BwdDbias(const Params& params, Shared& shared)
      : p_(params), shared_(shared), patch_(params, shared.tiles) {
    const int64_t* shape = p_.dbias_shape;
    all_queries_ = shape[2] <= 1;
    all_keys_ = shape[3] <= 1;
    int64_t block = Machine::block();
    const int64_t key_tiles = all_keys_ ? 1 : ceil_div<int64_t>(shape[3], C.block_n);
    const int64_t row_tiles = all_queries_ ? 1 : ceil_div<int64_t>(shape[2], C.block_m());
    key_tile_ = static_cast<int32_t>(block % key_tiles);
    block /= key_tiles;
    row_tile_ = static_cast<int32_t>(block % row_tiles);
    block /= row_tiles;
    head_ = block % shape[1];
    batch_ = block / shape[1];
    dbias_.clear();
  }

  TILEWISE_INLINE void visit_sequences() {
    const Span batches = span_of(batch_, p_.dbias_shape[0], p_.shape.batch_size);
    const Span heads = span_of(head_, p_.dbias_shape[1], p_.shape.num_heads_q);
    for (int64_t b = batches.begin; b < batches.end; ++b) {
      const Sequence s = sequence_at<C>(p_.shape, b);
      if (s.seqlen_q == 0 || s.seqlen_k == 0) continue;
      for (int64_t h = heads.begin; h < heads.end; ++h) visit_head(s, b, h);
    }
  }

  TILEWISE_INLINE void visit_head(const Sequence& s, int64_t batch, int64_t head) {
    const auto seqlen_q = static_cast<int32_t>(s.seqlen_q), seqlen_k = static_cast<int32_t>(s.seqlen_k);
    const int32_t row_begin = all_queries_ ? 0 : row_tile_ * C.block_m();
    const int32_t row_end = all_queries_ ? seqlen_q : minimum(seqlen_q, row_begin + C.block_m());
    // Columns of dbias count from the sequence's first key in memory, keys from its first used one.
    const auto leftpad = static_cast<int32_t>(s.leftpad);
    const int32_t key_begin = all_keys_ ? 0 : key_tile_ * C.block_n - leftpad;
    const int32_t key_end = all_keys_ ? seqlen_k : minimum(seqlen_k, key_begin + C.block_n);
    for (int32_t first_row = row_begin; first_row < row_end; first_row += C.block_m()) {
      for (int32_t first_key = key_begin; first_key < key_end; first_key += C.block_n) {
        Scores dS;
        patch_.gradients(dS, s, batch, head, first_row, first_key);
        dbias_.for_each_pair(dS, patch_.lane(), [](int, int, auto&& sum, auto&& x) { sum += x; });
      }
    }
  }

  /// Sums the patch along broadcast queries and keys, and writes it.
  TILEWISE_INLINE void finish() {
    Machine::barrier();
    dbias_.for_each(patch_.lane(), [&](int slot, int col, auto&& x) {
      Machine::store_shared(&shared_.dbias[patch_.wave_row() + Scores::row_of_slot(patch_.lane(), slot)][col],
                            static_cast<float>(x));
    });
    Machine::barrier();
    const int64_t rows = all_queries_ ? minimum<int64_t>(p_.dbias_shape[2], 1)
                                      : minimum<int64_t>(C.block_m(), p_.dbias_shape[2] - first_dbias_row());
    const int64_t cols = all_keys_ ? minimum<int64_t>(p_.dbias_shape[3], 1)
                                   : minimum<int64_t>(C.block_n, p_.dbias_shape[3] - first_dbias_col());
    for (int64_t unit = Machine::thread(); unit < rows * cols; unit += kThreads) {
      const auto row = static_cast<int>(unit / cols), col = static_cast<int>(unit % cols);
      const int row_end = all_queries_ ? C.block_m() : row + 1, col_end = all_keys_ ? C.block_n : col + 1;
      float sum = 0.0f;
      for (int i = row; i < row_end; ++i) {
        for (int j = col; j < col_end; ++j) sum += Machine::template load_shared<float>(&shared_.dbias[i][j]);
      }
      store(first_dbias_row() + row, first_dbias_col() + col, sum);
    }
  }

  TILEWISE_INLINE int64_t first_dbias_row() const { return static_cast<int64_t>(row_tile_) * C.block_m(); }
  TILEWISE_INLINE int64_t first_dbias_col() const { return static_cast<int64_t>(key_tile_) * C.block_n; }

  TILEWISE_INLINE void store(int64_t row, int64_t col, float value) const {
    const BiasTensor& to = p_.dbias;
    const int64_t place =
        batch_ * to.batch_stride + head_ * to.head_stride + row * to.query_stride + col * to.key_stride;
    if constexpr (C.bias_type == kBiasF32) {
      Machine::store_global(static_cast<float*>(to.data) + place, value);
    } else {
      constexpr int kElement = C.bias_type == kBiasBf16 ? kBf16 : kF16;
      Machine::store_global(static_cast<ElementBits<kElement>*>(to.data) + place,
                            static_cast<ElementBits<kElement>>(Machine::template pack<kElement>(value, 0.0f)));
    }
  }

  const Params& p_;
  Shared& shared_;
  Patch patch_;
  bool all_queries_, all_keys_;
  int32_t key_tile_, row_tile_;
  int64_t head_, batch_;
  Scores dbias_;
};

}  // namespace tilewise::device
