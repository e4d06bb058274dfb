// From a call to its problem by the schema: every tensor's presence, device, element type, shape, strides and data are
// checked, and what the problem says about them is filled in. Allocates only to report an error.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "core/names.hpp"
#include "core/tensor_checks.hpp"
#include "core/visibility.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/fields.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

/// Throws unless `dtype` is among `allowed`; `own` of them, where one is, is that of the anchor.
TILEWISE_INTERNAL void check_dtype_among(DType dtype, const core::ArgumentName& name, std::span<const DType> allowed,
                                         DType own, std::string_view anchor);

template <const auto& kSchema>
class Describer {
 public:
  using Call = CallOf<kSchema>;
  using Problem = typename Call::Problem;

  explicit Describer(const Call& call) : Describer(call, call.stated()) {}
  /// `begun` is what the call states, and what an operation has noted by hand of the tensors together.
  Describer(const Call& call, Problem&& begun) : call_(call), p_(std::move(begun)), anchor_(call.anchor()) {}

  /// Not in its normal form yet.
  Problem describe() && {
    constexpr auto kKind = std::remove_cvref_t<decltype(kSchema)>::kKind;
    p_.*kKind = static_cast<std::remove_cvref_t<decltype(p_.*kKind)>>(call_.index());
    if constexpr (requires { p_.layout; }) (void)core::value_at<Layout>("layout", static_cast<std::int64_t>(p_.layout));
    device_ = call_.one_at(anchor_).device;
    p_.device = device_.type;
    count_lists();
    say_what_is_stated();
    note_rank(p_, row(anchor_), call_.one_at(anchor_).rank);
    for_each_place<kSchema>([this](auto place) {
      if (place == anchor_) describe_at<place>();
    });
    note_what_is_given();
    for_each_place<kSchema>([this](auto place) {
      constexpr bool kMayLack = kRow<place>.optional && kRow<place>.needed == nullptr;
      if (place != anchor_ && (!kMayLack || is_given(place))) describe_at<place>();
    });
    return std::move(p_);
  }

 private:
  using Row = Tensor<Problem>;
  template <std::size_t place>
  static constexpr const Row& kRow = kTensors<kSchema>[place];
  [[nodiscard]] static const Row& row(std::size_t place) { return kTensors<kSchema>[place]; }
  [[nodiscard]] std::span<const TensorView> entries(std::size_t place) const { return call_.entries(place); }
  [[nodiscard]] std::string_view anchor_name() const { return row(anchor_).name; }

  /// The first list says how many entries all others have.
  void count_lists() {
    constexpr std::size_t kFirst = kFirstList<kSchema>;
    if constexpr (kFirst < Call::kCount) {
      const List<Problem>& list = row(kFirst).list;
      say(list.count->size);
      std::int64_t& count = p_.*list.count->size;
      if (!entries(kFirst).empty()) {
        p_.*list.stacked = call_.stacked();
        count = call_.stacked() ? entries(kFirst)[0].shape[0] : static_cast<std::int64_t>(entries(kFirst).size());
      }
      if (entries(kFirst).empty() || count == 0)
        core::invalid_argument(row(kFirst).name, ": must hold at least one ", list.noun, " (got none)");
      for (std::size_t place = kFirst + 1; place < Call::kCount; ++place) {
        const std::size_t own = entries(place).size();
        if (row(place).list.count == nullptr || own == entries(kFirst).size()) continue;
        if (own == 0 && (row(place).optional || !call_.has(place))) continue;
        core::invalid_argument(row(place).name, ": must have as many entries as ", row(kFirst).name, ", ",
                               entries(kFirst).size(), " (got ", own, ")");
      }
    }
  }

  [[nodiscard]] bool is_given(std::size_t place) const {
    if constexpr (kLists<kSchema> > 0) {
      if (row(place).is_list()) return !entries(place).empty();
    }
    return call_.one_at(place).defined();
  }

  /// Which dimensions a tensor has may depend on whether one after it is given.
  void note_what_is_given() {
    for_each_place<kSchema>([this](auto place) {
      constexpr const Row& kTensor = kRow<place>;
      if constexpr (kTensor.given != nullptr) {
        if (call_.has(place)) p_.*kTensor.given = is_given(place);
      }
      if constexpr (kTensor.kind.set != nullptr) {
        if (!call_.has(place) || !is_given(place)) return;
        const TensorView& view = call_.one_at(place);
        core::check_view(view, call_.name(place, 0), device_, anchor_name());
        check_dtype(kTensor, view, call_.name(place, 0), 0);
        kTensor.kind.set(p_, type_of(kTensor, view.dtype));
      }
    });
  }

  /// A function of its own for each tensor, with what its row says folded in: most calls have few of them.
  template <std::size_t place>
  [[gnu::noinline]] void describe_at() {
    if (!call_.has(place)) return;
    constexpr const Row& tensor = kRow<place>;
    const std::span<const TensorView> views = entries(place);
    const bool given = is_given(place);
    if (given && call_.has_number(place))
      core::invalid_argument(tensor.name, ": must be a tensor or a number (got both)");
    if (given && tensor.look != nullptr) tensor.look(p_, views[0]);
    if (tensor.needed != nullptr && given != tensor.needed(p_) && (given || !is_optional(place)))
      refuse_presence(tensor, given);
    if (!given && place != anchor_ && (tensor.may_be_absent() || is_optional(place))) return;
    // The rules of the operation say that the other tensor must be given.
    if (!tensor.like.empty() && !call_.one_at(Role<kSchema>::place_of(tensor.like)).defined()) return;
    if (!tensor.made_like.empty()) check_what_it_was_made_like(Role<kSchema>::place_of(tensor.made_like));
    if constexpr (tensor.list.shapes != nullptr) {
      take_shapes(place, views);
    } else if constexpr (tensor.list.take != nullptr) {
      tensor.list.take(p_, views, device_);
    } else if (!views.empty()) {
      check_kind(tensor, views[0], call_.name(place, 0), 0);
      const core::Shape shape = take_shape(tensor, views[0], call_.name(place, 0));
      for (std::size_t n = 0; n < views.size(); ++n) {
        const core::ArgumentName name = call_.name(place, n);
        if (n > 0) check_kind(tensor, views[n], name, n);
        core::check_shape(views[n], name, shape);
        check_memory(place, views[n], name);
      }
    }
    if (tensor.note != nullptr) tensor.note(p_, views);
  }

  /// Of a list whose entries have shapes of their own.
  void take_shapes(std::size_t place, std::span<const TensorView> views) {
    std::vector<TableShape>& shapes = p_.*row(place).list.shapes;
    for (std::size_t n = 0; n < views.size(); ++n) {
      const core::ArgumentName name = call_.name(place, n);
      core::check_view(views[n], name, device_, anchor_name());
      shapes.push_back(table_shape_of(views[n], name));
      check_memory(place, views[n], name);
    }
  }

  [[nodiscard]] bool is_optional(std::size_t place) const { return row(place).optional || call_.has_number(place); }
  /// An output may have been made like an input of a dtype that the operation does not know: the input is what the
  /// caller knows of.
  void check_what_it_was_made_like(std::size_t place) const {
    const TensorView& first = call_.one_at(place);
    if (first.defined()) check_dtype_of(row(anchor_), first, call_.name(place, 0));
  }

  [[gnu::always_inline]] void check_kind(const Row& tensor, const TensorView& view, const core::ArgumentName& name,
                                         std::size_t entry) {
    core::check_view(view, name, device_, anchor_name());
    check_dtype(tensor, view, name, entry);
  }
  [[gnu::always_inline]] void check_dtype(const Row& tensor, const TensorView& view, const core::ArgumentName& name,
                                          std::size_t entry) {
    if (!tensor.like.empty())
      return core::check_dtype(view, name, entries(Role<kSchema>::place_of(tensor.like))[entry].dtype);
    if (type_of(tensor, view.dtype) == types_of(tensor)) check_dtype_of(tensor, view, name);
    if (tensor.dtype == nullptr) return;
    // What the anchor says, another that would say it must have.
    if (&tensor != &row(anchor_) && tensor.dtype == row(anchor_).dtype) core::check_dtype(view, name, p_.*tensor.dtype);
    p_.*tensor.dtype = view.dtype;
  }
  /// Which of a row's types it is; how many they are where none.
  [[gnu::always_inline]] [[nodiscard]] std::size_t type_of(const Row& tensor, DType dtype) const {
    const std::size_t count = types_of(tensor);
    std::size_t found = 0;
    while (found < count && dtype != tensor.types[found].of(p_)) ++found;
    return found;
  }
  /// Throws where it is none of the row's.
  void check_dtype_of(const Row& tensor, const TensorView& view, const core::ArgumentName& name) const {
    std::array<DType, kMostTypes> allowed{};
    DType own = DType::none;
    const std::size_t count = types_of(tensor);
    for (std::size_t i = 0; i < count; ++i) {
      allowed[i] = tensor.types[i].of(p_);
      if (tensor.types[i].own) own = allowed[i];
    }
    check_dtype_among(view.dtype, name, std::span(allowed).first(count), own, anchor_name());
  }

  /// The shape that a tensor must have. Sizes that no tensor before has said are those of this one, as are those that
  /// may be any; one number may come as a row of one. Walks over the dimensions once: that takes longer than any check.
  [[gnu::always_inline]] core::Shape take_shape(const Row& tensor, const TensorView& view,
                                                const core::ArgumentName& name) {
    core::Shape shape;
    bool takes = false;
    for_each_axis(tensor, p_, [&](int axis, const Dimension<Problem>& dimension) __attribute__((always_inline)) {
      core::Dim& dim = shape.dims[static_cast<std::size_t>(axis)];
      ++shape.rank;
      dim.name = dimension.name_in(p_);
      if (dimension.any) {
        dim.size = axis < view.rank ? core::size_at(view, axis) : 0;
        return;
      }
      if (dimension.size != nullptr && !is_said(dimension.field_in(p_))) {
        if (axis >= view.rank) refuse_rank(tensor, view, name);
        p_.*dimension.field_in(p_) = core::size_at(view, axis) - dimension.beyond;
        check_size(tensor.name, dimension, p_);
        say(dimension.field_in(p_));
        takes = true;
      }
      dim.size = dimension.size_in(p_);
    });
    if (takes && shape.rank != view.rank) refuse_rank(tensor, view, name);
    if (tensor.broadcast) return without_leading(tensor, view, shape);
    if (shape.rank == 0 && view.rank == 1) return {{"1", 1}};
    return shape;
  }
  /// The last dimensions of the shape: as many as the tensor has, or the one that it is like.
  [[nodiscard]] core::Shape without_leading(const Row& tensor, const TensorView& view, const core::Shape& shape) const {
    core::Shape last;
    last.rank = tensor.like.empty() ? view.rank : call_.one_at(Role<kSchema>::place_of(tensor.like)).rank;
    last.rank = std::clamp(last.rank, 0, shape.rank);
    std::copy_n(shape.dims.begin() + (shape.rank - last.rank), last.rank, last.dims.begin());
    return last;
  }
  [[noreturn, gnu::cold, gnu::noinline]] void refuse_rank(const Row& tensor, const TensorView& view,
                                                          const core::ArgumentName& name) const {
    const core::Shape shape = shape_of(tensor, p_);
    core::check_rank(view, name, shape.rank, words_of(shape));
    __builtin_unreachable();
  }
  void say(std::int64_t Problem::* size) { said_[said_count_++] = size; }
  [[nodiscard]] bool is_said(std::int64_t Problem::* size) const {
    for (std::size_t i = 0; i < said_count_; ++i)
      if (said_[i] == size) return true;
    return false;
  }
  /// Sizes that calls like this one state.
  void say_what_is_stated() {
    const auto look_at = [this](const auto& field) {
      if constexpr (std::is_same_v<decltype(field.value), std::int64_t Problem::*>)
        if (field.stated != nullptr && field.stated(p_)) say(field.value);
    };
    apply([&](const auto&... fields) { (look_at(fields), ...); }, kSchema.fields);
  }

  [[gnu::always_inline]] void check_memory(std::size_t place, const TensorView& view, const core::ArgumentName& name) {
    const Row& tensor = row(place);
    const core::Access access = tensor.access_in(call_.index());
    int contiguous = view.rank - 1;
    if (tensor.rows) core::check_contiguous_last(view, name, access);
    if (tensor.transposed != nullptr) {
      contiguous = core::contiguous_of_last_two(view, name, access);
      p_.*tensor.transposed = contiguous != view.rank - 1;
    }
    if (call_.access_at(place) != core::Access::read) core::check_writable(view, name);
    if constexpr (requires { p_.unaligned; }) {
      // Kernels of other devices move rows 16 bytes at a time where they may.
      const bool moved = (tensor.rows || tensor.transposed != nullptr) && (tensor.moved == nullptr || tensor.moved(p_));
      p_.unaligned |= moved && p_.device != DeviceType::cpu && !core::rows_start_on_16_bytes(view, contiguous);
    }
  }

  [[noreturn, gnu::cold, gnu::noinline]] void refuse_presence(const Row& tensor, bool given) const {
    std::string word;
    Problem problem = p_;
    for_each_field<kSchema>(problem, [&](std::string_view key, const auto& field, const auto&) {
      if (key == tensor.needed_by) core::print_word(word, key, field);
    });
    if (given && !tensor.needs.empty())
      core::invalid_argument(tensor.name, ": requires ", tensor.needs, " (got", word, ")");
    if (given) core::invalid_argument(tensor.name, ": excludes", word, " (got both)");
    core::invalid_argument(tensor.name, ": must be given with", word, " (got none)");
  }

  const Call& call_;
  Problem p_;
  std::size_t anchor_;
  Device device_;
  /// Fields that hold sizes: the first said_count_. Each is said once.
  std::array<std::int64_t Problem::*, Call::kCount * Dimensions<Problem>::kMost> said_;
  std::size_t said_count_ = 0;
};

}  // namespace tilewise::operations::schema
