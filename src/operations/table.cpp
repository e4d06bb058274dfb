// The framework's table of operations.
#include <array>
#include <span>

#include "core/operation.hpp"
#include "operations/list.hpp"

namespace tilewise::core {

std::span<const OperationInterface* const> operation_table() {
  static const auto table = [] {
    std::array<const OperationInterface*, operations::All::kSize> rows{};
    std::size_t next = 0;
    operations::All::for_each([&]<typename Traits> {
      constexpr const typename Traits::Problem* kTag = nullptr;
      rows[next++] = &operation_of(kTag);
    });
    return rows;
  }();
  return table;
}

}  // namespace tilewise::core
