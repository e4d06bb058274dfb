// Guarded tensor memory: placement, poison and the search for stray writes.
#include "verify/buffer.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/message.hpp"
#include "core/packed.hpp"
#include "device/common/float4.h"
#include "formats/element.hpp"

namespace tilewise::verify {
namespace {

constexpr std::size_t kGuardBytes = 512, kAlignment = 64;

/// Copies an element of 1, 2, 4 or 8 bytes. Sanitizers check a memcpy of a size they don't know by a call.
void copy_bits(void* target, const void* source, std::size_t size) {
  switch (size) {
    case 1:
      std::memcpy(target, source, 1);
      break;
    case 2:
      std::memcpy(target, source, 2);
      break;
    case 4:
      std::memcpy(target, source, 4);
      break;
    default:
      std::memcpy(target, source, 8);
  }
}

std::uint64_t read_bits(const std::byte* address, std::size_t size) {
  std::uint64_t bits = 0;
  copy_bits(&bits, address, size);
  return bits;
}

}  // namespace

Placement random_placement(std::vector<int> natural_order, bool last_contiguous, Random& rng) {
  Placement placement{std::move(natural_order)};
  if (rng.chance(0.35)) return placement;
  if (rng.chance(0.4)) {
    const std::size_t movable = placement.order.size() - (last_contiguous && !placement.order.empty() ? 1 : 0);
    for (std::size_t i = movable; i > 1; --i)
      std::swap(placement.order[i - 1],
                placement.order[static_cast<std::size_t>(rng.integer(0, static_cast<std::int64_t>(i) - 1))]);
  }
  if (rng.chance(0.7)) placement.padding = rng.pick<std::int64_t>({1, 3, 8, 40});
  placement.strided_last = !last_contiguous && rng.chance(0.3);
  placement.misalignment = rng.chance(0.4) ? rng.integer(1, 15) : 0;
  return placement;
}

Placement with_aligned_rows(Placement placement, DType dtype) {
  placement.granule = 128 / static_cast<std::int64_t>(bits_of(dtype));
  placement.misalignment -= placement.misalignment % placement.granule;
  return placement;
}

std::uint64_t poison_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return 0xFFC5A5A5u;
    case DType::bf16:
      return 0xFFE5u;
    case DType::f16:
      return 0xFEA5u;
    case DType::f64:
      return 0xFFF8A5A5A5A5A5A5u;
    case DType::boolean:
      return 1;
    case DType::i32:
    case DType::i64:
      return 0x7A7A7A7Au;
    case DType::fp8_e4m3:
      return 0xFFu;
    case DType::fp8_e5m2:
      return 0xFEu;
    case DType::fp4_e2m1:
      return 0xAu;
    default:
      return 0x7Au;
  }
}

Buffer::Buffer(DType dtype, std::vector<std::int64_t> shape, const Placement& where) {
  Placement placement = where;
  if (core::is_packed(dtype)) {  // rows begin on bytes, and elements of one share them
    placement.granule += placement.granule % 2;
    placement.misalignment += placement.misalignment % 2;
    placement.strided_last = false;
  }
  view_.dtype = dtype;
  view_.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view_.shape.begin());
  std::int64_t stride = placement.strided_last ? 2 : 1;
  for (auto axis = placement.order.rbegin(); axis != placement.order.rend(); ++axis) {
    view_.strides[static_cast<std::size_t>(*axis)] = stride;
    // Padding differs from axis to axis, and odd sizes misalign rows.
    const std::int64_t pad = placement.padding == 0 ? 0 : placement.padding + static_cast<std::int64_t>(*axis);
    stride = stride * std::max<std::int64_t>(1, shape[static_cast<std::size_t>(*axis)]) + pad;
    stride = (stride + placement.granule - 1) / placement.granule * placement.granule;
  }
  elements_ = stride + placement.misalignment;
  const auto bytes = [dtype](std::int64_t elements) {
    return (static_cast<std::size_t>(elements) * bits_of(dtype) + 7) / 8;
  };
  bytes_.resize(bytes(elements_) + 2 * kGuardBytes + kAlignment);
  view_.data = begin() + kGuardBytes + bytes(placement.misalignment);
  fill(poison_of(dtype));
}

std::byte* Buffer::begin() const {
  auto* start = const_cast<std::byte*>(bytes_.data());
  const std::size_t over = reinterpret_cast<std::uintptr_t>(start) % kAlignment;
  return over == 0 ? start : start + (kAlignment - over);
}

void Buffer::fill(std::uint64_t bits) {
  // A packed dtype is filled byte by byte, and looked at so.
  fill_ = core::is_packed(view_.dtype) ? bits * 0x11u : bits;
  const std::size_t size = unit();
  for (std::size_t i = 0; i < units(); ++i) copy_bits(begin() + i * size, &fill_, size);
}

std::size_t Buffer::unit() const { return core::is_packed(view_.dtype) ? 1 : size_of(view_.dtype); }

std::size_t Buffer::units() const {
  return ((static_cast<std::size_t>(elements_) * bits_of(view_.dtype) + 7) / 8 + 2 * kGuardBytes) / unit();
}

std::string Buffer::find_stray_write(std::span<const TensorView> views) const {
  const std::size_t size = unit(), count = units();
  std::vector<bool> inside(count);
  for (const TensorView& given : views) {
    const TensorView view = core::is_packed(given.dtype) ? core::bytes_of(given) : given;
    const std::byte* data = static_cast<const std::byte*>(view.data);
    for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
      inside[static_cast<std::size_t>((data - begin()) / static_cast<std::ptrdiff_t>(size) + offset)] = true;
    });
  }
  const std::uint64_t expected = fill_ & (size == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * size)) - 1);
  for (std::size_t i = 0; i < count; ++i) {
    if (inside[i] || read_bits(begin() + i * size, size) == expected) continue;
    const auto first = (static_cast<const std::byte*>(view_.data) - begin()) / static_cast<std::ptrdiff_t>(size);
    return core::concat("memory outside the tensor changed, ", static_cast<std::int64_t>(i) - first,
                        " elements from its first");
  }
  return {};
}

std::int64_t offset_of(const TensorView& view, std::span<const std::int64_t> position) {
  return std::inner_product(position.begin(), position.end(), view.strides.begin(), std::int64_t{0});
}

std::uint64_t bits_at(const TensorView& view, std::int64_t offset) {
  if (core::is_packed(view.dtype)) return device::e2m1_at(static_cast<const std::uint8_t*>(view.data), offset);
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  return read_bits(static_cast<const std::byte*>(view.data) + offset * size, static_cast<std::size_t>(size));
}

double value_at(const TensorView& view, std::int64_t offset) {
  return formats::load_element(view.dtype, view.data, offset);
}

void store_at(const TensorView& view, std::int64_t offset, double value) {
  formats::store_element(view.dtype, view.data, offset, value);
}

TensorView without_leading(TensorView view, int dimensions) {
  view.rank -= dimensions;
  std::copy(view.shape.begin() + dimensions, view.shape.end(), view.shape.begin());
  std::copy(view.strides.begin() + dimensions, view.strides.end(), view.strides.begin());
  return view;
}

}  // namespace tilewise::verify
