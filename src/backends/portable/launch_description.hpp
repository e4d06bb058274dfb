// Launches as anyone with a bare driver needs them told: the parameter block field by field, and its values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "backends/portable/lowering.hpp"

namespace tilewise::backends::portable {

/// One scalar or pointer of device::KernelParams, the parameter block of every portable kernel.
struct ParameterField {
  std::string name;  ///< "call.q.seq_stride", "call.dbias_shape[2]", "grid.delta"
  std::string type;  ///< as C spells it: "int64_t", "const int32_t*"
  std::size_t offset = 0, size = 0;
  /// The field's value in a block; none for pointers.
  using Value = std::variant<std::monostate, std::int64_t, std::uint64_t, float>;
  [[nodiscard]] Value value_in(const device::KernelParams& params) const;
};

/// Every field, in the order of the offsets.
[[nodiscard]] std::vector<ParameterField> parameter_fields();

/// What Tilewise passes for a call whose tensors are contiguous: everything but addresses, seed and offset.
[[nodiscard]] device::AttentionParams contiguous_params(const Problem& problem);

}  // namespace tilewise::backends::portable
