// What an operation is, as one constexpr value: its kinds of calls, the fields of its problem, and its tensors. What
// follows from it for every operation stands in derived/; docs/decisions/0009 says what does and what does not.
// src/operations/merge/schema.hpp is the one to read first.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>
#include "operations/pack.hpp"

#include "core/problem_text.hpp"
#include "core/tensor_checks.hpp"
#include "operations/elements.hpp"
#include "operations/layout.hpp"
#include "operations/table_shapes.hpp"

namespace tilewise::operations::schema {

inline constexpr std::int64_t kMostInt32 = std::numeric_limits<std::int32_t>::max();

/// The class and the type of a pointer to a member.
template <typename Member>
struct MemberOf;
template <typename Class_, typename Value_>
struct MemberOf<Value_ Class_::*> {
  using Class = Class_;
  using Value = Value_;
};

/// A member of a member: what calls keep in a struct of options.
template <typename Outer, typename Inner>
struct Nested {
  Outer outer;
  Inner inner;
};
template <typename Outer, typename Inner>
struct MemberOf<Nested<Outer, Inner>> {
  using Class = typename MemberOf<Outer>::Class;
  using Value = typename MemberOf<Inner>::Value;
};
template <typename Outer, typename Inner>
[[nodiscard]] constexpr Nested<Outer, Inner> in(Outer outer, Inner inner) {
  return {outer, inner};
}

/// What a struct holds in a member, or in a member of one.
template <typename Class, typename Member>
[[nodiscard]] constexpr auto& held(Class& object, Member member) {
  return object.*member;
}
template <typename Class, typename Outer, typename Inner>
[[nodiscard]] constexpr auto& held(Class& object, const Nested<Outer, Inner>& member) {
  return object.*member.outer.*member.inner;
}

/// Whether the sequences of a problem are packed one after another, where its operation knows layouts.
template <typename Problem>
[[nodiscard]] constexpr bool is_packed(const Problem& problem) {
  if constexpr (requires { problem.layout; }) return problem.layout == Layout::thd;
  return false;
}

/// A dimension by name. Its size is a field of the problem, which the first tensor that has the dimension says; or
/// follows from the problem: blocks along another dimension, say, which a tensor before it must have said.
template <typename Problem>
struct Dimension {
  std::string_view name;
  std::int64_t Problem::* size = nullptr;
  std::int64_t least = 0, most = kMostInt32;
  std::int64_t beyond = 0;                                    ///< longer by this than the field
  std::string_view packed_name = name;                        ///< where sequences are packed ...
  std::int64_t Problem::* packed_size = nullptr;              ///< ... and the field, where that is another one
  bool unpacked_only = false;                                 ///< tensors do not have it where sequences are packed
  std::string_view index = name;                              ///< a position along it, in messages
  std::int64_t (*follows)(const Problem& problem) = nullptr;  ///< instead of a field
  bool (*exists)(const Problem& problem) = nullptr;           ///< tensors have it where this holds; null: always
  bool Problem::* present = nullptr;  ///< the same by a field, which the rank of a call's anchor says
  bool any = false;                   ///< tensors may have any size of it; what follows is that of a contiguous call

  [[nodiscard]] constexpr std::string_view name_in(const Problem& p) const { return is_packed(p) ? packed_name : name; }
  /// The field that holds its size; null where that follows.
  [[nodiscard]] constexpr std::int64_t Problem::* field_in(const Problem& p) const {
    return packed_size != nullptr && is_packed(p) ? packed_size : size;
  }
  [[nodiscard]] constexpr std::int64_t size_in(const Problem& p) const {
    return follows != nullptr ? follows(p) : p.*field_in(p) + beyond;
  }
  [[nodiscard]] constexpr bool is_in(const Problem& p) const {
    return !(unpacked_only && is_packed(p)) && (exists == nullptr || exists(p)) && (present == nullptr || p.*present);
  }
};

/// The dimensions of a tensor, in the order of its shape.
template <typename Problem>
struct Dimensions {
  static constexpr std::size_t kMost = 6;  // and one more for the parts of a stacked list
  /// layout: the four are batch, sequence, head and dim, and the layout says where each is.
  enum class Order : std::uint8_t { written, layout };

  Order order = Order::written;
  std::array<const Dimension<Problem>*, kMost> of{};  ///< null after the last

  [[nodiscard]] constexpr int rank(bool packed) const {
    int rank = 0;
    for (const Dimension<Problem>* dimension : of)
      rank += dimension != nullptr && !(packed && dimension->unpacked_only) ? 1 : 0;
    return rank;
  }
};

/// An element type that a tensor may have: always the same, or one that depends on the problem.
template <typename Problem>
struct Type {
  DType (*of)(const Problem& problem);
  bool own = false;  ///< that of the tensor which sets the problem's
};
template <typename Problem, DType dtype>
inline constexpr Type<Problem> kFixed{[](const Problem&) { return dtype; }};
/// The problem's.
template <typename Problem>
inline constexpr Type<Problem> kOwn{[](const Problem& problem) { return problem.dtype; }, true};
inline constexpr std::size_t kMostTypes = 5;
/// Those that operations compute in.
template <typename Problem>
inline constexpr std::array<Type<Problem>, kMostTypes> kElements{
    kFixed<Problem, DType::f32>, kFixed<Problem, DType::bf16>, kFixed<Problem, DType::f16>,
    kFixed<Problem, DType::f64>};
/// Of log-sum-exps: f64 where the problem's is, else f32.
template <typename Problem>
inline constexpr Type<Problem> kStatistics{[](const Problem& problem) { return statistics_dtype(problem.dtype); }};

/// A field of the problem that says which of a tensor's types it has: values in the order of the types, and 0 for a
/// tensor that is not given.
template <typename Problem>
struct Kind {
  void (*set)(Problem& problem, std::size_t type) = nullptr;
  std::size_t (*get)(const Problem& problem) = nullptr;  ///< the number of types: not given
};
template <auto member, auto... values>
[[nodiscard]] constexpr auto kind() {
  using Problem = typename MemberOf<decltype(member)>::Class;
  return Kind<Problem>{[](Problem& problem, std::size_t type) {
                         constexpr std::array kValues{values...};
                         problem.*member = kValues[type];
                       },
                       [](const Problem& problem) {
                         constexpr std::array kValues{values...};
                         std::size_t type = 0;
                         while (type < kValues.size() && problem.*member != kValues[type]) ++type;
                         return type;
                       }};
}

/// Tensors of one role, as many as a dimension says; or one tensor with that dimension before its own.
template <typename Problem>
struct List {
  const Dimension<Problem>* count = nullptr;
  bool Problem::* stacked = nullptr;
  std::string_view noun{};  ///< one of them, in messages
  /// Instead of a count: of each its element type and shape, where every entry has its own. Any number of them.
  std::vector<TableShape> Problem::* shapes = nullptr;
  /// Or: how many entries a problem has, the shape of each, and what entries say of the problem together, which throws
  /// where they are none.
  std::size_t (*entries)(const Problem& problem) = nullptr;
  TableShape (*shape)(const Problem& problem, std::size_t entry) = nullptr;
  void (*take)(Problem& problem, std::span<const TensorView> entries, Device device) = nullptr;
  std::string_view (*entry_name)(std::size_t entry) = nullptr;  ///< null: the list's with an index
};

/// A tensor, or a list of them.
template <typename Problem>
struct Tensor {
  std::string_view name;
  core::Access access = core::Access::read;
  bool read_later = false;  ///< written by the first kind of call, and read by the others
  /// Of one whose access is mutate: the tensor whose presence changes it, and a further condition on its own; else it
  /// is read.
  std::string_view changed_with{};
  bool (*changes)(const TensorView& view) = nullptr;
  bool optional = false;
  bool rows = false;  ///< its last dimension is contiguous, and whether every row starts on 16 bytes is the problem's
  bool broadcast = false;                           ///< it may lack leading dimensions
  bool (*moved)(const Problem& problem) = nullptr;  ///< ... where this holds; null: always
  /// The same of a matrix whose last dimension or the one before it is contiguous: whether the latter is.
  bool Problem::* transposed = nullptr;
  Dimensions<Problem> dimensions{};
  List<Problem> list{};

  // One of these says its element type.
  std::array<Type<Problem>, kMostTypes> types{};  ///< any of them, in the order of preference
  /// Entry by entry that of another tensor, which must be given and whose dimensions, list and rows are this one's too.
  std::string_view like{};

  // What the problem says about it.
  DType Problem::* dtype = nullptr;  ///< takes its element type
  bool Problem::* given = nullptr;   ///< whether it is there
  Kind<Problem> kind{};              ///< whether, and which of `types` it has
  /// Whether it must be there, or where it is optional may be, else it must not: by the field of this key.
  bool (*needed)(const Problem& problem) = nullptr;
  std::string_view needed_by{};
  std::string_view needs{};  ///< what must be so where it is there, in words; none: those of the field
  /// What its shape says of which dimensions it has, noted before that is checked.
  void (*look)(Problem& problem, const TensorView& view) = nullptr;
  void (*note)(Problem& problem, std::span<const TensorView> entries) = nullptr;  ///< anything else
  DType (*entry_dtype)(const Problem& problem, std::size_t entry) = nullptr;      ///< what `note` has noted of one

  std::string_view derivative_of{};  ///< the tensor that it is a gradient by, where its name is not that after a d
  std::string_view made_like{};      ///< an output that nobody gives is made like the (first) tensor of this role
  std::string_view summary{};        ///< for whoever gives it on a command line ...
  std::string_view flag{};           ///< ... by a flag of this name, where that is not the tensor's

  [[nodiscard]] constexpr bool is_list() const {
    return list.count != nullptr || list.shapes != nullptr || list.entries != nullptr;
  }
  /// In messages: an entry of a list that is not stacked.
  [[nodiscard]] core::ArgumentName entry_name(std::size_t entry) const {
    return list.entry_name != nullptr ? core::ArgumentName(list.entry_name(entry)) : core::ArgumentName(name, entry);
  }
  [[nodiscard]] constexpr bool may_be_absent() const { return optional || needed != nullptr; }
  /// What calls of a kind, by its index, do with it.
  [[nodiscard]] constexpr core::Access access_in(std::size_t call) const {
    return read_later && call > 0 ? core::Access::read : access;
  }
};

/// The tensors of a schema by themselves, each with what it takes from the one that it is like.
template <typename Problem, std::size_t count>
[[nodiscard]] constexpr std::array<Tensor<Problem>, count> completed(std::array<Tensor<Problem>, count> tensors) {
  for (Tensor<Problem>& tensor : tensors) {
    if (tensor.like.empty()) continue;
    std::size_t other = 0;
    while (tensors.at(other).name != tensor.like) ++other;
    tensor.dimensions = tensors.at(other).dimensions;
    tensor.list = tensors.at(other).list;
    tensor.rows = tensors.at(other).rows;
    tensor.broadcast = tensors.at(other).broadcast;
  }
  return tensors;
}

/// Whether the entries of a list are all in one tensor.
template <typename Problem>
[[nodiscard]] constexpr bool is_stacked(const Tensor<Problem>& tensor, const Problem& problem) {
  return tensor.list.stacked != nullptr && problem.*tensor.list.stacked;
}

/// A tensor, and the members of the calls' arguments that hold it: one of each kind of call that has it.
template <typename Problem, typename MemberTuple, typename NumberTuple = Pack<>>
struct Argument {
  Tensor<Problem> tensor;
  MemberTuple members;
  NumberTuple numbers{};  ///< members that hold a number in its stead, as an optional

  /// Says where calls state a number instead. Whether they do is part of what a call is like, the number is not.
  template <typename... Numbers>
  [[nodiscard]] constexpr Argument<Problem, MemberTuple, Pack<Numbers...>> or_number(Numbers... of) const {
    return {tensor, members, {of...}};
  }
};
template <typename Problem, typename... Members>
[[nodiscard]] constexpr Argument<Problem, Pack<Members...>> argument(const Tensor<Problem>& tensor,
                                                                     Members... members) {
  return {tensor, {members...}};
}

/// The default of a field: that of a fresh problem.
struct Fresh {};

/// A field of the problem: one key=value word of its text. `by_default` is Fresh, core::kRequired, or a function of the
/// problem with all fields before this one.
template <typename Problem, typename Value, typename Default, typename... Members>
struct Field {
  std::string_view key, packed_key;
  bool unpacked_only;
  Value Problem::* value;
  Default by_default;
  bool (*exists)(const Problem& problem) = nullptr;  ///< problems have it where this holds; null: all do
  std::string_view exists_with{};                    ///< what makes it hold, in words; none: another kind of call
  bool (*stated)(const Problem& problem) = nullptr;  ///< calls state it where this holds; null: all that can
  Pack<Members...> members{};                        ///< of the calls' arguments that the field is copied from
  std::string_view summary{};                        ///< for whoever states it on a command line

  [[nodiscard]] constexpr bool is_in(const Problem& p) const {
    return !(unpacked_only && is_packed(p)) && (exists == nullptr || exists(p));
  }
  /// Says where calls state it.
  template <typename... Stated>
  [[nodiscard]] constexpr Field<Problem, Value, Default, Stated...> from(Stated... of) const {
    return {key, packed_key, unpacked_only, value, by_default, exists, exists_with, stated, {of...}, summary};
  }
  /// Says which problems have it.
  [[nodiscard]] constexpr Field where(bool (*holds)(const Problem& problem), std::string_view words = {}) const {
    return {key, packed_key, unpacked_only, value, by_default, holds, words, stated, members, summary};
  }
  /// Says its key where sequences are packed.
  [[nodiscard]] constexpr Field packed_as(std::string_view name) const {
    return {key, name, unpacked_only, value, by_default, exists, exists_with, stated, members, summary};
  }
  /// Says of which problems calls state it: of others it follows from their tensors.
  [[nodiscard]] constexpr Field stated_where(bool (*holds)(const Problem& problem)) const {
    return {key, packed_key, unpacked_only, value, by_default, exists, exists_with, holds, members, summary};
  }
  /// Says what it is.
  [[nodiscard]] constexpr Field summed_up(std::string_view words) const {
    return {key, packed_key, unpacked_only, value, by_default, exists, exists_with, stated, members, words};
  }
};
template <typename Problem, typename Value, typename Default = Fresh>
[[nodiscard]] constexpr Field<Problem, Value, Default> field(std::string_view key, Value Problem::* value,
                                                             Default by_default = {}) {
  return {key, key, false, value, by_default};
}
/// A word of the text that several members say together: made of a problem, and put back into one. No call states it.
template <typename Problem, typename Value>
struct WordField {
  std::string_view key, packed_key;
  Value (*value)(const Problem& problem);
  void (*put)(Problem& problem, const Value& value);
  static constexpr std::string_view exists_with{}, summary{};
  static constexpr bool (*stated)(const Problem& problem) = nullptr;
  static constexpr Pack<> members{};

  [[nodiscard]] static constexpr bool is_in(const Problem&) { return true; }
};
template <typename Problem, typename Value>
[[nodiscard]] constexpr WordField<Problem, Value> word(std::string_view key, Value (*value)(const Problem& problem),
                                                       void (*put)(Problem& problem, const Value& value)) {
  return {key, key, value, put};
}
template <typename Problem, typename Default = Fresh>
[[nodiscard]] constexpr Field<Problem, std::int64_t, Default> size(const Dimension<Problem>& dimension,
                                                                   Default by_default = {}) {
  return {dimension.name, dimension.packed_name, dimension.unpacked_only, dimension.size, by_default};
}

/// `kName` says which kind of call a problem is; its values go with `Calls`, the structs of arguments. Of these the
/// first tensor that sets the problem's dtype is the anchor, an output only where it is made like an input; or the
/// first tensor of all. Where it is, all others must be.
template <auto kName, typename FieldTuple, typename ArgumentTuple, typename... Calls>
struct Operation {
  using Problem = typename MemberOf<decltype(kName)>::Class;
  using Names = typename MemberOf<decltype(kName)>::Value;
  static constexpr auto kKind = kName;
  static constexpr std::size_t kCalls = sizeof...(Calls), kTensors = kLengthOf<ArgumentTuple>;

  std::string_view name;
  FieldTuple fields;
  ArgumentTuple arguments;

  /// Calls visit.operator()<Arguments>() for each kind of call.
  template <typename Visit>
  static void for_each_call(const Visit& visit) {
    (visit.template operator()<Calls>(), ...);
  }
  /// Returns visit.operator()<Arguments>() for the struct of arguments that such problems have.
  template <typename Visit>
  static auto with_arguments(const Problem& problem, const Visit& visit) {
    return with_call(static_cast<std::size_t>(problem.*kKind), visit);
  }
  /// The same of a kind of call by its index.
  template <typename Visit>
  static auto with_call(std::size_t index, const Visit& visit) {
    return with_call<Visit, Calls...>(index, visit);
  }

 private:
  template <typename Visit, typename First, typename... Rest>
  static auto with_call(std::size_t index, const Visit& visit) {
    if constexpr (sizeof...(Rest) > 0) {
      if (index > 0) return with_call<Visit, Rest...>(index - 1, visit);
    }
    return visit.template operator()<First>();
  }
};
template <auto kName, typename... Calls, typename... Fields, typename... Arguments>
[[nodiscard]] constexpr auto operation(std::string_view name, Pack<Fields...> fields, Pack<Arguments...> arguments) {
  return Operation<kName, Pack<Fields...>, Pack<Arguments...>, Calls...>{name, fields, arguments};
}

}  // namespace tilewise::operations::schema
