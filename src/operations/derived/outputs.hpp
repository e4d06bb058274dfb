// What the outputs of a call are like, from its inputs alone: for whoever allocates them, or traces a call whose sizes
// are no numbers yet. Only what an output follows from is looked at; describing the call checks everything.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "core/tensor_checks.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/fields.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

/// The dimension of an input that a size is: of the first tensor of a role.
struct SizeSource {
  std::size_t place = 0;
  int axis = -1;  ///< -1: of none, it is stated or follows from others
};

/// A tensor that a call will write.
struct PlannedOutput {
  std::size_t place = 0, entry = 0;
  DType dtype = DType::none;
  core::Shape shape;
  std::array<SizeSource, kMaxRank> sources{};
};

/// Of a call without its outputs, or with some of them.
template <const auto& kSchema>
class OutputPlanner {
 public:
  using Call = CallOf<kSchema>;
  using Problem = typename Call::Problem;

  /// Throws for an input that has not the rank to say the sizes it should.
  explicit OutputPlanner(const Call& call) : call_(call), p_(call.stated()) {
    constexpr auto kKind = std::remove_cvref_t<decltype(kSchema)>::kKind;
    p_.*kKind = static_cast<std::remove_cvref_t<decltype(p_.*kKind)>>(call.index());
    count_list();
    note_dtype(call.anchor());
    for (const bool presence : {true, false})  // which dimensions a tensor has may depend on whether another is given
      for (std::size_t place = 0; place < Call::kCount; ++place)
        if (is_given(place)) presence ? note_presence(place) : note_sizes(place);
    for (std::size_t place = 0; place < Call::kCount; ++place)
      if (call.has(place) && !is_given(place)) note_default(place);
  }

  /// Where the outputs will be, and the element type that others follow from; none of a call without the input that
  /// says them.
  [[nodiscard]] const TensorView& model() const { return *model_; }
  /// How many tensors an output of the call holds; 0 for one that is like an input which is not given.
  [[nodiscard]] std::size_t count(std::size_t place) const {
    const Row& tensor = row(place);
    if (tensor.like.empty()) return entries_of(tensor, p_);
    const std::size_t model = Role<kSchema>::place_of(tensor.like);
    return is_given(model) ? call_.entries()[model].size() : 0;
  }
  [[nodiscard]] PlannedOutput plan(std::size_t place, std::size_t entry) const {
    const Row& tensor = row(place);
    PlannedOutput output{place, entry, DType::none, shape_of(tensor, p_), {}};
    if (tensor.like.empty()) {
      output.dtype = dtype_of<kSchema>(tensor, p_, entry);
    } else {
      output.dtype = call_.entries()[Role<kSchema>::place_of(tensor.like)][entry].dtype;
    }
    for_each_axis(tensor, p_, [&](int axis, const Dimension<Problem>& dimension) {
      if (const SaidSize* said = find(dimension)) output.sources[static_cast<std::size_t>(axis)] = said->source;
    });
    return output;
  }

 private:
  using Row = Tensor<Problem>;
  struct SaidSize {
    const Dimension<Problem>* dimension;
    SizeSource source;
  };
  [[nodiscard]] static const Row& row(std::size_t place) { return kTensors<kSchema>[place]; }
  [[nodiscard]] bool is_given(std::size_t place) const { return call_.has(place) && call_.one_at(place).defined(); }

  void count_list() {
    constexpr std::size_t kFirst = kFirstList<kSchema>;
    if constexpr (kFirst < Call::kCount) {
      const List<Problem>& list = row(kFirst).list;
      p_.*list.stacked = call_.stacked();
      if (!call_.stacked()) p_.*list.count->size = static_cast<std::int64_t>(call_.entries()[kFirst].size());
    }
  }

  /// The problem's own element type, which others follow from: an output that is not there has that of what it is made
  /// like.
  void note_dtype(std::size_t anchor) {
    const Row& tensor = row(anchor);
    std::size_t place = anchor;
    if (!is_given(anchor) && !tensor.made_like.empty()) place = Role<kSchema>::place_of(tensor.made_like);
    model_ = &call_.one_at(place);
    if (is_given(place)) p_.*tensor.dtype = model_->dtype;
  }
  void note_presence(std::size_t place) {
    const Row& tensor = row(place);
    const DType dtype = call_.one_at(place).dtype;
    if (tensor.given != nullptr) p_.*tensor.given = true;
    if (tensor.dtype != nullptr) p_.*tensor.dtype = dtype;
    if (tensor.kind.set == nullptr) return;
    std::size_t found = 0;
    while (found < types_of(tensor) && tensor.types[found].of(p_) != dtype) ++found;
    tensor.kind.set(p_, found < types_of(tensor) ? found : 0);  // describing refuses another: it is there all the same
  }
  /// An output's element type that is not stated either.
  void note_default(std::size_t place) {
    const Row& tensor = row(place);
    if (tensor.access != core::Access::write || tensor.dtype == nullptr || place == call_.anchor()) return;
    if (call_.stated().*tensor.dtype == DType::none) set_default<kSchema>(p_, tensor.dtype);
  }
  void note_sizes(std::size_t place) {
    const Row& tensor = row(place);
    const TensorView& view = call_.one_at(place);
    const core::Shape shape = shape_of(tensor, p_);
    for_each_axis(tensor, p_, [&](int axis, const Dimension<Problem>& dimension) {
      if (dimension.size == nullptr || find(dimension) != nullptr) return;
      if (view.rank != shape.rank) core::check_rank(view, call_.name(place, 0), shape.rank, words_of(shape));
      p_.*dimension.size = core::size_at(view, axis);
      said_[said_count_++] = {&dimension, {place, axis}};
    });
    if (tensor.note != nullptr) tensor.note(p_, call_.entries()[place]);
  }
  [[nodiscard]] const SaidSize* find(const Dimension<Problem>& dimension) const {
    for (std::size_t i = 0; i < said_count_; ++i)
      if (said_[i].dimension == &dimension) return &said_[i];
    return nullptr;
  }

  const Call& call_;
  Problem p_;
  const TensorView* model_ = &kNotGiven;
  std::array<SaidSize, Call::kCount * Dimensions<Problem>::kMost> said_{};
  std::size_t said_count_ = 0;
};

}  // namespace tilewise::operations::schema
