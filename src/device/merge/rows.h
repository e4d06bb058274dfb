// Rows of merge's tensors: which one a lane works on, and its columns of it as floats. What a lane reads of several
// parts is under way at once, since these kernels wait for memory and nothing else.
#pragma once

#include "device/merge/config.h"
#include "device/merge/params.h"
#include "device/tile/columns.h"
#include "device/tile/element.h"
#include "device/tile/platform.h"
#include "device/tile/row_reference.h"

namespace tilewise::device {

/// Parts whose rows a lane reads side by side.
inline constexpr int kPartsAtOnce = 4;

/// A row of out, and the lane's columns: kMergeCols from col on, and of each further pass pass_cols on.
struct RowPlace {
  int64_t batch, query, head;
  int64_t index;  // in the workspace
  bool own;       // else the last row, of which nothing is stored
  bool first;     // the row's first lane
  int32_t col, pass_cols;
};

template <class Machine, auto C>
TILEWISE_INLINE RowPlace row_place(const MergeShape& shape) {
  constexpr int kRowsAWave = Machine::kLanes / C.lanes_a_row;
  const int64_t rows = shape.batch_size * shape.seqlen_q * shape.num_heads_q;
  const int64_t wave = static_cast<int64_t>(Machine::block()) * C.waves + Machine::wave();
  const int64_t wanted = wave * kRowsAWave + Machine::lane() / C.lanes_a_row;
  // 32 bits divide in a third of the time, and the host sees to it that they suffice.
  const auto row = static_cast<uint32_t>(minimum<int64_t>(wanted, rows - 1));
  const auto heads = static_cast<uint32_t>(shape.num_heads_q), queries = static_cast<uint32_t>(shape.seqlen_q);
  const int lane = Machine::lane() % C.lanes_a_row;
  return {row / heads / queries, row / heads % queries,     row % heads, row, wanted < rows, lane == 0,
          lane * kMergeCols,     C.lanes_a_row * kMergeCols};
}

TILEWISE_INLINE int64_t row_offset(const Tensor4& t, const RowPlace& place) {
  return place.batch * t.batch_stride + place.query * t.seq_stride + place.head * t.head_stride;
}
TILEWISE_INLINE int64_t lse_offset(const LseTensor& t, const RowPlace& place) {
  return place.batch * t.batch_stride + place.head * t.head_stride + place.query * t.seq_stride;
}

/// The lane's columns of a row.
template <auto C>
struct MergeRow {
  float value[C.passes][kMergeCols];
};

/// Calls visit(Index<type>) with kType, or of mixed parts with f32 or the type of out.
template <int kType, int kOutType, class Visit>
TILEWISE_INLINE void with_type(int32_t type, const Visit& visit) {
  if constexpr (kType != kPartMixed) {
    visit(Index<kType>{});
  } else if (type == kPartF32) {
    visit(Index<kPartF32>{});
  } else {
    visit(Index<kOutType>{});
  }
}

template <class Machine, auto C, int kType>
TILEWISE_INLINE void load_row(MergeRow<C>& to, int32_t type, const void* data, int64_t offset, const RowPlace& place,
                              int32_t dim) {
  with_type<kType, C.out_type>(type, [&](auto known) {
    TILEWISE_UNROLL
    for (int pass = 0; pass < C.passes; ++pass) {
      load_columns<Machine, C.vector_rows != 0, decltype(known)::value>(to.value[pass], data, offset,
                                                                        place.col + pass * place.pass_cols, dim);
    }
  });
}

template <class Machine, auto C, int kType>
TILEWISE_INLINE void store_row(const MergeRow<C>& from, int32_t type, void* data, int64_t offset, const RowPlace& place,
                               int32_t dim) {
  if (!place.own) return;
  with_type<kType, C.out_type>(type, [&](auto known) {
    TILEWISE_UNROLL
    for (int pass = 0; pass < C.passes; ++pass) {
      store_columns<Machine, C.vector_rows != 0, decltype(known)::value>(from.value[pass], data, offset,
                                                                         place.col + pass * place.pass_cols, dim);
    }
  });
}

/// Part n of a launch: which entry of the table, and how many elements further.
template <auto C>
TILEWISE_INLINE int64_t entry_of(int64_t n) {
  return C.stacked ? 0 : n;
}

template <class Machine, auto C, class Part>
TILEWISE_INLINE float load_lse(const Part* parts, const PartRange& range, int64_t n, const RowPlace& place) {
  const LseTensor& lse = parts[entry_of<C>(n)].lse;
  const int64_t stacked = C.stacked ? n * range.lse_stride : 0;
  return Machine::load_global(lse.data + lse_offset(lse, place) + stacked);
}

template <class Machine, auto C>
TILEWISE_INLINE void load_part(MergeRow<C>& to, const MergePart* parts, const PartRange& range, int64_t n,
                               const RowPlace& place, int32_t dim) {
  const MergePart& part = parts[entry_of<C>(n)];
  const int64_t stacked = C.stacked ? n * range.rows_stride : 0;
  load_row<Machine, C, C.part_type>(to, part.type, part.out.data, row_offset(part.out, place) + stacked, place, dim);
}

/// A head's sink, f32 or of a 16-bit type.
template <class Machine>
TILEWISE_INLINE float load_sink_logit(const SinkTensor& sink, int64_t head) {
  const int64_t at = head * sink.stride;
  if (sink.type == kBiasF32) return Machine::load_global(static_cast<const float*>(sink.data) + at);
  const uint32_t bits = Machine::load_global(static_cast<const uint16_t*>(sink.data) + at);
  return sink.type == kBiasBf16 ? element_to_float<kBf16>(bits) : element_to_float<kF16>(bits);
}

/// What parts weigh: exp(lse - highest) of each, and their sum. A NaN reaches the sum and stays.
struct RowTotal {
  float sink, highest, base, sum = 0.0f;
  bool seen = false;  // by a part

  /// Counts a part and returns its weight, 0 of one that saw nothing.
  template <class Machine>
  TILEWISE_INLINE float add(const RowLse& lse, bool there) {
    const bool counts = there && lse.score != -kInfinity;
    const float weight = counts ? Machine::exp2(((lse.score - base) + lse.rest) * kLog2E) : 0.0f;
    sum += weight;
    seen = seen || counts;
    return weight;
  }
  /// Once all parts are counted.
  template <class Machine>
  TILEWISE_INLINE void add_sink() {
    if (sink != -kInfinity) sum += Machine::exp2((sink - base) * kLog2E);
  }
  TILEWISE_INLINE float inverse() const { return seen ? 1.0f / sum : 0.0f; }
  /// A row that no part saw has the sink's logit, whatever number that is.
  template <class Machine>
  TILEWISE_INLINE RowLse lse() const {
    return seen ? RowLse{highest, Machine::log2(sum) * kLn2} : RowLse{sink, 0.0f};
  }
};

/// The highest log-sum-exp of a launch, of those that are numbers; `before` of the launches before it.
template <class Machine, auto C, class Params>
TILEWISE_INLINE RowTotal begin_total(const Params& p, const RowPlace& place, float before) {
  RowTotal total;
  total.sink = -kInfinity;
  if constexpr (C.sink) total.sink = load_sink_logit<Machine>(p.sink, place.head);
  total.highest = maximum(total.sink, before);
  for (int64_t first = 0; first < p.range.num_parts; first += kPartsAtOnce) {
    float lse[kPartsAtOnce];
    TILEWISE_UNROLL
    for (int j = 0; j < kPartsAtOnce; ++j) {
      lse[j] = load_lse<Machine, C>(p.parts, p.range, minimum<int64_t>(first + j, p.range.num_parts - 1), place);
    }
    TILEWISE_UNROLL
    for (int j = 0; j < kPartsAtOnce; ++j) total.highest = maximum(total.highest, lse[j]);
  }
  total.base = total.highest == -kInfinity ? 0.0f : total.highest;
  return total;
}

}  // namespace tilewise::device
