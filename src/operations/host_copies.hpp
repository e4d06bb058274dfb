// Integers in a GPU's memory, copied to the host for checks of their values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device.hpp"
#include "core/tensor_checks.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::operations {

/// Copies of what a call's kernels read, for the host: it waits for `stream`.
class HostCopies {
 public:
  HostCopies(DeviceType type, int index, void* stream) : type_(type), index_(index), stream_(stream) {}

  template <typename T>
  void fetch(const T*& data, const TensorView& view) {
    if (data == nullptr || view.numel() == 0) return;
    // From the lowest element to the highest one, gaps between rows included. Strides may be negative.
    std::int64_t low = 0, high = 0;
    for (int axis = 0; axis < view.rank; ++axis) {
      const std::int64_t extent = (core::size_at(view, axis) - 1) * core::stride_at(view, axis);
      (extent < 0 ? low : high) += extent;
    }
    const auto size = static_cast<std::int64_t>(size_of(view.dtype));
    std::vector<std::byte>& copy = copies_.emplace_back(static_cast<std::size_t>((high - low + 1) * size));
    const auto* first = static_cast<const std::byte*>(view.data) + low * size;
    core::device_system(type_)->copy_to_host(index_, copy.data(), first, copy.size(), stream_);
    data = reinterpret_cast<const T*>(copy.data() - low * size);
  }
  void fetch(const void*& data, const TensorView& view) {
    const auto* bytes = static_cast<const std::byte*>(data);
    fetch(bytes, view);
    data = bytes;
  }

 private:
  DeviceType type_;
  int index_;
  void* stream_;
  std::vector<std::vector<std::byte>> copies_;
};

}  // namespace tilewise::operations
