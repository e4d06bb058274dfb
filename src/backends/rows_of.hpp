// Rows of the dispatch table that differ in their operation alone.
#pragma once

#include <tuple>
#include <vector>

#include "core/implementation.hpp"

namespace tilewise::backends {

/// One row of each type, made of the same arguments.
template <typename... Rows>
class RowsOf {
 public:
  template <typename... Args>
  explicit RowsOf(const Args&... args) : rows_{Rows(args...)...} {}

  void append_to(std::vector<const core::Implementation*>& table) const {
    std::apply([&table](const auto&... row) { (table.push_back(&row), ...); }, rows_);
  }

 private:
  std::tuple<Rows...> rows_;
};

}  // namespace tilewise::backends
