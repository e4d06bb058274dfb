// Draws them.
#include "random_tensors.hpp"

#include <algorithm>
#include <cstring>

#include "formats/element.hpp"

namespace tilewise::tools {
namespace {

/// Uniform with mean 0 and variance 1: quick to draw, and scores stay in the usual range.
float draw(std::uint64_t& state) {
  constexpr float kHalfWidth = 1.7320508f;  // sqrt(3)
  state = state * 6364136223846793005u + 1442695040888963407u;
  const auto bits = static_cast<std::uint32_t>(state >> 40);  // 24 bits
  return (static_cast<float>(bits) * 0x1p-23f - 1.0f) * kHalfWidth;
}

}  // namespace

TensorView RandomTensors::add(DType dtype, std::span<const std::int64_t> shape, std::string_view name) {
  const Array& array = arrays_.emplace_back(dtype, shape, name);
  bytes_ += static_cast<double>(array.size_bytes());
  return array.view();
}

TensorView RandomTensors::add_random(DType dtype, std::span<const std::int64_t> shape, std::string_view name) {
  const TensorView view = add(dtype, shape, name);
  fill(view);
  return view;
}

/// Large tensors repeat what a few million draws gave: drawing 34 million numbers took half a second, a copy 10 ms.
void RandomTensors::fill(const TensorView& view) {
  constexpr std::int64_t kDrawn = (std::int64_t{1} << 21) + 90;  // no multiple of a row, and even
  auto* const data = static_cast<std::byte*>(view.data);
  // Of packed elements whole bytes repeat.
  const auto bits = static_cast<std::int64_t>(bits_of(view.dtype)), all = view.numel();
  const std::int64_t drawn = std::min(all, kDrawn);
  for (std::int64_t i = 0; i < drawn; ++i) {
    const float number = draw(state_);
    const bool plain = view.dtype == DType::boolean || view.dtype == DType::fp8_e8m0;  // has no negative numbers
    formats::store_element(view.dtype, data, i, plain ? 1.0f : number);
  }
  for (std::int64_t i = drawn; i < all; i += drawn) {
    const std::int64_t bytes = (std::min(drawn, all - i) * bits + 7) / 8;
    std::memcpy(data + i * bits / 8, data, static_cast<std::size_t>(bytes));
  }
}

std::span<const std::byte> RandomTensors::memory_of(const TensorView& view) const {
  const auto owner = std::ranges::find_if(arrays_, [&](const Array& array) { return array.view().data == view.data; });
  return {static_cast<const std::byte*>(view.data), owner->size_bytes()};
}

}  // namespace tilewise::tools
