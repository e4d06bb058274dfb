// Whether strided tensors share memory, by their addresses alone, and the check that what a call writes
// keeps to itself. Exact: views that interleave in one storage without sharing an element pass.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "core/call.hpp"

namespace tilewise::core {

/// Whether some byte belongs to both tensors. Views of sizes and strides so odd that this cannot be told in a
/// hundred thousand steps count as sharing.
[[nodiscard]] bool share_memory(const TensorView& a, const TensorView& b);

/// Whether two elements of one tensor share a byte; as above for very odd ones.
[[nodiscard]] bool overlaps_itself(const TensorView& view);

/// A tensor and the argument that it is.
struct NamedTensor {
  std::string_view name;
  const TensorView& view;
};

/// Throws an Error that names both where an output shares memory with an input or another output. Undefined tensors
/// and those without elements share nothing. That an output does not overlap itself is check_writable()'s.
void check_apart(std::span<const NamedTensor> outputs, std::span<const NamedTensor> inputs);

/// The same for everything that a call reads and writes, and for `workspace_size` bytes of scratch memory that the
/// caller gave (null: none). Every run makes this check, so it costs a comparison of ranges for each pair.
void check_apart(const Call& call, void* workspace, std::size_t workspace_size);

}  // namespace tilewise::core
