// Contiguous tensors on the host, of random numbers or zeros, that live as long as a call which is measured.
#pragma once

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <span>
#include <string_view>

#include "array.hpp"

namespace tilewise::tools {

class RandomTensors {
 public:
  /// Of zeros. `name` is in messages alone.
  TensorView add(DType dtype, std::span<const std::int64_t> shape, std::string_view name);
  TensorView add(DType dtype, std::initializer_list<std::int64_t> shape, std::string_view name) {
    return add(dtype, std::span(shape.begin(), shape.size()), name);
  }
  /// Normalised numbers; true everywhere in a boolean one.
  TensorView add_random(DType dtype, std::span<const std::int64_t> shape, std::string_view name);
  TensorView add_random(DType dtype, std::initializer_list<std::int64_t> shape, std::string_view name) {
    return add_random(dtype, std::span(shape.begin(), shape.size()), name);
  }
  void fill(const TensorView& view);

  /// Of all tensors.
  [[nodiscard]] double bytes() const noexcept { return bytes_; }
  /// The memory that a view begins at.
  [[nodiscard]] std::span<const std::byte> memory_of(const TensorView& view) const;

 private:
  std::deque<Array> arrays_;
  std::uint64_t state_ = 1;
  double bytes_ = 0.0;
};

}  // namespace tilewise::tools
