// Whether strided tensors share memory, by their addresses alone, and the check that what a call writes
// keeps to itself. Exact: views that interleave in one storage without sharing an element pass.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "core/tensor_checks.hpp"

namespace tilewise::core {

/// Of a call, on either side.
inline constexpr std::size_t kMostTensors = 32;

/// Whether some byte belongs to both tensors. Views of sizes and strides so odd that this cannot be told in a
/// hundred thousand steps count as sharing.
[[nodiscard]] bool share_memory(const TensorView& a, const TensorView& b);

/// Whether two elements of one tensor share a byte; as above for very odd ones.
[[nodiscard]] bool overlaps_itself(const TensorView& view);

/// A tensor and the argument that it is. Borrows the view.
struct NamedTensor {
  std::string_view name;
  const TensorView* view = nullptr;

  NamedTensor() = default;
  NamedTensor(std::string_view argument, const TensorView& tensor) : name(argument), view(&tensor) {}
};

/// Throws an Error that names both where an output shares memory with an input or another output. Undefined tensors
/// and those without elements share nothing. That an output does not overlap itself is check_writable()'s.
/// At most kMostTensors outputs.
void check_apart(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs);

/// The same for everything that a call reads and writes, and for `workspace_size` bytes of scratch memory that the
/// caller gave (null: none). Every run makes this check, so it costs a comparison of ranges for each pair.
template <typename Traits>
void check_call_apart(const typename Traits::Call& call, void* workspace, std::size_t workspace_size) {
  std::array<NamedTensor, kMostTensors> outputs, inputs;
  std::size_t num_outputs = 0, num_inputs = 0;
  Traits::for_each_tensor(call, [&](std::string_view name, const TensorView& view, Access access) {
    if (!view.defined()) return;
    (access == Access::read ? inputs[num_inputs++] : outputs[num_outputs++]) = {name, view};
  });
  TensorView scratch;
  if (workspace != nullptr) {
    scratch = TensorView(workspace, DType::u8, {static_cast<std::int64_t>(workspace_size)});
    outputs[num_outputs++] = {"workspace", scratch};
  }
  check_apart(std::span(outputs).first(num_outputs), std::span(inputs).first(num_inputs));
}

}  // namespace tilewise::core
