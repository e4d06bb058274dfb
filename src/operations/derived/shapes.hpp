// From a problem to its tensors: the shape and element type of each, as its schema says them, and which are there. And
// the limits of sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "core/packed.hpp"
#include "core/tensor_checks.hpp"
#include "operations/derived/call.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

/// Calls visit(axis, dimension) for each that a tensor of the problem has, a stacked list's count first.
template <typename Problem, typename Visit>
[[gnu::always_inline]] inline void for_each_axis(const Tensor<Problem>& tensor, const Problem& problem,
                                                 const Visit& visit) {
  int before = 0;
  if (is_stacked(tensor, problem)) visit(before++, *tensor.list.count);
  const Dimensions<Problem>& dimensions = tensor.dimensions;
  if constexpr (requires { problem.layout; }) {
    if (dimensions.order == Dimensions<Problem>::Order::layout) {
      const Axes axes = axes_of(problem.layout);
      if (axes.batch >= 0) visit(before + axes.batch, *dimensions.of[0]);
      visit(before + axes.seq, *dimensions.of[1]);
      visit(before + axes.head, *dimensions.of[2]);
      visit(before + axes.dim, *dimensions.of[3]);
      return;
    }
  }
  for (const Dimension<Problem>* dimension : dimensions.of) {
    if (dimension != nullptr && dimension->is_in(problem)) visit(before++, *dimension);
  }
}

/// What a tensor's rank says about dimensions that it may lack: all of them are there, or none.
template <typename Problem>
void note_rank(Problem& problem, const Tensor<Problem>& tensor, int rank) {
  const bool present = rank >= tensor.dimensions.rank(is_packed(problem));
  for (const Dimension<Problem>* dimension : tensor.dimensions.of)
    if (dimension != nullptr && dimension->present != nullptr) problem.*dimension->present = present;
}

/// Names and sizes, as checks compare and print them.
template <typename Problem>
[[nodiscard]] core::Shape shape_of(const Tensor<Problem>& tensor, const Problem& problem) {
  core::Shape shape;
  for_each_axis(tensor, problem, [&](int axis, const Dimension<Problem>& dimension) {
    shape.dims[static_cast<std::size_t>(axis)] = {dimension.name_in(problem), dimension.size_in(problem)};
    ++shape.rank;
  });
  return shape;
}
/// "[rows, columns]".
[[nodiscard]] inline std::string words_of(const core::Shape& shape) {
  std::string words = "[";
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(shape.rank); ++axis)
    words += core::concat(axis > 0 ? ", " : "", shape.dims[axis].name);
  return words + "]";
}
[[nodiscard]] inline std::vector<std::int64_t> sizes_of(const core::Shape& shape) {
  std::vector<std::int64_t> sizes;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(shape.rank); ++axis)
    sizes.push_back(shape.dims[axis].size);
  return sizes;
}

/// How many of a tensor's types there are.
template <typename Problem>
[[nodiscard]] constexpr std::size_t types_of(const Tensor<Problem>& tensor) {
  std::size_t count = 0;
  while (count < tensor.types.size() && tensor.types[count].of != nullptr) ++count;
  return count;
}

/// How many tensors a role holds where it is given.
template <typename Problem>
[[nodiscard]] std::size_t entries_of(const Tensor<Problem>& tensor, const Problem& problem) {
  if (tensor.list.shapes != nullptr) return (problem.*tensor.list.shapes).size();
  if (tensor.list.entries != nullptr) return tensor.list.entries(problem);
  if (tensor.list.count == nullptr || is_stacked(tensor, problem)) return 1;
  return static_cast<std::size_t>(problem.*tensor.list.count->size);
}

/// Whether calls like the problem's, of which this tensor is, have it.
template <typename Problem>
[[nodiscard]] bool is_given(const Tensor<Problem>& tensor, const Problem& problem) {
  if (tensor.needed != nullptr) return tensor.needed(problem);
  if (tensor.given != nullptr) return problem.*tensor.given;
  if (tensor.list.shapes != nullptr || tensor.list.entries != nullptr) return entries_of(tensor, problem) > 0;
  return tensor.kind.get == nullptr || tensor.kind.get(problem) < types_of(tensor);
}

template <const auto& kSchema, typename Problem>
[[nodiscard]] DType dtype_of(const Tensor<Problem>& tensor, const Problem& problem, std::size_t entry = 0) {
  if (!tensor.like.empty())
    return dtype_of<kSchema>(kTensors<kSchema>[Role<kSchema>::place_of(tensor.like)], problem, entry);
  if (tensor.entry_dtype != nullptr) return tensor.entry_dtype(problem, entry);
  if (tensor.dtype != nullptr) return problem.*tensor.dtype;
  return tensor.types[tensor.kind.get == nullptr ? 0 : tensor.kind.get(problem)].of(problem);
}

/// A row-major tensor without memory.
[[nodiscard]] inline TensorView contiguous(const core::Shape& shape, DType dtype) {
  TensorView view;
  view.dtype = dtype;
  view.rank = shape.rank;
  std::int64_t stride = 1;
  for (auto axis = static_cast<std::size_t>(shape.rank); axis-- > 0;) {
    view.shape[axis] = shape.dims[axis].size;
    view.strides[axis] = stride;
    stride *= view.shape[axis] > 0 ? view.shape[axis] : 1;
    if (core::is_packed(dtype)) stride += stride % 2;  // rows begin on bytes
  }
  return view;
}

/// Of an entry that has a shape of its own.
[[nodiscard]] inline TensorView contiguous(const TableShape& table) {
  core::Shape shape;
  shape.rank = table.rank;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(table.rank); ++axis)
    shape.dims[axis] = {"size", table.shape[axis]};
  return contiguous(shape, table.dtype);
}

/// One of a role's tensors without memory, as compact as the problem says that it lies.
template <const auto& kSchema, typename Problem>
[[nodiscard]] TensorView compact(std::size_t place, const Problem& problem, std::size_t entry = 0) {
  const Tensor<Problem>& tensor = kTensors<kSchema>[place];
  if (tensor.list.shapes != nullptr) return contiguous((problem.*tensor.list.shapes)[entry]);
  if (tensor.list.shape != nullptr) return contiguous(tensor.list.shape(problem, entry));
  core::Shape shape = shape_of(tensor, problem);
  const bool transposed = tensor.transposed != nullptr && problem.*tensor.transposed;
  const auto last = static_cast<std::size_t>(shape.rank - 1);
  if (transposed) std::swap(shape.dims[last - 1], shape.dims[last]);
  TensorView view = contiguous(shape, dtype_of<kSchema>(tensor, problem, entry));
  if (transposed) {
    std::swap(view.shape[last - 1], view.shape[last]);
    std::swap(view.strides[last - 1], view.strides[last]);
  }
  return view;
}

/// Arguments of a problem whose tensors are what `make(place, entry)` gives, for all that it says are there.
template <const auto& kSchema, typename Arguments, typename Problem, typename Make>
[[nodiscard]] Arguments arguments_of(const Problem& problem, const Make& make) {
  Arguments arguments;
  const auto state = [&](const auto& field) {
    if (!field.is_in(problem) || (field.stated != nullptr && !field.stated(problem))) return;
    const auto member = member_in<Arguments>(field.members);
    if constexpr (kLengthOf<decltype(member)> > 0) held(arguments, get<0>(member)) = problem.*field.value;
  };
  apply([&](const auto&... fields) { (state(fields), ...); }, kSchema.fields);
  for_each_member<kSchema>(arguments, [&](std::size_t place, auto& entries) {
    const Tensor<Problem>& tensor = kTensors<kSchema>[place];
    if (!is_given(tensor, problem)) return;
    if constexpr (std::is_same_v<decltype(entries), TensorView&>) {
      entries = make(place, 0);
    } else {
      for (std::size_t n = 0; n < entries_of(tensor, problem); ++n) entries.push_back(make(place, n));
    }
  });
  return arguments;
}

/// Arguments of a problem whose tensors are compact. `locate(view, name)` gives each an address.
template <typename Op, typename Arguments, typename Locate>
[[nodiscard]] Arguments contiguous_arguments(const typename Op::Problem& problem, const Locate& locate) {
  constexpr const auto& kSchema = Op::kSchema;
  return arguments_of<kSchema, Arguments>(problem, [&](std::size_t place, std::size_t entry) {
    TensorView view = compact<kSchema>(place, problem, entry);
    const Tensor<typename Op::Problem>& tensor = kTensors<kSchema>[place];
    const bool listed = tensor.is_list() && !is_stacked(tensor, problem);
    locate(view, listed ? tensor.entry_name(entry) : core::ArgumentName(tensor.name));
    return view;
  });
}

/// What kernels are launched with for such a problem, of tensors that have no memory yet; lists of an operation whose
/// parameters point to them are gone.
template <typename Op>
[[nodiscard]] typename Op::Params contiguous_params(const typename Op::Problem& problem) {
  return Op::Schema::with_arguments(problem, [&]<typename Arguments> {
    const auto located = [](const TensorView&, const core::ArgumentName&) {};
    const auto arguments = contiguous_arguments<Op, Arguments>(problem, located);
    return Op::make_params(typename Op::Call(arguments), problem);
  });
}

template <typename Problem>
[[noreturn, gnu::cold, gnu::noinline]] void refuse_size(std::string_view tensor, const Dimension<Problem>& dimension,
                                                        const Problem& problem) {
  const std::int64_t size = dimension.size_in(problem), least = dimension.least + dimension.beyond;
  const std::string name = tensor.empty() ? core::concat(dimension.name_in(problem), ":")
                                          : core::concat(tensor, ": ", dimension.name_in(problem));
  if (dimension.most < kMostInt32) {
    core::invalid_argument(name, " must be ", least, " to ", dimension.most, " (got ", size, ")");
  }
  if (size < least) core::invalid_argument(name, " must be >= ", least, " (got ", size, ")");
  core::invalid_argument(name, " must be <= ", dimension.most, " (got ", size, ")");
}
/// `tensor` is "q" for a message about "q: batch_size", or empty of what counts a list.
template <typename Problem>
[[gnu::always_inline]] inline void check_size(std::string_view tensor, const Dimension<Problem>& dimension,
                                              const Problem& problem) {
  if (dimension.size == nullptr) return;
  const std::int64_t size = dimension.size_in(problem);
  if (size < dimension.least + dimension.beyond || size > dimension.most) refuse_size(tensor, dimension, problem);
}

/// Throws for a tensor whose elements can't be counted in bytes.
template <typename Problem>
void check_elements(const Tensor<Problem>& tensor, const Problem& problem) {
  std::vector<std::int64_t> sizes = sizes_of(shape_of(tensor, problem));
  if (tensor.list.count != nullptr && !is_stacked(tensor, problem))
    sizes.insert(sizes.begin(), problem.*tensor.list.count->size);
  std::int64_t bytes = 8;
  bool overflow = false;
  std::string product;
  for (const std::int64_t size : sizes) {
    if (size == 0) return;
    overflow |= __builtin_mul_overflow(bytes, size, &bytes);
    product += core::concat(product.empty() ? "" : " * ", size);
  }
  if (overflow) core::invalid_argument(tensor.name, ": must have less than 2^60 elements (got ", product, ")");
}

/// Throws for a size that its dimension does not allow, or a tensor with too many elements. Sizes that the anchor has
/// are its own in messages.
template <const auto& kSchema, typename Problem>
void check_sizes(const Problem& problem) {
  const auto call = static_cast<std::size_t>(problem.*std::remove_cvref_t<decltype(kSchema)>::kKind);
  const auto check = [&problem](const Tensor<Problem>& tensor) {
    if (tensor.list.count != nullptr) check_size("", *tensor.list.count, problem);
    for (const Dimension<Problem>* dimension : tensor.dimensions.of)
      if (dimension != nullptr) check_size(tensor.name, *dimension, problem);
  };
  check(kTensors<kSchema>[kAnchors<kSchema>[call]]);
  for (std::size_t place = 0; place < kTensors<kSchema>.size(); ++place)
    if (kRoles<kSchema>[call][place]) check(kTensors<kSchema>[place]);
  for (std::size_t place = 0; place < kTensors<kSchema>.size(); ++place)
    if (kRoles<kSchema>[call][place]) check_elements(kTensors<kSchema>[place], problem);
}

}  // namespace tilewise::operations::schema
