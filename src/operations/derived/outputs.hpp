// What the outputs of a call are like, from its inputs alone: for whoever allocates them, or traces a call whose sizes
// are no numbers yet. Only what an output follows from is looked at; describing the call checks everything.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "core/message.hpp"
#include "core/tensor_checks.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/fields.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

/// The dimension of an input that a size is: of the first tensor of a role.
struct SizeSource {
  std::size_t place = 0;
  int axis = -1;                                     ///< or one of these
  static constexpr int kStated = -1, kFollows = -2;  ///< from other sizes
};

/// A tensor that a call will write.
struct PlannedOutput {
  std::size_t place = 0, entry = 0;
  DType dtype = DType::none;
  core::Shape shape;
  std::array<SizeSource, kMaxRank> sources{};
};

/// What nothing else of a call says of its outputs, so that whoever has them made chooses it: by the name of a
/// dimension a size, or by the key of a field the element type of an output, whose default is that field's.
struct OutputChoice {
  std::string_view name{};
  std::size_t place = 0;  ///< of the output
  int dimension = -1;     ///< among the output's; -1: it is the element type
};
inline constexpr std::size_t kMostChoices = 4;

/// Sizes first, then element types, each in the order of the outputs; without a name after the last.
template <const auto& kSchema, typename Arguments>
[[nodiscard]] constexpr std::array<OutputChoice, kMostChoices> output_choices() {
  constexpr std::size_t kCall = call_index<Arguments>(kSchema);
  constexpr const auto& kAll = kTensors<kSchema>;
  std::array<OutputChoice, kMostChoices> choices{};
  std::size_t count = 0;
  const auto is_output = [&](std::size_t place) {
    return kRoles<kSchema>[kCall][place] && kAll[place].access_in(kCall) == core::Access::write &&
           kAll[place].like.empty();
  };
  const auto is_said = [&](const auto* dimension) {
    bool said = dimension->size == nullptr;
    for (std::size_t place = 0; place < kAll.size(); ++place)
      for (const auto* other : kAll[place].dimensions.of)
        said |=
            kRoles<kSchema>[kCall][place] && kAll[place].access_in(kCall) != core::Access::write && other == dimension;
    for (const auto& choice : choices) said |= choice.dimension >= 0 && dimension->name == choice.name;
    const auto states = [&](const auto& field) {
      if constexpr (kLengthOf<decltype(member_in<Arguments>(field.members))> > 0) {
        if constexpr (std::is_same_v<decltype(field.value), decltype(dimension->size)>)
          said |= field.value == dimension->size;
      }
    };
    apply([&](const auto&... fields) { (states(fields), ...); }, kSchema.fields);
    return said;
  };
  for (std::size_t place = 0; place < kAll.size(); ++place) {
    for (std::size_t axis = 0; is_output(place) && axis < kAll[place].dimensions.of.size(); ++axis) {
      const auto* dimension = kAll[place].dimensions.of[axis];
      if (dimension != nullptr && !is_said(dimension))
        choices.at(count++) = {dimension->name, place, static_cast<int>(axis)};
    }
  }
  for (std::size_t place = 0; place < kAll.size(); ++place) {
    if (!is_output(place) || kAll[place].dtype == nullptr || !kAll[place].made_like.empty()) continue;
    bool said = false;
    for (std::size_t input = 0; input < kAll.size(); ++input)
      said |= kRoles<kSchema>[kCall][input] && kAll[input].access_in(kCall) != core::Access::write &&
              kAll[input].dtype == kAll[place].dtype;
    if (said) continue;
    const auto name = [&](const auto& field) {
      if constexpr (std::is_same_v<decltype(field.value), decltype(kAll[place].dtype)> &&
                    kLengthOf<decltype(member_in<Arguments>(field.members))> == 0)
        if (field.value == kAll[place].dtype) choices.at(count++) = {field.key, place, -1};
    };
    apply([&](const auto&... fields) { (name(fields), ...); }, kSchema.fields);
  }
  return choices;
}

[[nodiscard]] constexpr std::size_t count_of(const std::array<OutputChoice, kMostChoices>& choices) {
  std::size_t count = 0;
  while (count < choices.size() && !choices[count].name.empty()) ++count;
  return count;
}

/// Values of output_choices(), in their order: sizes, or element types, where none is the default.
struct ChosenOutputs {
  std::array<std::int64_t, kMostChoices> sizes{-1, -1, -1, -1};
  std::array<DType, kMostChoices> dtypes{};
};

/// Of a call without its outputs, or with some of them.
template <const auto& kSchema>
class OutputPlanner {
 public:
  using Call = CallOf<kSchema>;
  using Problem = typename Call::Problem;

  /// Throws for an input that has not the rank to say the sizes it should, and for a size that nobody says.
  explicit OutputPlanner(const Call& call, std::span<const OutputChoice> choices = {}, const ChosenOutputs& chosen = {})
      : call_(call), stated_(call.stated()), p_(stated_) {
    constexpr auto kKind = std::remove_cvref_t<decltype(kSchema)>::kKind;
    p_.*kKind = static_cast<std::remove_cvref_t<decltype(p_.*kKind)>>(call.index());
    count_list();
    note_anchor(call.anchor());
    // Which dimensions a tensor has may depend on whether another is given.
    for (std::size_t place = 0; place < Call::kCount; ++place)
      if (is_given(place)) note_presence(place);
    for (std::size_t place = 0; place < Call::kCount; ++place)
      if (call.has(place) && !is_given(place)) note_default(place);
    for (std::size_t i = 0; i < choices.size(); ++i)
      if (choices[i].dimension < 0 && !is_given(choices[i].place)) take_dtype(choices[i].place, chosen.dtypes[i]);
    for (std::size_t place = 0; place < Call::kCount; ++place)
      if (is_given(place)) note_sizes(place);
    for (std::size_t i = 0; i < choices.size(); ++i)
      if (choices[i].dimension >= 0) take_size(choices[i], chosen.sizes[i]);
  }

  /// Where the outputs will be, and the element type that others follow from; none of a call without the input that
  /// says them.
  [[nodiscard]] const TensorView& model() const { return *model_; }
  /// How many tensors an output of the call holds; 0 for one that is like an input which is not given, or that such
  /// calls have not.
  [[nodiscard]] std::size_t count(std::size_t place) const {
    const Row& tensor = row(place);
    if (tensor.needed != nullptr && !tensor.needed(p_)) return 0;
    if (tensor.like.empty()) return entries_of(tensor, p_);
    const std::size_t model = Role<kSchema>::place_of(tensor.like);
    return is_given(model) ? call_.entries(model).size() : 0;
  }
  [[nodiscard]] PlannedOutput plan(std::size_t place, std::size_t entry) const {
    const Row& tensor = row(place);
    PlannedOutput output{place, entry, DType::none, shape_of(tensor, p_), {}};
    if (tensor.like.empty()) {
      output.dtype = dtype_of<kSchema>(tensor, p_, entry);
    } else {
      output.dtype = call_.entries(Role<kSchema>::place_of(tensor.like))[entry].dtype;
    }
    for_each_axis(tensor, p_, [&](int axis, const Dimension<Problem>& dimension) {
      SizeSource& source = output.sources[static_cast<std::size_t>(axis)];
      if (const SaidSize* said = find(dimension)) source = said->source;
      if (dimension.size == nullptr) source.axis = SizeSource::kFollows;
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
      if (!call_.stacked()) p_.*list.count->size = static_cast<std::int64_t>(call_.entries(kFirst).size());
    }
  }

  /// The problem's own element type, which others follow from: an output that is not there has that of what it is made
  /// like.
  void note_anchor(std::size_t anchor) {
    const Row& tensor = row(anchor);
    std::size_t place = anchor;
    if (!is_given(anchor) && !tensor.made_like.empty()) place = Role<kSchema>::place_of(tensor.made_like);
    model_ = &call_.one_at(place);
    if (is_given(place) && tensor.dtype != nullptr) p_.*tensor.dtype = model_->dtype;
    note_rank(p_, tensor, model_->rank);
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
    if (tensor.access_in(call_.index()) != core::Access::write || tensor.dtype == nullptr || place == call_.anchor())
      return;
    if (stated_.*tensor.dtype == DType::none) set_default<kSchema>(p_, tensor.dtype);
  }
  void note_sizes(std::size_t place) {
    const Row& tensor = row(place);
    const TensorView& view = call_.one_at(place);
    const core::Shape shape = shape_of(tensor, p_);
    for_each_axis(tensor, p_, [&](int axis, const Dimension<Problem>& dimension) {
      if (find(dimension) != nullptr) return;
      if (view.rank != shape.rank) core::check_rank(view, call_.name(place, 0), shape.rank, words_of(shape));
      // A size that follows from others is said too: of an output it is this one, whatever the others are while traced.
      if (dimension.size != nullptr) p_.*dimension.field_in(p_) = core::size_at(view, axis);
      said_[said_count_++] = {&dimension, {place, axis}};
    });
    if (tensor.note != nullptr) tensor.note(p_, call_.entries(place));
  }
  /// What was chosen, or the field's default.
  void take_dtype(std::size_t place, DType chosen) {
    if (chosen == DType::none)
      set_default<kSchema>(p_, row(place).dtype);
    else
      p_.*row(place).dtype = chosen;
  }
  void take_size(const OutputChoice& choice, std::int64_t chosen) {
    const Dimension<Problem>& dimension = *row(choice.place).dimensions.of[static_cast<std::size_t>(choice.dimension)];
    if (find(dimension) != nullptr) return;
    if (chosen < 0) core::invalid_argument(choice.name, ": must be given and >= 0 (got ", chosen, ")");
    p_.*dimension.field_in(p_) = chosen;
  }
  [[nodiscard]] const SaidSize* find(const Dimension<Problem>& dimension) const {
    for (std::size_t i = 0; i < said_count_; ++i)
      if (said_[i].dimension == &dimension) return &said_[i];
    return nullptr;
  }

  const Call& call_;
  const Problem stated_;
  Problem p_;
  const TensorView* model_ = &kNotGiven;
  std::array<SaidSize, Call::kCount * Dimensions<Problem>::kMost> said_{};
  std::size_t said_count_ = 0;
};

}  // namespace tilewise::operations::schema
