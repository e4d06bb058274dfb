// Which part of a sequence counts, and which keys a query sees. One copy for every backend.
#pragma once

#include <stdint.h>

#include "device/common/params.h"

namespace tilewise::device {

/// One sequence of the batch: where its used rows start in memory, and how many there are.
struct Sequence {
  int64_t q_row, k_row;        // first used row, in rows of the batch entry (packed: of the whole tensor)
  int64_t seqlen_q, seqlen_k;  // used rows
  int64_t all_q, all_k;        // rows of the sequence in memory, used or not
  int64_t leftpad;             // keys before the used part (bias is read at leftpad + j)
};

constexpr int64_t clamp_to(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

/// Lengths are clamped to the tensors and to the maxima that size grids, biases and workspaces, so a bad value
/// can't lead a kernel outside them.
constexpr Sequence sequence_of(const AttentionShape& p, int64_t b) {
  Sequence s{0, 0, p.seqlen_q, p.seqlen_k, p.seqlen_q, p.seqlen_k, 0};
  if (p.cu_seqlens_q) {
    s.q_row = clamp_to(p.cu_seqlens_q[b], 0, p.total_q);
    s.all_q = clamp_to(p.cu_seqlens_q[b + 1] - s.q_row, 0, clamp_to(p.total_q - s.q_row, 0, p.seqlen_q));
  }
  if (p.cu_seqlens_k) {
    s.k_row = clamp_to(p.cu_seqlens_k[b], 0, p.total_k);
    s.all_k = clamp_to(p.cu_seqlens_k[b + 1] - s.k_row, 0, clamp_to(p.total_k - s.k_row, 0, p.seqlen_k));
  }
  if (p.leftpad_k) s.leftpad = clamp_to(p.leftpad_k[b], 0, s.all_k);
  s.k_row += s.leftpad;
  s.seqlen_q = p.seqused_q ? clamp_to(p.seqused_q[b], 0, s.all_q) : s.all_q;
  s.seqlen_k = p.seqused_k ? clamp_to(p.seqused_k[b], 0, s.all_k - s.leftpad) : s.all_k - s.leftpad;
  return s;
}

/// The diagonal's offset d of docs/semantics.md: query i stands at key i + d.
constexpr int64_t diagonal_offset(const ScoreParams& p, const Sequence& s) {
  return p.top_left ? 0 : s.seqlen_k - s.seqlen_q;
}

/// Keys [begin, end) that the mask and window leave to query i (d: diagonal_offset).
struct KeyRange {
  int64_t begin, end;
};
constexpr KeyRange visible_keys(const ScoreParams& p, const Sequence& s, int64_t d, int64_t i) {
  const int64_t begin = p.window_left < 0 ? 0 : clamp_to(i + d - p.window_left, 0, s.seqlen_k);
  const int64_t end = p.window_right < 0 ? s.seqlen_k : clamp_to(i + d + p.window_right + 1, 0, s.seqlen_k);
  return KeyRange{begin, end < begin ? begin : end};
}

}  // namespace tilewise::device
