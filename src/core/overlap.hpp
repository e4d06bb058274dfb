// Whether strided tensors share memory, by their addresses alone, and the check that what a call writes
// keeps to itself. Exact: views that interleave in one storage without sharing an element pass.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/tensor_checks.hpp"
#include "core/visibility.hpp"

namespace tilewise::core {

/// Of most calls, on either side: checking them allocates nothing.
inline constexpr std::size_t kMostTensors = 32;

/// Whether some byte belongs to both tensors. Views of sizes and strides so odd that this cannot be told in a
/// hundred thousand steps count as sharing.
[[nodiscard]] bool share_memory(const TensorView& a, const TensorView& b);

/// Whether two elements of one tensor share a byte; as above for very odd ones.
[[nodiscard]] bool overlaps_itself(const TensorView& view);

/// A tensor and the argument that it is. Borrows the view.
struct NamedTensor {
  ArgumentName name;
  const TensorView* view = nullptr;

  NamedTensor() = default;
  NamedTensor(const ArgumentName& argument, const TensorView& tensor) : name(argument), view(&tensor) {}
};

/// Any number of them, without memory of its own up to kMostTensors.
class TensorList {
 public:
  void add(const ArgumentName& name, const TensorView& view) {
    if (count_ < kMostTensors) {
      std::construct_at(few() + count_++, name, view);
      return;
    }
    if (many_.empty()) many_.assign(few(), few() + count_);
    many_.emplace_back(name, view);
  }
  [[nodiscard]] std::span<const NamedTensor> tensors() const {
    return many_.empty() ? std::span(few(), count_) : std::span(many_);
  }

 private:
  [[nodiscard]] NamedTensor* few() { return reinterpret_cast<NamedTensor*>(few_.data()); }
  [[nodiscard]] const NamedTensor* few() const { return reinterpret_cast<const NamedTensor*>(few_.data()); }

  /// Of the first count_: making all of them took half of checking a call.
  alignas(NamedTensor) std::array<std::byte, kMostTensors * sizeof(NamedTensor)> few_;
  std::vector<NamedTensor> many_;  ///< all of them, once they are more than fit
  std::size_t count_ = 0;
};

/// Throws an Error that names both where an output shares memory with an input or another output. Undefined tensors
/// and those without elements share nothing. That an output does not overlap itself is check_writable()'s.
TILEWISE_INTERNAL void check_apart(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs);

/// The same for everything that a call reads and writes, and for `workspace_size` bytes of scratch memory that the
/// caller gave (null: none). Every run makes this check, so it costs a comparison of ranges for each pair.
template <typename Traits>
void check_call_apart(const typename Traits::Call& call, void* workspace, std::size_t workspace_size) {
  TensorList outputs, inputs;
  Traits::for_each_tensor(call, [&](const ArgumentName& name, const TensorView& view, Access access) {
    if (view.defined()) (access == Access::read ? inputs : outputs).add(name, view);
  });
  TensorView scratch;
  if (workspace != nullptr && workspace_size > 0) {
    scratch = TensorView(workspace, DType::u8, {static_cast<std::int64_t>(workspace_size)});
    outputs.add("workspace", scratch);
  }
  check_apart(outputs.tensors(), inputs.tensors());
}

}  // namespace tilewise::core
