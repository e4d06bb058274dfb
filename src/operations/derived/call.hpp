// A call's tensors under the names of its schema, whichever struct of arguments they came in, and what is remembered of
// one to tell whether the next describes to the same problem.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/recent_plan.hpp"
#include "core/tensor_checks.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

inline constexpr TensorView kNotGiven;

/// The member of `Arguments` among an argument's, as its only one; or none.
template <typename Arguments, typename... Members>
[[nodiscard]] constexpr auto member_in(const Pack<Members...>& members) {
  const auto pick = []<typename Member>(Member member) {
    if constexpr (std::is_same_v<typename MemberOf<Member>::Class, Arguments>)
      return Pack(member);
    else
      return Pack<>();
  };
  return apply([&pick](auto... each) { return joined(pick(each)...); }, members);
}

/// The tensors of a schema in its order, of one type, so that loops may walk over them.
template <const auto& kSchema>
inline constexpr auto kTensors =
    apply([](const auto&... arguments) { return completed(std::array{arguments.tensor...}); }, kSchema.arguments);

/// Which of them calls may state as a number instead.
template <const auto& kSchema>
inline constexpr auto kMayBeNumbers =
    apply([](const auto&... arguments) { return std::array{(kLengthOf<decltype(arguments.numbers)> > 0)...}; },
          kSchema.arguments);

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
    return apply(
        [](const auto&... arguments) {
          return std::array{(kLengthOf<decltype(member_in<Call>(arguments.members))> > 0)...};
        },
        kSchema.arguments);
  };
  // By its whole type: an array of one array would be taken for a copy of that.
  using Roles = std::array<bool, kLengthOf<Tensors>>;
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

/// The first tensor that is a list with a count, which all such lists go by; past the last where there is none.
template <const auto& kSchema>
inline constexpr std::size_t kFirstList = [] {
  std::size_t place = 0;
  while (place < kTensors<kSchema>.size() && kTensors<kSchema>[place].list.count == nullptr) ++place;
  return place;
}();

/// How many tensors of a schema are lists.
template <const auto& kSchema>
inline constexpr std::size_t kLists = [] {
  std::size_t count = 0;
  for (const auto& tensor : kTensors<kSchema>) count += tensor.is_list() ? 1 : 0;
  return count;
}();

/// Which of the lists a tensor is.
template <const auto& kSchema>
[[nodiscard]] constexpr std::size_t list_index(std::size_t place) {
  std::size_t index = 0;
  for (std::size_t before = 0; before < place; ++before) index += kTensors<kSchema>[before].is_list() ? 1 : 0;
  return index;
}

/// What a call states as a field or as a number instead of a tensor, as LastCallOf<> remembers it.
template <typename Member>
using StatedBy = typename MemberOf<Member>::Value;
struct NotStated {
  friend constexpr bool operator==(const NotStated&, const NotStated&) = default;
};
template <typename Row>
struct StatedOf {
  using Value = NotStated;
};
template <typename Problem, typename Value_, typename Default, typename First, typename... Rest>
struct StatedOf<Field<Problem, Value_, Default, First, Rest...>> {
  using Value = StatedBy<First>;
};
template <typename Problem, typename MemberTuple, typename First, typename... Rest>
struct StatedOf<Argument<Problem, MemberTuple, Pack<First, Rest...>>> {
  using Value = bool;  // whether there is a number
};
template <typename... Rows>
[[nodiscard]] constexpr Pack<typename StatedOf<Rows>::Value...> stated_by(const Pack<Rows...>&) {
  return {};
}

/// Everything that a call says beside its tensors.
template <const auto& kSchema>
struct StatedValues {
  decltype(stated_by(kSchema.fields)) fields;
  decltype(stated_by(kSchema.arguments)) numbers;

  template <typename Arguments>
  void take(const Arguments& arguments) {
    visit(arguments, [](auto& mine, const auto& given) {
      mine = given;
      return true;
    });
  }
  /// Whether arguments of the same type as those taken last state the same.
  template <typename Arguments>
  [[nodiscard]] bool are_those_of(const Arguments& arguments) const {
    return visit(arguments, [](const auto& mine, const auto& given) { return mine == given; });
  }

 private:
  template <typename Arguments, typename Visit>
  bool visit(const Arguments& arguments, const Visit& each) {
    return visit_all(*this, arguments, each);
  }
  template <typename Arguments, typename Visit>
  bool visit(const Arguments& arguments, const Visit& each) const {
    return visit_all(*this, arguments, each);
  }
  template <typename Self, typename Arguments, typename Visit>
  static bool visit_all(Self& self, const Arguments& arguments, const Visit& each) {
    const auto field = [&](const auto& row, auto& mine) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(mine)>, NotStated>) {
        return true;
      } else if constexpr (std::is_same_v<Arguments, typename std::remove_cvref_t<decltype(kSchema)>::Problem>) {
        return each(mine, arguments.*row.value);
      } else {
        const auto member = member_in<Arguments>(row.members);
        if constexpr (kLengthOf<decltype(member)> > 0) return each(mine, held(arguments, get<0>(member)));
        return true;
      }
    };
    const auto number = [&](const auto& row, auto& mine) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(mine)>, NotStated>) {
        return true;
      } else {
        const auto member = member_in<Arguments>(row.numbers);
        if constexpr (kLengthOf<decltype(member)> > 0) return each(mine, held(arguments, get<0>(member)).has_value());
        return true;
      }
    };
    return all(kSchema.fields, self.fields, field) && all(kSchema.arguments, self.numbers, number);
  }
  template <typename Rows, typename Values, typename Visit>
  static bool all(const Rows& rows, Values& values, const Visit& visit) {
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return (visit(get<i>(rows), get<i>(values)) && ...);
    }(std::make_index_sequence<kLengthOf<Rows>>());
  }
};

/// Borrows from the arguments it was made of. Every run makes one: it copies nothing but addresses.
template <const auto& kSchema>
class CallOf {
 public:
  using Schema = std::remove_cvref_t<decltype(kSchema)>;
  using Problem = typename Schema::Problem;
  static constexpr std::size_t kCount = kTensors<kSchema>.size();

  template <typename Arguments>
    requires(call_index<Arguments>(kSchema) < Schema::kCalls)
  explicit CallOf(const Arguments& arguments) : index_(call_index<Arguments>(kSchema)), source_(&arguments) {
    take_tensors(arguments, std::make_index_sequence<kCount>());
    stacked_ = holds_stacked();
  }

  /// Of tensors that come in no such struct.
  struct Given {
    Role<kSchema> role;
    std::span<const TensorView> entries;
  };
  CallOf(std::size_t index, const Problem& stated, std::initializer_list<Given> given)
      : index_(index), source_(&stated), in_arguments_(false) {
    first_.fill(&kNotGiven);
    for (const Given& each : given) {
      if (!each.entries.empty()) first_[each.role.place] = each.entries.data();
      if constexpr (kLists<kSchema> > 0) {
        if (kTensors<kSchema>[each.role.place].is_list())
          counts_[list_index<kSchema>(each.role.place)] = each.entries.size();
      }
    }
    stacked_ = holds_stacked();
  }

  CallOf(std::size_t index, Problem&& stated, std::initializer_list<Given> given) = delete;  // would not outlive it

  /// Index of the struct of arguments among the schema's.
  [[nodiscard]] std::size_t index() const { return index_; }
  /// The tensors of a role: one, which may be undefined, or a list. Empty for a role of other calls.
  [[nodiscard]] std::span<const TensorView> operator[](Role<kSchema> role) const { return entries(role.place); }
  [[nodiscard]] std::span<const TensorView> entries(std::size_t place) const {
    if constexpr (kLists<kSchema> > 0) {
      if (kTensors<kSchema>[place].is_list()) return {first_[place], counts_[list_index<kSchema>(place)]};
    }
    return {first_[place], has(place) ? std::size_t{1} : std::size_t{0}};
  }
  /// The one tensor of a role, or the first of a list; undefined where not given, and for a role of other calls.
  [[nodiscard]] const TensorView& one(Role<kSchema> role) const { return one_at(role.place); }
  [[nodiscard]] const TensorView& one_at(std::size_t place) const { return *first_[place]; }
  /// Whether such calls have the role at all.
  [[nodiscard]] bool has(std::size_t place) const { return kRoles<kSchema>[index_][place]; }
  /// Whether each list holds one tensor with the dimension that counts its parts.
  [[nodiscard]] bool stacked() const { return stacked_; }
  /// A problem with the fields that the arguments state as they are; the others are a fresh one's. Optional ones that
  /// are not given are too.
  [[nodiscard]] Problem stated() const {
    return with_source([](const auto& source) { return stated_of(source); });
  }
  /// Whether the call states what is remembered of one of its kind, and remembering it.
  [[nodiscard]] bool states(const StatedValues<kSchema>& remembered) const {
    return with_source([&](const auto& source) { return remembered.are_those_of(source); });
  }
  void remember_stated(StatedValues<kSchema>& values) const {
    with_source([&](const auto& source) { values.take(source); });
  }
  /// Whether visit(place, tensors) holds for each role that such calls have: a TensorView, or a span of a list. Looks
  /// at the arguments themselves, since every run compares them with the last ones.
  template <typename Visit>
  [[nodiscard]] bool all_roles(const Visit& visit) const {
    return with_source([&](const auto& source) {
      return [&]<std::size_t... places>(std::index_sequence<places...>) {
        return (visit_role<places>(source, visit) && ...);
      }(std::make_index_sequence<kCount>());
    });
  }
  /// The tensor that sets the problem's dtype: where it is, all others must be.
  [[nodiscard]] std::size_t anchor() const { return kAnchors<kSchema>[index_]; }
  [[nodiscard]] core::ArgumentName name(std::size_t place, std::size_t entry) const {
    const Tensor<Problem>& tensor = kTensors<kSchema>[place];
    return !tensor.is_list() || stacked_ ? core::ArgumentName(tensor.name) : tensor.entry_name(entry);
  }
  /// What the call does with a role's tensors.
  template <std::size_t place>
  [[nodiscard]] core::Access access() const {
    constexpr const auto& kTensor = kTensors<kSchema>[place];
    if constexpr (kTensor.changed_with.empty()) {
      return kTensor.access_in(index_);
    } else {
      constexpr std::size_t kWith = Role<kSchema>::place_of(kTensor.changed_with);
      const bool changes = one_at(kWith).defined() && (kTensor.changes == nullptr || kTensor.changes(one_at(place)));
      return changes ? core::Access::mutate : core::Access::read;
    }
  }
  /// The same of a place that is known when the program runs.
  [[nodiscard]] core::Access access_at(std::size_t place) const {
    const Tensor<Problem>& tensor = kTensors<kSchema>[place];
    if (tensor.changed_with.empty()) return tensor.access_in(index_);
    core::Access access = core::Access::read;
    [&]<std::size_t... places>(std::index_sequence<places...>) {
      (void)((places == place && (access = this->template access<places>(), true)) || ...);
    }(std::make_index_sequence<kCount>());
    return access;
  }
  /// Whether it states a number instead of a role's tensor.
  [[nodiscard]] bool has_number(std::size_t place) const {
    if (!kMayBeNumbers<kSchema>[place]) return false;
    return with_source([&](const auto& source) {
      return [&]<std::size_t... places>(std::index_sequence<places...>) {
        return ((places == place && holds_number<places>(source)) || ...);
      }(std::make_index_sequence<kCount>());
    });
  }

 private:
  template <std::size_t place, typename Source, typename Visit>
  bool visit_role(const Source& source, const Visit& visit) const {
    constexpr std::integral_constant<std::size_t, place> kPlace;
    constexpr bool kList = kTensors<kSchema>[place].is_list();
    if constexpr (std::is_same_v<Source, Problem>) {
      if (!has(place)) return true;
      if constexpr (kList)
        return visit(kPlace, entries(place));
      else
        return visit(kPlace, one_at(place));
    } else {
      constexpr auto kMember = member_in<Source>(get<place>(kSchema.arguments).members);
      if constexpr (kLengthOf<decltype(kMember)> == 0)
        return true;
      else if constexpr (kList)
        return visit(kPlace, std::span<const TensorView>(held(source, get<0>(kMember))));
      else
        return visit(kPlace, held(source, get<0>(kMember)));
    }
  }
  template <typename Arguments, std::size_t... places>
  void take_tensors(const Arguments& arguments, std::index_sequence<places...>) {
    const auto take = [&]<std::size_t place>(std::integral_constant<std::size_t, place>) {
      constexpr auto kMember = member_in<Arguments>(get<place>(kSchema.arguments).members);
      if constexpr (kLengthOf<decltype(kMember)> == 0) {
        first_[place] = &kNotGiven;
      } else if constexpr (!kTensors<kSchema>[place].is_list()) {
        first_[place] = &held(arguments, get<0>(kMember));
      } else {
        const std::span<const TensorView> list = held(arguments, get<0>(kMember));
        first_[place] = list.empty() ? &kNotGiven : list.data();
        counts_[list_index<kSchema>(place)] = list.size();
      }
    };
    (take(std::integral_constant<std::size_t, places>()), ...);
  }
  /// Returns visit of the struct of arguments, or of the problem that states the fields.
  template <typename Visit>
  auto with_source(const Visit& visit) const {
    if (!in_arguments_) return visit(*static_cast<const Problem*>(source_));
    return Schema::with_call(index_,
                             [&]<typename Arguments> { return visit(*static_cast<const Arguments*>(source_)); });
  }
  template <typename Source>
  static Problem stated_of(const Source& source) {
    if constexpr (std::is_same_v<Source, Problem>) {
      return source;
    } else {
      Problem stated;
      const auto take = [&](const auto& row) {
        const auto member = member_in<Source>(row.members);
        if constexpr (kLengthOf<decltype(member)> > 0) take_value(stated.*row.value, held(source, get<0>(member)));
      };
      apply([&](const auto&... fields) { (take(fields), ...); }, kSchema.fields);
      return stated;
    }
  }
  template <std::size_t place, typename Source>
  static bool holds_number(const Source& source) {
    if constexpr (!std::is_same_v<Source, Problem>) {
      constexpr auto kMember = member_in<Source>(get<place>(kSchema.arguments).numbers);
      if constexpr (kLengthOf<decltype(kMember)> > 0) return held(source, get<0>(kMember)).has_value();
    }
    return false;
  }
  template <typename Value>
  static void take_value(Value& value, const Value& given) {
    value = given;
  }
  template <typename Value>
  static void take_value(Value& value, const std::optional<Value>& given) {
    if (given) value = *given;
  }
  [[nodiscard]] bool holds_stacked() const {
    if constexpr (kFirstList<kSchema> < kCount) {
      constexpr Dimensions<Problem> kDimensions = kTensors<kSchema>[kFirstList<kSchema>].dimensions;
      constexpr int kRank = kDimensions.rank(false), kPackedRank = kDimensions.rank(true);
      const std::span<const TensorView> list = entries(kFirstList<kSchema>);
      return list.size() == 1 && list.front().rank == (is_packed(stated()) ? kPackedRank : kRank) + 1;
    }
    return false;
  }

  std::size_t index_;
  const void* source_;  ///< the arguments, or a problem
  bool in_arguments_ = true;
  bool stacked_ = false;
  std::array<const TensorView*, kCount> first_;
  std::array<std::size_t, kLists<kSchema>> counts_{};
};

/// Calls visit(place) for each of kTensors, the place as a constant: what every run does is written out.
template <const auto& kSchema, typename Visit>
void for_each_place(const Visit& visit) {
  [&visit]<std::size_t... places>(std::index_sequence<places...>) {
    (visit(std::integral_constant<std::size_t, places>()), ...);
  }(std::make_index_sequence<kTensors<kSchema>.size()>());
}

/// The places in the order of visiting: what is only written first, so that messages about overlap name it first.
template <const auto& kSchema>
inline constexpr auto kVisitOrder = [] {
  std::array<std::size_t, kTensors<kSchema>.size()> order{};
  std::size_t next = 0;
  for (const bool written : {true, false})
    for (std::size_t place = 0; place < order.size(); ++place)
      if ((kTensors<kSchema>[place].access == core::Access::write) == written) order[next++] = place;
  return order;
}();

/// Calls visit(name, view, access) for every tensor, given or not. Every run does: which tensors a kind of call has is
/// known to the compiler.
template <const auto& kSchema, typename Visit>
void for_each_tensor(const CallOf<kSchema>& call, Visit&& visit) {
  using Schema = std::remove_cvref_t<decltype(kSchema)>;
  Schema::with_call(call.index(), [&]<typename Arguments> {
    constexpr std::size_t kCall = call_index<Arguments>(kSchema);
    for_each_place<kSchema>([&](auto nth) {
      constexpr std::size_t place = kVisitOrder<kSchema>[nth];
      constexpr std::string_view kName = kTensors<kSchema>[place].name;
      if constexpr (kRoles<kSchema>[kCall][place]) {
        constexpr bool kDepends = !kTensors<kSchema>[place].changed_with.empty();
        const core::Access access =
            kDepends ? call.template access<place>() : kTensors<kSchema>[place].access_in(kCall);
        if constexpr (!kTensors<kSchema>[place].is_list()) {
          visit(core::ArgumentName(kName), call.one_at(place), access);
        } else {
          const std::span<const TensorView> entries = call.entries(place);
          for (std::size_t n = 0; n < entries.size(); ++n) visit(call.name(place, n), entries[n], access);
        }
      }
    });
  });
}

/// Of arguments that may be changed: calls visit(place, entries), a vector or a TensorView, for every role they have.
template <const auto& kSchema, typename Arguments, typename Visit>
void for_each_member(Arguments& arguments, const Visit& visit) {
  std::size_t place = 0;
  const auto look_at = [&](const auto& argument) {
    const auto member = member_in<Arguments>(argument.members);
    if constexpr (kLengthOf<decltype(member)> > 0) visit(place, held(arguments, get<0>(member)));
    ++place;
  };
  apply([&](const auto&... each) { (look_at(each), ...); }, kSchema.arguments);
}
/// Pairs of a field's key and member, of the fields that such calls state.
template <const auto& kSchema, typename Arguments>
[[nodiscard]] constexpr auto stated_members() {
  const auto pair_of = [](const auto& field) {
    const auto member = member_in<Arguments>(field.members);
    if constexpr (kLengthOf<decltype(member)> > 0)
      return Pack(std::pair(field.key, get<0>(member)));
    else
      return Pack<>();
  };
  return apply([&pair_of](const auto&... fields) { return joined(pair_of(fields)...); }, kSchema.fields);
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
    if (call.index() != index_ || !call.states(stated_)) return false;
    return call.all_roles([this](auto place, const auto& given) {
      if constexpr (!kTensors<kSchema>[place].is_list()) {
        return core::same_kind(given, tensors_[place]);
      } else {
        // Of a kind of call that is known, only lists vary in length.
        const std::vector<TensorView>& last = lists_[list_index<kSchema>(place)];
        if (given.size() != last.size()) return false;
        for (std::size_t n = 0; n < last.size(); ++n)
          if (!core::same_kind(given[n], last[n])) return false;
        return true;
      }
    });
  }
  bool remember(const CallOf<kSchema>& call) {
    (void)call.all_roles([this](auto place, const auto& given) {
      if constexpr (!kTensors<kSchema>[place].is_list())
        tensors_[place] = given;
      else
        lists_[list_index<kSchema>(place)].assign(given.begin(), given.end());
      return true;
    });
    index_ = call.index();
    call.remember_stated(stated_);
    return true;
  }

 private:
  std::array<TensorView, CallOf<kSchema>::kCount> tensors_{};  ///< of roles that are no lists, each at its place
  std::array<std::vector<TensorView>, kLists<kSchema>> lists_{};
  std::size_t index_ = std::remove_cvref_t<decltype(kSchema)>::kCalls;  ///< none is remembered yet
  StatedValues<kSchema> stated_{};
};

}  // namespace tilewise::operations::schema
