// AttentionOptions, what a call may ask for beside its tensors, and AttentionProblem, a pure value that says everything
// selection may depend on (shapes, dtypes, layout, options) and nothing about memory. It prints as one line and parses
// back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tilewise/any_problem.hpp"
#include "tilewise/export.h"
#include "tilewise/layout.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

enum class Operation : std::uint8_t { attention_forward, attention_backward };
enum class Mask : std::uint8_t { none, causal };
enum class Alignment : std::uint8_t { bottom_right, top_left };
/// none; f32; query: the dtype of q; boolean: true = visible.
enum class BiasKind : std::uint8_t { none, f32, query, boolean };
/// none; f32; query: the dtype of q.
enum class SinkKind : std::uint8_t { none, f32, query };
/// none; per_head: [num_heads_q]; per_batch_head: [batch_size, num_heads_q].
enum class AlibiKind : std::uint8_t { none, per_head, per_batch_head };
/// none: 1; tensor: one number or a tensor of one; head: [its own heads]; batch_head: [batch_size, num_heads_k].
enum class ScaleKind : std::uint8_t { none, tensor, head, batch_head };

/// Everything about an attention call that is not q, k, v or an output. An undefined
/// TensorView means "not given". Shapes and dtypes are those of docs/semantics.md.
struct AttentionOptions {
  Layout layout = Layout::bshd;
  Mask mask = Mask::none;
  Alignment alignment = Alignment::bottom_right;
  std::int64_t window_left = -1;        ///< keys visible to the left of the diagonal; -1: unbounded
  std::int64_t window_right = -1;       ///< likewise to the right; must be <= 0 when causal
  std::optional<double> softmax_scale;  ///< default 1/sqrt(head_dim)
  double softcap = 0.0;                 ///< 0: off
  double dropout_p = 0.0;               ///< in [0, 1), rounded to a multiple of 2^-16
  std::uint64_t seed = 0;               ///< Philox seed and offset of dropout ...
  std::uint64_t offset = 0;
  TensorView seed_and_offset;  ///< ... or an int64 tensor [2] that the kernel reads
  TensorView bias;             ///< broadcastable to [batch_size, num_heads_q, seqlen_q, seqlen_k]
  TensorView alibi_slopes;     ///< f32 (f64 where q is) [num_heads_q] or [batch_size, num_heads_q]
  TensorView sink;             ///< f32 or the dtype of q, [num_heads_q]
  TensorView cu_seqlens_q;     ///< int32 [batch_size + 1]; requires layout thd
  TensorView cu_seqlens_k;
  std::optional<std::int64_t> max_seqlen_q;  ///< thd only; computed where cu_seqlens are readable
  std::optional<std::int64_t> max_seqlen_k;
  TensorView seqused_q;  ///< int32 [batch_size]
  TensorView seqused_k;
  TensorView leftpad_k;
  TensorView q_scale;  ///< f32, positive; what q in fp8 is multiplied by: see ScaleKind
  TensorView k_scale;
  TensorView v_scale;
  std::optional<double> q_scale_value;  ///< ... or as a number
  std::optional<double> k_scale_value;
  std::optional<double> v_scale_value;
  bool deterministic = false;    ///< dq, dbias and dsink bit-reproducible too
  bool batch_invariant = false;  ///< a sequence's result does not depend on the rest of the batch
  bool clear_rest = false;       ///< thd: rows of results that belong to no sequence become 0, their softmax_lse -inf
  std::string score_mod;  ///< text of docs/expressions.md that makes a score of score, b, h, q_idx, kv_idx; "": none
  std::string mask_mod;   ///< text that says of b, h, q_idx, kv_idx whether the key is visible; "": none
  std::vector<TensorView> tables;  ///< what both look up, table0 and on: 1 to 4 dimensions, any strides
  /// Of attention_backward, written: gradients of tables of floats, each with its table's shape and dtype; undefined
  /// ones, and those that are missing, are not wanted.
  std::vector<TensorView> dtables;
  TensorView key_indices;  ///< int32 [batch_size, seqlen_q, 1 or num_heads_k, top_k]: the only keys seen; -1: none
  /// int32, which blocks of scores are visible, of each row of blocks: how many mask_mod is asked of, [1 or batch_size,
  /// 1 or num_heads_q, rows of blocks], and which ones, [.., columns of blocks], in any order. Then the same two of
  /// blocks that are visible whole, where there are any. Empty: every block is asked of.
  std::vector<TensorView> block_mask;
  std::int64_t block_rows = 128, block_keys = 128;  ///< queries and keys of a block, multiples of 16
};

/// What a problem says of a table: its element type and shape.
struct TableShape {
  DType dtype = DType::none;
  int rank = 0;
  std::array<std::int64_t, 4> shape{};
  friend bool operator==(const TableShape&, const TableShape&) = default;
};

/// What a problem says of a block mask; rows 0: there is none.
struct BlockMaskShape {
  std::int64_t rows = 0, keys = 0;   ///< of a block
  bool batch = false, head = false;  ///< whether it differs between sequences, and between query heads
  bool full = false;                 ///< blocks that are visible whole are told apart
  friend bool operator==(const BlockMaskShape&, const BlockMaskShape&) = default;
};

/// Which dimensions a bias really has; a false one is broadcast (size 1 in the tensor).
struct BiasDims {
  bool batch = false, head = false, query = false, key = false;
  friend bool operator==(const BiasDims&, const BiasDims&) = default;
};

/// A value: hashable, comparable, printable. Invariants are checked by validate(), not here.
struct AttentionProblem {
  Operation operation = Operation::attention_forward;
  DType dtype = DType::f32;       ///< of q, k and v
  DType out_dtype = DType::none;  ///< none: dtype, of fp8_e4m3 bf16
  DeviceType device = DeviceType::cpu;
  Layout layout = Layout::bshd;

  std::int64_t batch_size = 1;
  std::int64_t seqlen_q = 0;  ///< thd: max_seqlen_q
  std::int64_t seqlen_k = 0;  ///< thd: max_seqlen_k
  std::int64_t total_q = 0;   ///< thd only, else 0
  std::int64_t total_k = 0;
  std::int64_t num_heads_q = 1;
  std::int64_t num_heads_k = 1;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;

  Mask mask = Mask::none;
  Alignment alignment = Alignment::bottom_right;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  double softmax_scale = 0.0;  ///< the resolved value (1/sqrt(head_dim) by default)
  double softcap = 0.0;
  double dropout_p = 0.0;  ///< rounded to a multiple of 2^-16
  bool seed_tensor = false;

  BiasKind bias = BiasKind::none;
  BiasDims bias_dims{};
  AlibiKind alibi_slopes = AlibiKind::none;
  SinkKind sink = SinkKind::none;
  bool seqused_q = false, seqused_k = false, leftpad_k = false;
  ScaleKind q_scale = ScaleKind::none, k_scale = ScaleKind::none, v_scale = ScaleKind::none;  ///< fp8 only

  bool softmax_lse = true;                                             ///< forward: the caller wants it
  bool dlse = false;                                                   ///< backward: given
  bool dq = true, dk = true, dv = true, dbias = false, dsink = false;  ///< backward: wanted
  bool deterministic = false;
  bool batch_invariant = false;
  bool clear_rest = false;      ///< as AttentionOptions has it; false where rows are not packed
  bool unaligned = false;       ///< some row of a tensor does not start on 16 bytes; the cpu does not care: false there
  bool bias_unaligned = false;  ///< likewise of the bias, or its keys are not side by side
  std::string score_mod, mask_mod;  ///< canonical texts of expressions
  std::vector<TableShape> tables;
  std::int64_t dtables = 0;           ///< backward: bit i: the gradient of table i is wanted
  std::int64_t top_k = 0;             ///< key_indices of each query; 0: none, all keys are selected
  bool key_indices_per_head = false;  ///< each key head has its own
  BlockMaskShape block_mask{};

  friend bool operator==(const AttentionProblem&, const AttentionProblem&) = default;
};

/// Attention was the first operation: its problem keeps the short name too.
using Problem = AttentionProblem;

[[nodiscard]] TILEWISE_EXPORT const core::OperationInterface& operation_of(const AttentionProblem* tag) noexcept;

[[nodiscard]] TILEWISE_EXPORT std::size_t hash_value(const AttentionProblem& problem) noexcept;

/// E.g. "attention_forward dtype=bf16 batch_size=2 seqlen_q=4096 num_heads_q=32 num_heads_k=8
/// head_dim=128 mask=causal". For thd the keys are max_seqlen_q, max_seqlen_k, total_q, total_k.
[[nodiscard]] TILEWISE_EXPORT std::string to_string(const AttentionProblem& problem);

TILEWISE_EXPORT void validate(const AttentionProblem& problem);

}  // namespace tilewise
