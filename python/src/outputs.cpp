// Shapes of out and softmax_lse from those of q and v.
#include "outputs.hpp"

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/device.hpp"
#include "core/overlap.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/rules.hpp"
#include "operations/elements.hpp"
#include "operations/layout.hpp"

namespace tilewise::python {
namespace {

/// Where planned views point: describe() wants an address, aligned as real memory is, and never reads it.
alignas(16) constexpr std::byte kNoMemory[16]{};

/// Rows that belong to sequences; all of them where that is not known.
std::int64_t owned_rows(const TensorView& cu_seqlens, std::int64_t total) {
  if (!cu_seqlens.defined() || cu_seqlens.device.type != DeviceType::cpu) return total;
  return static_cast<const std::int32_t*>(cu_seqlens.data)[cu_seqlens.shape[0] - 1];
}

}  // namespace

TensorView contiguous(DType dtype, Device device, int rank, const std::array<std::int64_t, kMaxRank>& shape) {
  TensorView view;
  view.data = const_cast<std::byte*>(kNoMemory);
  view.dtype = dtype;
  view.device = device;
  view.rank = rank;
  view.shape = shape;
  std::int64_t stride = 1;
  for (std::size_t i = static_cast<std::size_t>(rank); i-- > 0;) {
    view.strides[i] = stride;
    if (__builtin_mul_overflow(stride, shape[i] > 0 ? shape[i] : 1, &stride)) stride = 1;  // describe() refuses it
  }
  return view;
}

TensorView in_order_of(const TensorView& like, Layout layout, TensorView view) {
  if (layout != Layout::bhsd || like.rank != 4 || view.rank != 4) return view;
  // An expanded dimension of stride 0 says nothing about the order.
  if (like.strides[1] <= 0 || like.strides[1] >= like.strides[2]) return view;
  view.strides[1] = view.shape[3];
  view.strides[2] = view.shape[1] * view.shape[3];
  return view;
}

bool is_huge(const TensorView& view) {
  constexpr std::int64_t kManyElements = std::int64_t{1} << 28;
  std::int64_t count = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    if (__builtin_mul_overflow(count, view.shape[i], &count)) return true;
  }
  return count > kManyElements;
}

TensorView planned_out(const TensorView& q, const TensorView& v) {
  std::array<std::int64_t, kMaxRank> shape = q.shape;
  if (q.rank > 0 && v.rank > 0) {
    shape[static_cast<std::size_t>(q.rank - 1)] = v.shape[static_cast<std::size_t>(v.rank - 1)];
  }
  return contiguous(operations::attention::default_out_dtype(q.dtype), q.device, q.rank, shape);
}

TensorView planned_lse(const TensorView& q, Layout layout) {
  const operations::Axes axes = operations::axes_of(layout);
  const std::int64_t heads = core::size_at(q, axes.head), rows = core::size_at(q, axes.seq);
  const DType dtype = operations::statistics_dtype(q.dtype);
  if (axes.batch < 0) return contiguous(dtype, q.device, 2, {heads, rows});
  return contiguous(dtype, q.device, 3, {core::size_at(q, axes.batch), heads, rows});
}

void check_given_out(ForwardArguments arguments) {
  arguments.softmax_lse = {};
  core::check_call_apart<operations::Attention>(operations::attention::call_of(arguments), nullptr, 0);
}

void clear_rest(const TensorView& rows, const TensorView& cu_seqlens) {
  if (!rows.defined()) return;
  const auto row_bytes = static_cast<std::size_t>(rows.strides[0]) * size_of(rows.dtype);
  const std::int64_t owned = owned_rows(cu_seqlens, rows.shape[0]);
  const auto first = static_cast<std::size_t>(owned), rest = static_cast<std::size_t>(rows.shape[0] - owned);
  if (rest > 0) std::memset(static_cast<std::byte*>(rows.data) + first * row_bytes, 0, rest * row_bytes);
}

void clear_rest_of_lse(const TensorView& softmax_lse, const TensorView& cu_seqlens) {
  if (!softmax_lse.defined() || !cu_seqlens.defined()) return;
  const std::int64_t total = softmax_lse.shape[1], owned = owned_rows(cu_seqlens, total);
  for (std::int64_t head = 0; head < softmax_lse.shape[0]; ++head) {
    for (std::int64_t row = owned; row < total; ++row) {
      operations::store_element(softmax_lse.dtype, softmax_lse.data, head * softmax_lse.strides[0] + row,
                                -std::numeric_limits<double>::infinity());
    }
  }
}

namespace {

/// Fills a contiguous tensor on a GPU with one 32-bit pattern, or with zeros whatever its size.
void fill_on_device(const TensorView& view, std::uint32_t word, void* stream) {
  const std::size_t bytes = static_cast<std::size_t>(view.numel()) * size_of(view.dtype);
  core::device_system(view.device.type)->fill(view.device.index, view.data, word, bytes, stream);
}

bool packed_on_device(const TensorView& view, const TensorView& cu_seqlens) {
  return view.defined() && cu_seqlens.defined() && view.device.type != DeviceType::cpu;
}

}  // namespace

void clear_before(const TensorView& rows, const TensorView& cu_seqlens, void* stream) {
  if (packed_on_device(rows, cu_seqlens)) fill_on_device(rows, 0, stream);
}

void clear_lse_before(const TensorView& softmax_lse, const TensorView& cu_seqlens, void* stream) {
  constexpr auto kMinusInfinity = std::bit_cast<std::uint32_t>(-std::numeric_limits<float>::infinity());
  if (packed_on_device(softmax_lse, cu_seqlens)) fill_on_device(softmax_lse, kMinusInfinity, stream);
}

}  // namespace tilewise::python
