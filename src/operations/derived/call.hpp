// A call's tensors under the names of its schema, whichever struct of arguments they came in, and what is remembered of
// one to tell whether the next describes to the same problem.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/recent_plan.hpp"
#include "core/tensor_checks.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

inline constexpr TensorView kNotGiven;

[[nodiscard]] inline std::span<const TensorView> entries_of(const TensorView& view) { return {&view, 1}; }
[[nodiscard]] inline std::span<const TensorView> entries_of(std::span<const TensorView> views) { return views; }

/// The member of `Arguments` among an argument's, as its only one; or none.
template <typename Arguments, typename... Members>
[[nodiscard]] constexpr auto member_in(const std::tuple<Members...>& members) {
  const auto pick = []<typename Member>(Member member) {
    if constexpr (std::is_same_v<typename MemberOf<Member>::Class, Arguments>)
      return std::tuple(member);
    else
      return std::tuple<>();
  };
  return std::apply([&pick](auto... each) { return std::tuple_cat(pick(each)...); }, members);
}

/// The tensors of a schema in its order, of one type, so that loops may walk over them.
template <const auto& kSchema>
inline constexpr auto kTensors =
    std::apply([](const auto&... arguments) { return completed(std::array{arguments.tensor...}); }, kSchema.arguments);

/// Its place in kTensors, found by the compiler: a name that is none does not compile.
template <const auto& kSchema>
struct Role {
  std::size_t place;
  template <std::size_t size>
  consteval Role(const char (&name)[size])  // NOLINT(google-explicit-constructor): roles are written as words
      : place(place_of(std::string_view(name, size - 1))) {}

  [[nodiscard]] static constexpr std::size_t place_of(std::string_view name) {
    std::size_t place = 0;
    while (kTensors<kSchema>.at(place).name != name) ++place;
    return place;
  }
};

/// Which kind of call comes in a struct of arguments.
template <typename Arguments, auto kName, typename Fields, typename Tensors, typename... Calls>
[[nodiscard]] constexpr std::size_t call_index(const Operation<kName, Fields, Tensors, Calls...>&) {
  std::size_t index = 0;
  (void)((std::is_same_v<Arguments, Calls> || (++index, false)) || ...);
  return index;
}

/// Which kinds of call have which roles.
template <const auto& kSchema, auto kName, typename Fields, typename Tensors, typename... Calls>
[[nodiscard]] constexpr auto roles_of(const Operation<kName, Fields, Tensors, Calls...>&) {
  const auto of_call = []<typename Call>(std::type_identity<Call>) {
    return std::apply(
        [](const auto&... arguments) {
          return std::array{(std::tuple_size_v<decltype(member_in<Call>(arguments.members))> > 0)...};
        },
        kSchema.arguments);
  };
  // By its whole type: an array of one array would be taken for a copy of that.
  using Roles = std::array<bool, std::tuple_size_v<Tensors>>;
  return std::array<Roles, sizeof...(Calls)>{of_call(std::type_identity<Calls>())...};
}
template <const auto& kSchema>
inline constexpr auto kRoles = roles_of<kSchema>(kSchema);

/// Of each kind of call the first tensor that sets the problem's dtype, an output only where it is made like an input;
/// or the first of all.
template <const auto& kSchema>
inline constexpr auto kAnchors = [] {
  std::array<std::size_t, kRoles<kSchema>.size()> anchors{};
  constexpr std::size_t kCount = kTensors<kSchema>.size();
  for (std::size_t call = 0; call < anchors.size(); ++call) {
    std::size_t first = kCount, setting = kCount;
    for (std::size_t place = kCount; place-- > 0;) {
      if (!kRoles<kSchema>[call][place]) continue;
      first = place;
      const auto& tensor = kTensors<kSchema>[place];
      const bool begins = tensor.access_in(call) == core::Access::read || !tensor.made_like.empty();
      if (tensor.dtype != nullptr && begins) setting = place;
    }
    anchors[call] = setting < kCount ? setting : first;
  }
  return anchors;
}();

/// The first tensor that is a list, which all other lists go by; past the last where there is none.
template <const auto& kSchema>
inline constexpr std::size_t kFirstList = [] {
  std::size_t place = 0;
  while (place < kTensors<kSchema>.size() && kTensors<kSchema>[place].list.count == nullptr) ++place;
  return place;
}();

/// Borrows from the arguments it was made of.
template <const auto& kSchema>
class CallOf {
 public:
  using Problem = typename std::remove_cvref_t<decltype(kSchema)>::Problem;
  static constexpr std::size_t kCount = kTensors<kSchema>.size();

  template <typename Arguments>
  explicit CallOf(const Arguments& arguments) : index_(call_index<Arguments>(kSchema)) {
    static_assert(call_index<Arguments>(kSchema) < std::remove_cvref_t<decltype(kSchema)>::kCalls);
    take_tensors(arguments, std::make_index_sequence<kCount>());
    std::apply([&](const auto&... fields) { (take_value(fields, arguments), ...); }, kSchema.fields);
    stacked_ = holds_stacked();
  }

  /// Of tensors that come in no such struct.
  struct Given {
    Role<kSchema> role;
    std::span<const TensorView> entries;
  };
  CallOf(std::size_t index, const Problem& stated, std::initializer_list<Given> given)
      : index_(index), stated_(stated) {
    for (const Given& each : given) entries_[each.role.place] = each.entries;
    stacked_ = holds_stacked();
  }

  /// Index of the struct of arguments among the schema's.
  [[nodiscard]] std::size_t index() const { return index_; }
  /// The tensors of a role: one, which may be undefined, or a list. Empty for a role of other calls.
  [[nodiscard]] std::span<const TensorView> operator[](Role<kSchema> role) const { return entries_[role.place]; }
  /// The one tensor of a role; undefined where not given, and for a role of other calls.
  [[nodiscard]] const TensorView& one(Role<kSchema> role) const { return one_at(role.place); }
  [[nodiscard]] const TensorView& one_at(std::size_t place) const {
    return entries_[place].empty() ? kNotGiven : entries_[place].front();
  }
  [[nodiscard]] const std::array<std::span<const TensorView>, kCount>& entries() const { return entries_; }
  /// Whether such calls have the role at all.
  [[nodiscard]] bool has(std::size_t place) const { return kRoles<kSchema>[index_][place]; }
  /// Whether each list holds one tensor with the dimension that counts its parts.
  [[nodiscard]] bool stacked() const { return stacked_; }
  /// The fields that the arguments state as they are; the others are a fresh problem's.
  [[nodiscard]] const Problem& stated() const { return stated_; }
  /// The tensor that sets the problem's dtype: where it is, all others must be.
  [[nodiscard]] std::size_t anchor() const { return kAnchors<kSchema>[index_]; }
  [[nodiscard]] core::ArgumentName name(std::size_t place, std::size_t entry) const {
    const Tensor<Problem>& tensor = kTensors<kSchema>[place];
    return tensor.list.count == nullptr || stacked_ ? core::ArgumentName(tensor.name)
                                                    : core::ArgumentName(tensor.name, entry);
  }

 private:
  template <typename Arguments, std::size_t... places>
  void take_tensors(const Arguments& arguments, std::index_sequence<places...>) {
    const auto take = [&]<std::size_t place>(std::integral_constant<std::size_t, place>) {
      constexpr auto kMember = member_in<Arguments>(std::get<place>(kSchema.arguments).members);
      if constexpr (std::tuple_size_v<decltype(kMember)> > 0)
        entries_[place] = entries_of(arguments.*std::get<0>(kMember));
    };
    (take(std::integral_constant<std::size_t, places>()), ...);
  }
  template <typename Row, typename Arguments>
  void take_value(const Row& row, const Arguments& arguments) {
    const auto member = member_in<Arguments>(row.members);
    if constexpr (std::tuple_size_v<decltype(member)> > 0) stated_.*row.value = arguments.*std::get<0>(member);
  }
  [[nodiscard]] bool holds_stacked() const {
    if constexpr (kFirstList<kSchema> < kCount) {
      constexpr Dimensions<Problem> kDimensions = kTensors<kSchema>[kFirstList<kSchema>].dimensions;
      constexpr int kRank = kDimensions.rank(false), kPackedRank = kDimensions.rank(true);
      const std::span<const TensorView> list = entries_[kFirstList<kSchema>];
      return list.size() == 1 && list.front().rank == (is_packed(stated_) ? kPackedRank : kRank) + 1;
    }
    return false;
  }

  std::size_t index_;
  std::array<std::span<const TensorView>, kCount> entries_{};
  Problem stated_;
  bool stacked_ = false;
};

/// Calls visit(place) for each of kTensors, the place as a constant: what every run does is written out.
template <const auto& kSchema, typename Visit>
void for_each_place(const Visit& visit) {
  [&visit]<std::size_t... places>(std::index_sequence<places...>) {
    (visit(std::integral_constant<std::size_t, places>()), ...);
  }(std::make_index_sequence<kTensors<kSchema>.size()>());
}

/// Calls visit(name, view, access) for every tensor, given or not.
template <const auto& kSchema, typename Visit>
void for_each_tensor(const CallOf<kSchema>& call, Visit&& visit) {
  for_each_place<kSchema>([&](auto place) {
    constexpr std::string_view kName = kTensors<kSchema>[place].name;
    const core::Access access = kTensors<kSchema>[place].access_in(call.index());
    const std::span<const TensorView> entries = call.entries()[place];
    if constexpr (kTensors<kSchema>[place].list.count == nullptr) {
      if (!entries.empty()) visit(core::ArgumentName(kName), entries.front(), access);
    } else {
      for (std::size_t n = 0; n < entries.size(); ++n)
        visit(call.stacked() ? core::ArgumentName(kName) : core::ArgumentName(kName, n), entries[n], access);
    }
  });
}

/// Of arguments that may be changed: calls visit(place, entries), a vector or a TensorView, for every role they have.
template <const auto& kSchema, typename Arguments, typename Visit>
void for_each_member(Arguments& arguments, const Visit& visit) {
  std::size_t place = 0;
  const auto look_at = [&](const auto& argument) {
    const auto member = member_in<Arguments>(argument.members);
    if constexpr (std::tuple_size_v<decltype(member)> > 0) visit(place, arguments.*std::get<0>(member));
    ++place;
  };
  std::apply([&](const auto&... each) { (look_at(each), ...); }, kSchema.arguments);
}
/// Pairs of a field's key and member, of the fields that such calls state.
template <const auto& kSchema, typename Arguments>
[[nodiscard]] constexpr auto stated_members() {
  const auto pair_of = [](const auto& field) {
    const auto member = member_in<Arguments>(field.members);
    if constexpr (std::tuple_size_v<decltype(member)> > 0)
      return std::make_tuple(std::pair(field.key, std::get<0>(member)));
    else
      return std::tuple<>();
  };
  return std::apply([&pair_of](const auto&... fields) { return std::tuple_cat(pair_of(fields)...); }, kSchema.fields);
}
template <const auto& kSchema, typename Arguments, typename Visit>
void change_each_tensor(Arguments& arguments, const Visit& visit) {
  for_each_member<kSchema>(arguments, [&visit](std::size_t, auto& entries) {
    if constexpr (std::is_same_v<decltype(entries), TensorView&>) {
      visit(entries);
    } else {
      for (TensorView& view : entries) visit(view);
    }
  });
}

/// See core/recent_plan.hpp.
template <const auto& kSchema>
class LastCallOf {
 public:
  /// Whether `call` is of the same kind in everything that describing it looks at.
  [[nodiscard]] bool is_like(const CallOf<kSchema>& call) const {
    if (call.index() != index_ || !states_the_same(call)) return false;
    const TensorView* next = tensors_.data();
    return [&]<std::size_t... places>(std::index_sequence<places...>) {
      return (are_like<places>(call.entries()[places], next) && ...);
    }(std::make_index_sequence<CallOf<kSchema>::kCount>());
  }
  bool remember(const CallOf<kSchema>& call) {
    tensors_.clear();
    for (std::size_t place = 0; place < call.kCount; ++place) {
      const std::span<const TensorView> entries = call.entries()[place];
      counts_[place] = entries.size();
      tensors_.insert(tensors_.end(), entries.begin(), entries.end());
    }
    index_ = call.index();
    stated_ = call.stated();
    return true;
  }

 private:
  /// Of a kind of call that is known, only lists vary in length.
  template <std::size_t place>
  [[nodiscard]] bool are_like(std::span<const TensorView> entries, const TensorView*& next) const {
    if constexpr (kTensors<kSchema>[place].list.count == nullptr) {
      return entries.empty() || core::same_kind(entries.front(), *next++);
    } else {
      if (entries.size() != counts_[place]) return false;
      for (const TensorView& view : entries)
        if (!core::same_kind(view, *next++)) return false;
      return true;
    }
  }
  [[nodiscard]] bool states_the_same(const CallOf<kSchema>& call) const {
    const auto same = [&](const auto& field) {
      if constexpr (std::tuple_size_v<decltype(field.members)> == 0)
        return true;
      else
        return call.stated().*field.value == stated_.*field.value;
    };
    return std::apply([&same](const auto&... fields) { return (same(fields) && ...); }, kSchema.fields);
  }

  std::vector<TensorView> tensors_;  ///< of all roles, one after another
  std::array<std::size_t, CallOf<kSchema>::kCount> counts_{};
  std::size_t index_ = std::remove_cvref_t<decltype(kSchema)>::kCalls;  ///< none is remembered yet
  typename CallOf<kSchema>::Problem stated_;
};

}  // namespace tilewise::operations::schema
