// Tensor maps that the driver has encoded for a thread. Encoding one takes three calls of the driver, a launch of
// Hopper's kernels has up to six, and most calls have tensors that lie where those of an earlier call did.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu/tensor_map.hpp"

namespace tilewise::gpu {

/// Of one thread. A map that comes to lie in another's place takes it over.
class TensorMapCache {
 public:
  /// A training step of some dozen layers has as many as these; 128 KiB, taken with the first map.
  static constexpr std::size_t kPlaces = 512;

  /// Writes kTensorMapBytes bytes: what `encode` has written for the same map on the same GPU, else what it writes now.
  template <typename Encode>
  void encode(const void* gpu, const TensorMap& map, std::byte* to, const Encode& encode) {
    if (places_.empty()) places_.resize(kPlaces);
    Place& place = places_[place_of(map)];
    if (place.gpu != gpu || place.map != map) {
      place.gpu = nullptr;  // encode() may throw
      encode(place.encoded.data());
      place.gpu = gpu;
      place.map = map;
    }
    std::memcpy(to, place.encoded.data(), kTensorMapBytes);
  }

 private:
  struct Place {
    const void* gpu = nullptr;
    TensorMap map;
    alignas(64) std::array<std::byte, kTensorMapBytes> encoded{};
  };

  static std::size_t place_of(const TensorMap& map) noexcept {
    constexpr std::uint64_t kFactor = 0x9E3779B97F4A7C15u;  // 2^64 by the golden ratio
    constexpr int kShift = 64 - 9;
    static_assert(std::size_t{1} << (64 - kShift) == kPlaces);
    std::uint64_t hash = reinterpret_cast<std::uintptr_t>(map.address);
    for (const std::uint64_t dim : map.dims) hash = (hash ^ dim) * kFactor;
    for (const std::uint64_t stride : map.strides) hash = (hash ^ stride) * kFactor;
    for (const std::uint32_t box : map.box) hash = (hash ^ box) * kFactor;
    return hash >> kShift;
  }

  std::vector<Place> places_;
};

}  // namespace tilewise::gpu
