// Memory for one tensor with everything around it guarded: poison between rows, canaries at
// both ends, random strides. Finds reads and writes outside a tensor, and outputs never written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "tilewise/tensor.hpp"
#include "verify/random.hpp"

namespace tilewise::verify {

/// How a Buffer places its elements.
struct Placement {
  std::vector<int> order;         ///< axes from the outermost to the innermost in memory
  std::int64_t padding = 0;       ///< up to so many unused elements after each dimension's extent
  bool strided_last = false;      ///< the innermost axis may have stride 2
  std::int64_t granule = 1;       ///< strides but the innermost are multiples of it
  std::int64_t misalignment = 0;  ///< elements between a 64-byte boundary and the first one
};

/// Natural order and no padding, or anything a caller may hand in; `last_contiguous` as for q, k and v.
[[nodiscard]] Placement random_placement(std::vector<int> natural_order, bool last_contiguous, Random& rng);
/// The same with rows that start on 16 bytes, as the fast paths of GPU kernels want them.
[[nodiscard]] Placement with_aligned_rows(Placement placement, DType dtype);

/// What lies where nothing was stored. NaNs with an unusual payload where there are such.
[[nodiscard]] std::uint64_t poison_of(DType dtype);

/// Owns the bytes of one tensor. The view's data pointer stays valid when the Buffer moves.
class Buffer {
 public:
  Buffer(DType dtype, std::vector<std::int64_t> shape, const Placement& placement);

  [[nodiscard]] const TensorView& view() const { return view_; }
  /// Fills everything, the surroundings included, with one bit pattern.
  void fill(std::uint64_t bits);

  /// Everything, the surroundings included.
  [[nodiscard]] std::span<std::byte> bytes() const { return {const_cast<std::byte*>(bytes_.data()), bytes_.size()}; }

  /// Compares everything with the pattern of the last fill(), skipping the elements of `views`.
  /// Empty, or a sentence that says which byte changed.
  [[nodiscard]] std::string find_stray_write(std::span<const TensorView> views) const;

 private:
  [[nodiscard]] std::byte* begin() const;
  /// Bytes of what fill() writes at once, and how many of them there are.
  [[nodiscard]] std::size_t unit() const;
  [[nodiscard]] std::size_t units() const;

  TensorView view_;
  std::int64_t elements_ = 0;  ///< between the guards
  std::uint64_t fill_ = 0;
  std::vector<std::byte> bytes_;
};

/// Offset in elements of a row-major position, and reading and writing single elements as doubles.
[[nodiscard]] std::int64_t offset_of(const TensorView& view, std::span<const std::int64_t> position);
[[nodiscard]] std::uint64_t bits_at(const TensorView& view, std::int64_t offset);
[[nodiscard]] double value_at(const TensorView& view, std::int64_t offset);
/// Rounds to the view's dtype.
void store_at(const TensorView& view, std::int64_t offset, double value);

/// The same tensor without its first dimensions, which have size 1.
[[nodiscard]] TensorView without_leading(TensorView view, int dimensions);

/// Calls visit(position, offset) for every element in row-major order.
template <typename Visit>
void for_each_element(const TensorView& view, Visit&& visit) {
  const auto rank = static_cast<std::size_t>(view.rank);
  std::int64_t position[kMaxRank] = {};
  for (std::size_t axis = 0; axis < rank; ++axis)
    if (view.shape[axis] <= 0) return;
  for (std::int64_t offset = 0;;) {
    visit(std::span<const std::int64_t>(position, rank), offset);
    std::size_t axis = rank;
    for (; axis > 0; --axis) {
      const std::size_t a = axis - 1;
      offset += view.strides[a];
      if (++position[a] < view.shape[a]) break;
      offset -= view.strides[a] * view.shape[a];
      position[a] = 0;
    }
    if (axis == 0) return;
  }
}

}  // namespace tilewise::verify
