// Linear layers, of all rows or of rows by expert, and their gradients: the short way (linear, grouped_linear,
// linear_backward) and the planned way (describe, plan, run). Meaning: docs/semantics.md, "Linear layers".
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

enum class LinearPass : std::uint8_t { linear, linear_backward };
/// How rows belong to experts: not at all, or by offsets or counts of rows, in this element type.
enum class LinearGroups : std::uint8_t { none, offsets_i32, offsets_i64, counts_i32, counts_i64 };
/// Element type of the bias and of its gradient.
enum class LinearBias : std::uint8_t { none, f32, bf16, f16, f64 };

/// A value: hashable, comparable, printable. Invariants are checked by validate(), not here.
struct LinearProblem {
  LinearPass pass = LinearPass::linear;
  DType dtype = DType::f32;      ///< of x
  DType out_dtype = DType::f32;  ///< of out, and of its gradient
  DeviceType device = DeviceType::cpu;
  BlockFormat x_format{}, w_format{};

  std::int64_t tokens = 0, n = 0, k = 0;
  std::int64_t num_experts = 1;  ///< groups none: 1
  LinearGroups groups = LinearGroups::none;

  LinearBias bias = LinearBias::none;
  Activation activation = Activation::identity;
  bool batch_invariant = false;  ///< a row's result does not depend on which other rows there are
  bool w_transposed = false;     ///< of w n is contiguous, else k

  bool dx = true, dw = true, dbias = false;  ///< backward: wanted
  bool dw_transposed = false;                ///< likewise
  bool unaligned = false;  ///< some row of a matrix does not start on 16 bytes; the cpu does not care: false there

  friend bool operator==(const LinearProblem&, const LinearProblem&) = default;
};

[[nodiscard]] TILEWISE_EXPORT const core::OperationInterface& operation_of(const LinearProblem* tag) noexcept;

[[nodiscard]] TILEWISE_EXPORT std::size_t hash_value(const LinearProblem& problem) noexcept;

/// E.g. "linear w_format=mxfp4 dtype=bf16 tokens=64 n=4096 k=4096 groups=offsets_i32 num_experts=8".
[[nodiscard]] TILEWISE_EXPORT std::string to_string(const LinearProblem& problem);

TILEWISE_EXPORT void validate(const LinearProblem& problem);

/// out[t, n] = activation(sum over k of x[t, k] w[n, k] + bias[n]), summed in fp32 (f64 of f64) and rounded once.
///
/// With offsets or counts row t belongs to an expert e, and w is [num_experts, n, k], bias [num_experts, n]: to the one
/// with offsets[e] <= t < offsets[e + 1], or the counts one after another. Groups may be empty and of any size; rows
/// outside all of them are written 0. Offsets that fall or leave [0, tokens] are clamped, negative counts are 0.
///
/// A format says how x or w is quantised. Its scales have the tensor's rank: one for each block along its last two
/// dimensions, a size of 1 where a block has all of them, and one of each expert. "blocks" below is ceil(size / block).
/// What is written must share no element with what is read or with itself.
struct LinearArguments {
  TensorView x;               ///< f32, bf16, f16, f64 or, with x_format, fp8_e4m3 [tokens, k], k contiguous
  TensorView w;               ///< the dtype of x, or that of w_format: [n, k], k contiguous or, of whole bytes, n
  TensorView bias;            ///< f32, bf16 or f16 (f64 of f64) [n]; or undefined
  TensorView x_scale;         ///< with x_format: [tokens or 1, blocks of k]
  TensorView w_scale;         ///< with w_format: [blocks of n, blocks of k]
  TensorView w_global_scale;  ///< with nvfp4: f32 of rank 0, of experts [num_experts]
  TensorView offsets;         ///< i32 or i64 [num_experts + 1]; or undefined
  TensorView counts;          ///< i32 or i64 [num_experts], instead of offsets
  TensorView out;             ///< written; f32, bf16 or f16 (f64 of f64) [tokens, n], n contiguous
  BlockFormat x_format{}, w_format{};
  DType out_dtype = DType::none;  ///< that of out, for whoever makes it; none: that of x, bf16 where x is quantised
  Activation activation = Activation::identity;
  bool batch_invariant = false;
};

/// The activation's argument is computed again, so that out is not needed.
struct LinearBackwardArguments {
  TensorView dout;                     ///< gradient of out: f32, bf16 or f16 (f64 of f64) [tokens, n]
  TensorView x, w, bias;               ///< as the forward pass took them
  TensorView w_scale, w_global_scale;  ///< likewise
  TensorView offsets, counts;          ///< likewise
  TensorView dx;                       ///< written when defined; like x: 0 in rows outside all groups
  TensorView dw;                       ///< written when defined; like w, one of n and k contiguous: 0 without rows
  TensorView dbias;                    ///< written when defined; like bias
  BlockFormat w_format{};
  Activation activation = Activation::identity;
  bool batch_invariant = false;
};

/// The problem that a call describes. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_EXPORT LinearProblem describe(const LinearArguments& arguments);
[[nodiscard]] TILEWISE_EXPORT LinearProblem describe(const LinearBackwardArguments& arguments);

/// Executes a plan on tensors that describe to the plan's problem (checked); see attention's run().
TILEWISE_EXPORT void run(const Plan& plan, const LinearArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);
TILEWISE_EXPORT void run(const Plan& plan, const LinearBackwardArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);

/// Describe, plan and run in one call; see attention_forward(). linear() takes no offsets or counts, grouped_linear()
/// needs one of them, and linear_backward() is that of both.
TILEWISE_EXPORT void linear(const LinearArguments& arguments, const SelectOptions& select = {}, void* stream = nullptr);
TILEWISE_EXPORT void grouped_linear(const LinearArguments& arguments, const SelectOptions& select = {},
                                    void* stream = nullptr);
TILEWISE_EXPORT void linear_backward(const LinearBackwardArguments& arguments, const SelectOptions& select = {},
                                     void* stream = nullptr);

}  // namespace tilewise
