// Quantising numbers to formats of narrow elements with scales, and back: the short way (quantize, dequantize) and the
// planned way (describe, plan, run). Meaning: docs/semantics.md, "Number formats".
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tilewise/any_problem.hpp"
#include "tilewise/block_format.hpp"
#include "tilewise/error.hpp"
#include "tilewise/export.h"
#include "tilewise/plan.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

enum class QuantizePass : std::uint8_t { quantize, dequantize };

/// A value: hashable, comparable, printable. Invariants are checked by validate(), not here.
struct QuantizeProblem {
  QuantizePass pass = QuantizePass::quantize;
  DType dtype = DType::f32;  ///< of the numbers: f32, bf16 or f16
  DeviceType device = DeviceType::cpu;
  BlockFormat format{};
  bool power_of_two = false;
  bool stacked = false;  ///< tensors have the dimension num_experts, each of which is quantised by itself
  std::int64_t num_experts = 1, rows = 0, columns = 0;
  bool unaligned = false;  ///< some row does not start on 16 bytes; the cpu does not care: false there

  friend bool operator==(const QuantizeProblem&, const QuantizeProblem&) = default;
};

[[nodiscard]] TILEWISE_EXPORT const core::OperationInterface& operation_of(const QuantizeProblem* tag) noexcept;

[[nodiscard]] TILEWISE_EXPORT std::size_t hash_value(const QuantizeProblem& problem) noexcept;

/// E.g. "quantize format=mxfp4 dtype=bf16 rows=4096 columns=2048".
[[nodiscard]] TILEWISE_EXPORT std::string to_string(const QuantizeProblem& problem);

TILEWISE_EXPORT void validate(const QuantizeProblem& problem);

/// The elements and scales of x. [num_experts] is there or not: as x has it, all others do, and each expert is
/// quantised by itself. "blocks" is ceil(size / block); 1 where a block has all.
///
/// Scales are those of OCP MX, NVIDIA's of nvfp4, or the greatest magnitude of a block / 448, as docs/semantics.md
/// says; elements are rounded to nearest even and saturate. What is written must share no element with what is read or
/// with itself.
struct QuantizeArguments {
  TensorView x;             ///< f32, bf16 or f16 [num_experts, rows, columns], columns contiguous
  TensorView elements;      ///< written; the format's elements, of the shape of x, columns contiguous
  TensorView scales;        ///< written; [num_experts, blocks of rows, blocks of columns]
  TensorView global_scale;  ///< written; with nvfp4 alone: f32 [num_experts], or of rank 0
  BlockFormat format{};
  /// Of fp8 but mxfp8: each scale is the least power of two that is not smaller. Scales in e8m0 follow OCP MX without.
  bool power_of_two = false;
};

/// out = elements * scales (* global_scale), exact in f32, then rounded to the dtype of out; ±infinity beyond it.
struct DequantizeArguments {
  TensorView elements, scales, global_scale;  ///< as QuantizeArguments has them
  TensorView out;                             ///< written; f32, bf16 or f16, like x
  BlockFormat format{};
  DType dtype = DType::none;  ///< that of out, for whoever makes it; none: f32
};

/// The problem that a call describes. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_EXPORT QuantizeProblem describe(const QuantizeArguments& arguments);
[[nodiscard]] TILEWISE_EXPORT QuantizeProblem describe(const DequantizeArguments& arguments);

/// Executes a plan on tensors that describe to the plan's problem (checked); see attention's run().
TILEWISE_EXPORT void run(const Plan& plan, const QuantizeArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);
TILEWISE_EXPORT void run(const Plan& plan, const DequantizeArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);

/// Describe, plan and run in one call; see attention_forward().
TILEWISE_EXPORT void quantize(const QuantizeArguments& arguments, const SelectOptions& select = {},
                              void* stream = nullptr);
TILEWISE_EXPORT void dequantize(const DequantizeArguments& arguments, const SelectOptions& select = {},
                                void* stream = nullptr);

}  // namespace tilewise
