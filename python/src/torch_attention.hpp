// What the kernels of attention's torch operators share.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/attention.hpp"
#include "torch_kernel.hpp"
#include "torch_shim.hpp"
#include "torch_stack.hpp"

namespace tilewise::python {

inline constexpr const char* kForwardTensors = "Tensor q, Tensor k, Tensor v";
inline constexpr const char* kBackwardTensors =
    "Tensor dout, Tensor? dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse";

/// Those of calls with functions of scores.
[[nodiscard]] std::vector<TorchOperator> function_operators();

/// The options form and softmax_scale, which come first in all short schemas.
[[nodiscard]] AttentionOptions plain_options(torch_shim::StackReader& stack);

/// Allocates and computes out, and softmax_lse where `lse` is not null.
void run_forward(ForwardArguments arguments, const SelectOptions& select, torch_shim::Tensor* out,
                 torch_shim::Tensor* lse);

/// The tensors of a backward call, in the order of its schemas, owned until the kernel returns.
struct BackwardTensors {
  torch_shim::Tensor dout, dlse, q, k, v, out, softmax_lse;

  [[nodiscard]] static BackwardTensors read(torch_shim::StackReader& stack);
  [[nodiscard]] BackwardArguments arguments(AttentionOptions options) const;
};

/// dq, dk, dv, dbias and dsink; the short operators have the first three.
using Needed = std::array<bool, 5>;
using Gradients = std::array<torch_shim::Tensor, 5>;
inline constexpr std::size_t kPlainGradients = 3;

/// A gradient shaped and stored like `like` where wanted, otherwise a tensor [0] of q's kind.
[[nodiscard]] torch_shim::Tensor gradient(const TensorView& q, const TensorView& like, Layout layout, bool wanted,
                                          std::string_view name, TensorView* view);
/// Allocates the first `count` gradients and computes those that are needed.
[[nodiscard]] Gradients run_backward(BackwardArguments a, const Needed& needed, std::size_t count,
                                     const SelectOptions& select);
void give(Gradients& gradients, std::size_t count, torch_shim::StableIValue* stack);

}  // namespace tilewise::python
