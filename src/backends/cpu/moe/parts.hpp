// Parts of a layer of experts: one token at one expert each, sorted by expert. What both passes share.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operations/moe/params.hpp"

namespace tilewise::backends::cpu {

/// The place of a part at an expert that is not here.
inline constexpr std::int64_t kNowhere = -1;

/// Carves arrays, 64-byte aligned, out of a workspace; the same code measures and carves.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<std::byte*>(base)) {}
  [[nodiscard]] void* take(std::int64_t count, std::size_t size) {
    void* taken = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (static_cast<std::size_t>(count) * size + 63) / 64 * 64;
    return taken;
  }
  [[nodiscard]] std::int64_t* integers(std::int64_t count) {
    return static_cast<std::int64_t*>(take(count, sizeof(std::int64_t)));
  }
  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

struct Parts {
  std::int64_t *groups,  ///< [num_experts + 1] first parts
      *token, *place;    ///< of each part its token; of each (token, j) its part
  void* factor;          ///< weights of parts, in `real`

  Parts() = default;
  Parts(Carver& carver, std::int64_t parts, std::int64_t experts, DType real);
};

/// Tokens [first, first + count) by expert, in their order and that of j.
void sort_parts(const operations::moe::MoeParams& p, std::int64_t first, std::int64_t count, const Parts& parts);

/// groups: first parts of experts among those of all tokens, [num_experts + 1].
void count_parts(const operations::moe::MoeParams& p, std::int64_t* groups);

[[nodiscard]] std::int64_t expert_of_part(const Parts& parts, std::int64_t experts, std::int64_t part);

}  // namespace tilewise::backends::cpu
