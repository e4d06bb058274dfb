// Array: a tensor that owns its memory, for the command line's inputs and outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tilewise/tensor.hpp"

namespace tilewise::tools {

/// Memory that begins on a cache line, as tensors of real programs mostly do.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kAlignment{64};

  CacheLineAllocator() = default;
  template <typename U>
  explicit CacheLineAllocator(const CacheLineAllocator<U>&) noexcept {}
  [[nodiscard]] T* allocate(std::size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), kAlignment));
  }
  void deallocate(T* pointer, std::size_t) noexcept { ::operator delete(pointer, kAlignment); }
  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) = default;
};
using Bytes = std::vector<std::byte, CacheLineAllocator<std::byte>>;

/// A row-major tensor that owns its elements. A default-constructed one means "not given".
class Array {
 public:
  Array() = default;
  /// Zero-filled. Throws Error where the shape has too many dimensions or does not fit into
  /// memory; `name` stands at the beginning of its message.
  Array(DType dtype, std::span<const std::int64_t> shape, std::string_view name);
  Array(DType dtype, std::initializer_list<std::int64_t> shape, std::string_view name)
      : Array(dtype, std::span(shape.begin(), shape.size()), name) {}
  /// Takes `bytes`, whose size must be that of the shape.
  Array(DType dtype, std::span<const std::int64_t> shape, Bytes bytes, std::string_view name);

  Array(Array&& other) noexcept : bytes_(std::move(other.bytes_)), view_(std::exchange(other.view_, {})) {}
  Array& operator=(Array&& other) noexcept {
    bytes_ = std::move(other.bytes_);
    view_ = std::exchange(other.view_, {});
    return *this;
  }

  /// Valid while the array lives; undefined for an array that was not given.
  [[nodiscard]] const TensorView& view() const noexcept { return view_; }
  [[nodiscard]] bool defined() const noexcept { return view_.defined(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_.size(); }

 private:
  Bytes bytes_;
  TensorView view_;
};

/// Zeros of the same dtype and shape.
[[nodiscard]] Array zeros_like(const TensorView& view, std::string_view name);

/// "(2, 3)": a shape as NumPy prints it.
[[nodiscard]] std::string print_shape(std::span<const std::int64_t> shape);

/// The dimensions of a view.
[[nodiscard]] inline std::span<const std::int64_t> shape_of(const TensorView& view) {
  return {view.shape.data(), static_cast<std::size_t>(view.rank)};
}

}  // namespace tilewise::tools
