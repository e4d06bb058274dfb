// What cuTensorMapEncodeTiled asks of a map, and rows of boxes.
#include "backends/emulation/host_tensor_map.hpp"

#include <limits>

#include "core/message.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::emulation {
namespace {

constexpr std::uint64_t kUnit = 16;  // of addresses, strides and the innermost extent of a box

void require(bool fine, const std::string& what) {
  if (!fine) throw Error(ErrorCode::runtime, core::concat("emulation: a tensor map's ", what));
}

std::size_t most_row_bytes(gpu::Swizzle swizzle) {
  switch (swizzle) {
    case gpu::Swizzle::bytes32:
      return 32;
    case gpu::Swizzle::bytes64:
      return 64;
    case gpu::Swizzle::bytes128:
      return 128;
    case gpu::Swizzle::none:
      break;
  }
  return std::numeric_limits<std::size_t>::max();
}

}  // namespace

std::size_t HostTensorMap::box_rows() const {
  std::size_t rows = 1;
  for (std::size_t i = 1; i < rank; ++i) rows *= box[i];
  return rows;
}

HostTensorMap::Row HostTensorMap::row(const std::array<std::int32_t, 5>& at, std::size_t index) const {
  std::byte* start = address;
  for (std::size_t i = 1; i < rank; ++i) {
    const std::int64_t place = std::int64_t{at[i]} + static_cast<std::int64_t>(index % box[i]);
    index /= box[i];
    if (place < 0 || place >= std::int64_t{dims[i]}) return {nullptr, 0, 0};
    start += place * static_cast<std::int64_t>(strides[i - 1]);
  }
  const std::int64_t first = std::max<std::int64_t>(at[0], 0);
  const std::int64_t last = std::min<std::int64_t>(std::int64_t{at[0]} + box[0], dims[0]);
  if (first >= last) return {nullptr, 0, 0};
  return {start + first * element_bytes, static_cast<std::size_t>(first - at[0]),
          static_cast<std::size_t>(last - first)};
}

HostTensorMap encode_host_map(const gpu::TensorMap& map) {
  constexpr std::uint64_t kMostExtent = std::uint64_t{1} << 32, kMostStride = std::uint64_t{1} << 40;
  constexpr std::uint32_t kMostBox = 256;
  HostTensorMap to;
  require(map.rank >= 1 && map.rank <= 5, core::concat("rank must be from 1 to 5 (got ", map.rank, ")"));
  to.address = static_cast<std::byte*>(map.address);
  to.rank = static_cast<std::uint16_t>(map.rank);
  to.element_bytes = static_cast<std::uint16_t>(size_of(map.dtype));
  to.swizzle = map.swizzle;
  require(map.address != nullptr && reinterpret_cast<std::uintptr_t>(map.address) % kUnit == 0,
          "address must be on 16 bytes");
  for (std::size_t i = 0; i < to.rank; ++i) {
    require(map.dims[i] >= 1 && map.dims[i] < kMostExtent,
            core::concat("dims[", i, "] must be from 1 to 2^32 - 1 (got ", map.dims[i], ")"));
    require(map.box[i] >= 1 && map.box[i] <= kMostBox,
            core::concat("box[", i, "] must be from 1 to 256 (got ", map.box[i], ")"));
    to.dims[i] = static_cast<std::uint32_t>(map.dims[i]);
    to.box[i] = map.box[i];
    if (i == 0) continue;
    require(map.strides[i - 1] % kUnit == 0 && map.strides[i - 1] < kMostStride,
            core::concat("strides[", i - 1, "] must be a multiple of 16 below 2^40 (got ", map.strides[i - 1], ")"));
    to.strides[i - 1] = map.strides[i - 1];
  }
  require(to.row_bytes() % kUnit == 0 && to.row_bytes() <= most_row_bytes(map.swizzle),
          core::concat("box[0] must be multiples of 16 bytes that the swizzle holds (got ", to.row_bytes(), ")"));
  return to;
}

}  // namespace tilewise::backends::emulation
