// Guarded tensor memory: placement, poison and the search for stray writes.
#include "verify/buffer.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/message.hpp"
#include "device/common/float16.h"
#include "device/common/float8.h"

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
  placement.granule = 16 / static_cast<std::int64_t>(size_of(dtype));
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
    default:
      return 0x7A7A7A7Au;
  }
}

Buffer::Buffer(DType dtype, std::vector<std::int64_t> shape, const Placement& placement) {
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
  bytes_.resize(static_cast<std::size_t>(elements_) * size_of(dtype) + 2 * kGuardBytes + kAlignment);
  view_.data = begin() + kGuardBytes + static_cast<std::size_t>(placement.misalignment) * size_of(dtype);
  fill(poison_of(dtype));
}

std::byte* Buffer::begin() const {
  auto* start = const_cast<std::byte*>(bytes_.data());
  const std::size_t over = reinterpret_cast<std::uintptr_t>(start) % kAlignment;
  return over == 0 ? start : start + (kAlignment - over);
}

void Buffer::fill(std::uint64_t bits) {
  fill_ = bits;
  const std::size_t size = size_of(view_.dtype);
  const std::size_t count = static_cast<std::size_t>(elements_) + 2 * kGuardBytes / size;
  for (std::size_t i = 0; i < count; ++i) copy_bits(begin() + i * size, &bits, size);
}

std::string Buffer::find_stray_write(std::span<const TensorView> views) const {
  const std::size_t size = size_of(view_.dtype);
  const std::size_t count = static_cast<std::size_t>(elements_) + 2 * kGuardBytes / size;
  std::vector<bool> inside(count);
  for (const TensorView& view : views) {
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
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  return read_bits(static_cast<const std::byte*>(view.data) + offset * size, static_cast<std::size_t>(size));
}

double value_at(const TensorView& view, std::int64_t offset) {
  const std::uint64_t bits = bits_at(view, offset);
  switch (view.dtype) {
    case DType::f32:
      return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits));
    case DType::bf16:
      return device::bf16_to_float(static_cast<std::uint16_t>(bits));
    case DType::f16:
      return device::f16_to_float(static_cast<std::uint16_t>(bits));
    case DType::i32:
      return static_cast<std::int32_t>(bits);
    case DType::f64:
      return __builtin_bit_cast(double, bits);
    case DType::fp8_e4m3:
      return device::e4m3_to_float(static_cast<std::uint8_t>(bits));
    default:
      return static_cast<double>(static_cast<std::int64_t>(bits));
  }
}

void store_at(const TensorView& view, std::int64_t offset, double value) {
  std::uint64_t bits = 0;
  switch (view.dtype) {
    case DType::f32:
      bits = __builtin_bit_cast(std::uint32_t, static_cast<float>(value));
      break;
    case DType::bf16:
      bits = device::float_to_bf16(static_cast<float>(value));
      break;
    case DType::f16:
      bits = device::float_to_f16(static_cast<float>(value));
      break;
    case DType::f64:
      bits = __builtin_bit_cast(std::uint64_t, value);
      break;
    case DType::fp8_e4m3:
      bits = device::float_to_e4m3(static_cast<float>(value));
      break;
    default:
      bits = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  }
  const auto size = static_cast<std::int64_t>(size_of(view.dtype));
  copy_bits(static_cast<std::byte*>(view.data) + offset * size, &bits, static_cast<std::size_t>(size));
}

TensorView without_leading(TensorView view, int dimensions) {
  view.rank -= dimensions;
  std::copy(view.shape.begin() + dimensions, view.shape.end(), view.shape.begin());
  std::copy(view.strides.begin() + dimensions, view.strides.end(), view.strides.begin());
  return view;
}

}  // namespace tilewise::verify
