// Whole layers of experts, routed tokens to their weighted sums, and their gradients: the short way (moe, moe_backward)
// and the planned way (describe, plan, run). Meaning: docs/semantics.md, "Experts".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tilewise/activation.hpp"
#include "tilewise/any_problem.hpp"
#include "tilewise/block_format.hpp"
#include "tilewise/error.hpp"
#include "tilewise/export.h"
#include "tilewise/plan.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

enum class MoePass : std::uint8_t { moe, moe_backward };
/// How gate_up holds its rows: those of up alone; [gate; up]; or gate, up, gate, up, ...
enum class MoeGate : std::uint8_t { none, concatenated, interleaved };
/// before: the gate is at most limit and up within [-limit, limit] when they are activated. after: the same of what the
/// activation makes of the gate, and of up. Without a gate what is activated takes its place. A NaN stays.
enum class MoeClamp : std::uint8_t { none, before, after };
/// Element type of a vector of each expert (a bias, a norm's weight), and of its gradient.
enum class MoeVector : std::uint8_t { none, f32, bf16, f16, f64 };

inline constexpr double kSwigluOaiAlpha = 1.702, kMoeNormEpsilon = 1e-6;

/// A value: hashable, comparable, printable. Invariants are checked by validate(), not here.
struct MoeProblem {
  MoePass pass = MoePass::moe;
  DType dtype = DType::f32;                                  ///< of x
  DType out_dtype = DType::f32;                              ///< of out, and of its gradient
  DType ids_dtype = DType::i32, weights_dtype = DType::f32;  ///< of topk_ids and topk_weights
  DeviceType device = DeviceType::cpu;
  BlockFormat x_format{}, w_format{};  ///< of x, and of gate_up and down
  BlockFormat h_format{};              ///< what intermediate values are quantised to; none: rounded to the dtype of x

  std::int64_t tokens = 0, hidden = 0, intermediate = 0;
  std::int64_t num_experts = 0;   ///< whose weights are given
  std::int64_t top_k = 0;         ///< experts of a token
  std::int64_t first_expert = 0;  ///< the id of the first one whose weights are given

  MoeGate gate = MoeGate::concatenated;
  Activation activation = Activation::silu;
  double alpha = kSwigluOaiAlpha;  ///< of swiglu_oai
  MoeClamp clamp = MoeClamp::none;
  double limit = 0.0;  ///< of the clamp
  MoeVector gate_up_bias = MoeVector::none, down_bias = MoeVector::none;
  MoeVector norm = MoeVector::none;
  double norm_epsilon = kMoeNormEpsilon;
  bool weight_on_input = false;
  bool batch_invariant = false;  ///< a token's result does not depend on which other tokens there are
  bool save_gate_up = false;     ///< the forward pass writes gate_up_out, which the backward pass reads

  bool gate_up_transposed = false, down_transposed = false;  ///< the dimension before the last is contiguous

  bool dx = true, dgate_up = true, ddown = true, dtopk_weights = true;  ///< backward: wanted
  bool dgate_up_bias = false, ddown_bias = false;                       ///< likewise
  bool dgate_up_transposed = false, ddown_transposed = false;           ///< likewise
  bool unaligned = false;  ///< some row of a matrix does not start on 16 bytes; the cpu does not care: false there

  friend bool operator==(const MoeProblem&, const MoeProblem&) = default;
};

[[nodiscard]] TILEWISE_EXPORT const core::OperationInterface& operation_of(const MoeProblem* tag) noexcept;

[[nodiscard]] TILEWISE_EXPORT std::size_t hash_value(const MoeProblem& problem) noexcept;

/// E.g. "moe w_format=mxfp4 dtype=bf16 tokens=64 hidden=2880 intermediate=2880 num_experts=32 top_k=4
/// gate=interleaved activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=bf16".
[[nodiscard]] TILEWISE_EXPORT std::string to_string(const MoeProblem& problem);

TILEWISE_EXPORT void validate(const MoeProblem& problem);

/// out[t] = sum over j of topk_weights[t, j] (down[e] h + down_bias[e]), e = topk_ids[t, j] - first_expert, where
///   h = activation(gate[e] x[t] + bias) * (up[e] x[t] + bias'), or activation(up[e] x[t] + bias') without a gate.
/// swiglu_oai is gpt-oss's gate * sigmoid(alpha * gate) * (up + 1). Sums are in fp32 (f64 of f64), h is rounded once to
/// the dtype of x (bf16 where that is quantised) or quantised by h_format, and out is rounded once.
///
/// A token's j-th part is 0 where its e is not in [0, num_experts): -1 and num_experts say that an expert is somebody
/// else's, and so does any other number. Tokens come in any order and experts in any multiplicity; the sum is in the
/// order of j, so that results repeat bit for bit.
///
/// With save_gate_up the first product's sums are written too, for a backward pass that need not multiply again: of
/// each pair of a token and its j-th expert gate[e] x[t], then up[e] x[t], before weight and bias, whatever the order
/// of gate_up's rows. Pairs stand by expert, then by t and j; rows behind the last expert's, of pairs that are somebody
/// else's, are 0. They take tokens * top_k * 2 * intermediate elements.
///
/// A format says how x or the weights are quantised; its scales have the tensor's rank: one for each block along its
/// last two dimensions, a size of 1 where a block has all of them, and one of each expert. "blocks" below is
/// ceil(size / block). What is written must share no element with what is read or with itself.
struct MoeArguments {
  TensorView x;             ///< f32, bf16, f16, f64 or, with x_format, fp8_e4m3 [tokens, hidden], hidden contiguous
  TensorView topk_ids;      ///< i32 or i64 [tokens, top_k]
  TensorView topk_weights;  ///< f32, bf16 or f16 (f64 of f64) [tokens, top_k]
  TensorView gate_up;       ///< dtype of x, or that of w_format: [num_experts, 2 * intermediate, hidden], of no gate
                            ///< [num_experts, intermediate, hidden]; hidden contiguous or, of whole bytes, the other
  TensorView down;          ///< the same: [num_experts, hidden, intermediate]
  TensorView gate_up_bias;  ///< f32, bf16 or f16 (f64 of f64) [num_experts, 2 * intermediate or intermediate]
  TensorView down_bias;     ///< likewise [num_experts, hidden]
  TensorView norm_weight;   ///< likewise [num_experts, hidden]: of an RMS norm of down h + down_bias before its weight
  TensorView x_scale;       ///< with x_format: [tokens or 1, blocks of hidden]
  TensorView gate_up_scale, down_scale;  ///< with w_format: [num_experts, blocks of rows, blocks of columns]
  TensorView gate_up_global_scale, down_global_scale;  ///< with nvfp4: f32 [num_experts]
  TensorView out;  ///< written; f32, bf16 or f16 (f64 of f64) [tokens, hidden], hidden contiguous
  TensorView
      gate_up_out;  ///< with save_gate_up, written: dtype of x, [tokens * top_k, rows of gate_up], contiguous rows
  BlockFormat x_format{}, w_format{};
  BlockFormat h_format{};         ///< fp8_row, fp8_1x128, fp8_1x128_e8m0, mxfp8 or none
  DType out_dtype = DType::none;  ///< that of out, for whoever makes it; none: that of x, bf16 where x is quantised
  std::int64_t first_expert = 0;
  MoeGate gate = MoeGate::concatenated;
  Activation activation = Activation::silu;
  double alpha = kSwigluOaiAlpha;
  MoeClamp clamp = MoeClamp::none;
  double limit = 0.0;  ///< > 0 with a clamp
  double norm_epsilon = kMoeNormEpsilon;
  bool weight_on_input = false;  ///< topk_weights multiply x instead, before the first product's bias
  bool batch_invariant = false;
  bool save_gate_up = false;  ///< excludes x_format, h_format and norm_weight, which have no backward pass
};

/// Intermediate values are computed again, from gate_up_out with save_gate_up, so that out is not needed. What is
/// wanted is 0 where no token came, and so is the gradient of the weight of an id that is somebody else's.
struct MoeBackwardArguments {
  TensorView dout;                                     ///< gradient of out, in its dtype [tokens, hidden]
  TensorView x, topk_ids, topk_weights;                ///< as the forward pass took them
  TensorView gate_up, down;                            ///< likewise
  TensorView gate_up_bias, down_bias;                  ///< likewise
  TensorView gate_up_scale, down_scale;                ///< likewise
  TensorView gate_up_global_scale, down_global_scale;  ///< likewise
  TensorView gate_up_out;                              ///< with save_gate_up, as the forward pass wrote it
  TensorView dx;                                       ///< written when defined, as all below; like x
  TensorView dtopk_weights;                            ///< like topk_weights
  TensorView dgate_up, ddown;            ///< like gate_up and down, either of the last two dimensions contiguous
  TensorView dgate_up_bias, ddown_bias;  ///< like gate_up_bias and down_bias
  BlockFormat w_format{};
  std::int64_t first_expert = 0;
  MoeGate gate = MoeGate::concatenated;
  Activation activation = Activation::silu;
  double alpha = kSwigluOaiAlpha;
  MoeClamp clamp = MoeClamp::none;
  double limit = 0.0;
  bool weight_on_input = false;
  bool batch_invariant = false;
  bool save_gate_up = false;
};

/// The problem that a call describes. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_EXPORT MoeProblem describe(const MoeArguments& arguments);
[[nodiscard]] TILEWISE_EXPORT MoeProblem describe(const MoeBackwardArguments& arguments);

/// Executes a plan on tensors that describe to the plan's problem (checked); see attention's run(). Its
/// workspace_size() follows from the problem alone, whatever the ids are.
TILEWISE_EXPORT void run(const Plan& plan, const MoeArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);
TILEWISE_EXPORT void run(const Plan& plan, const MoeBackwardArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);

/// Describe, plan and run in one call; see attention_forward().
TILEWISE_EXPORT void moe(const MoeArguments& arguments, const SelectOptions& select = {}, void* stream = nullptr);
TILEWISE_EXPORT void moe_backward(const MoeBackwardArguments& arguments, const SelectOptions& select = {},
                                  void* stream = nullptr);

}  // namespace tilewise
