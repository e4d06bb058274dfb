// Which rows belong to a group, whatever numbers the offsets or counts in device memory are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "operations/linear/params.hpp"

namespace tilewise::operations::linear {

/// Visits the groups' rows in order. Offsets are clamped to the rows there are and never fall, so that no row is two
/// groups'; a negative count is 0.
class Groups {
 public:
  explicit Groups(const LinearParams& p) : p_(p), rows_(p.x.rows) {
    if (p.groups.data != nullptr && !p.groups_counted) end_ = std::clamp<std::int64_t>(number(0), 0, rows_);
  }

  /// Where the next group begins and, after next(), where the last one ended.
  [[nodiscard]] std::int64_t end() const { return end_; }

  /// The end of the next group.
  std::int64_t next() {
    if (p_.groups.data == nullptr) return end_ = rows_;
    ++group_;
    if (p_.groups_counted)
      end_ += std::clamp<std::int64_t>(number(group_ - 1), 0, rows_ - end_);
    else
      end_ = std::clamp<std::int64_t>(number(group_), end_, rows_);
    return end_;
  }

 private:
  [[nodiscard]] std::int64_t number(std::int64_t index) const {
    return load_integer(p_.groups.dtype, p_.groups.data, index * p_.groups.stride);
  }

  const LinearParams& p_;
  std::int64_t rows_, group_ = 0, end_ = 0;
};

}  // namespace tilewise::operations::linear
