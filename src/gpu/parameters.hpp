// The parameter block of a kernel, told to the host twice over: its fields by name and place (for launch.json, and for
// compilers that must lay it out alike), as the struct itself lists them, and its pointers by what they point to. The
// table of pointers alone decides where in the workspace each stands, what an emulated kernel may touch, and what
// launch.json says: a pointer that it lacks is a null pointer everywhere, and fails a test.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "core/message.hpp"
#include "core/visibility.hpp"

namespace tilewise::gpu {

/// One scalar or pointer of a parameter block.
struct TILEWISE_INTERNAL ParameterField {
  std::string name;  ///< "q.seq_stride", "dbias_shape[2]", "grid.num_tiles"
  std::string type;  ///< as C spells it: "int64_t", "const int32_t*"
  std::size_t offset = 0, size = 0;

  [[nodiscard]] bool is_pointer() const { return type.ends_with('*'); }
  /// The field's value in a block; none for pointers.
  using Value = std::variant<std::monostate, std::int64_t, std::uint64_t, float>;
  [[nodiscard]] Value value_in(const void* block) const;
};

/// What lanes do with memory. Lanes of any blocks may add to one place in a launch, if nobody reads or stores to it.
enum class Access : std::uint8_t { read, write, add };

/// A dimension in memory. A broadcast one has stride 0.
struct Dimension {
  std::int64_t extent, stride;  ///< stride in elements
};

/// What a pointer of a block points to.
struct Region {
  std::string_view name;  ///< "q"; of the workspace what kernels of one problem share by it: "dq_accum"
  bool workspace = false;
  Access access = Access::read;
  std::size_t element_bytes = 1;
  std::array<Dimension, 4> outer{};  ///< the first `rank` of them, around `row` adjacent elements
  int rank = 0;
  std::int64_t row = 1;
  /// Whether a place that one lane writes is no other lane's. Not of tensors whose sequences lie where lengths in
  /// device memory say: these may overlap.
  bool one_writer = true;

  /// Of a region without gaps.
  [[nodiscard]] std::size_t bytes() const {
    std::int64_t elements = row;
    for (int i = 0; i < rank; ++i) elements *= outer[static_cast<std::size_t>(i)].extent;
    return static_cast<std::size_t>(elements) * element_bytes;
  }
};

/// Called for each pointer with its place in the block.
using RegionVisitor = std::function<void(const Region& region, std::size_t offset)>;

/// A region of the workspace: `elements` adjacent floats.
[[nodiscard]] inline Region float_workspace(std::string_view name, Access access, std::int64_t elements) {
  Region region;
  region.name = name;
  region.workspace = true;
  region.access = access;
  region.element_bytes = sizeof(float);
  region.row = elements;
  return region;
}

/// A row of a table of pointers: where in the block the member stands, and what it points to.
template <typename Params, typename Pointer>
void visit_pointer(const Params& params, Pointer* const& member, const Region& region, const RegionVisitor& visit) {
  visit(region, static_cast<std::size_t>(reinterpret_cast<const std::byte*>(&member) -
                                         reinterpret_cast<const std::byte*>(&params)));
}

// ---- Fields, from the lists that structs of src/device have ----------------------------------

struct AnyField {
  template <typename Field>
  constexpr void operator()(std::string_view /*name*/, const Field&) const {}
};

/// A struct that calls visit(name, field) for each of its members, in the order of memory.
template <typename Type>
concept Described = requires(const Type& value) { Type::for_each_field(value, AnyField{}); };

/// Whether a struct's list has all of its members: there are no holes, but at the end of what is aligned to more than
/// its members are.
template <Described Type>
[[nodiscard]] consteval bool lists_every_field() {
  const Type value{};
  std::size_t bytes = 0;
  Type::for_each_field(value, [&bytes](std::string_view, const auto& field) { bytes += sizeof field; });
  constexpr std::size_t kAlignment = alignof(Type) > alignof(std::int64_t) ? alignof(Type) : 1;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment == sizeof(Type);
}

template <typename Type>
[[nodiscard]] std::string c_type() {
  if constexpr (std::is_pointer_v<Type>) return c_type<std::remove_pointer_t<Type>>() + "*";
  if constexpr (std::is_const_v<Type>) return "const " + c_type<std::remove_const_t<Type>>();
  if constexpr (std::is_void_v<Type>) return "void";
  if constexpr (std::is_same_v<Type, float>) return "float";
  if constexpr (std::is_integral_v<Type>) {
    return core::concat(std::is_signed_v<Type> ? "int" : "uint", 8 * sizeof(Type), "_t");
  }
}

template <typename Type>
void add_fields(const std::string& name, std::size_t offset, std::vector<ParameterField>& fields) {
  if constexpr (Described<Type>) {
    static_assert(lists_every_field<Type>(), "for_each_field() lists every field of a struct");
    const Type value{};
    Type::for_each_field(value, [&]<typename Field>(std::string_view member, const Field& field) {
      const auto place = reinterpret_cast<const std::byte*>(&field) - reinterpret_cast<const std::byte*>(&value);
      add_fields<Field>(core::concat(name, name.empty() ? "" : ".", member), offset + static_cast<std::size_t>(place),
                        fields);
    });
  } else if constexpr (std::is_array_v<Type>) {
    using Element = std::remove_extent_t<Type>;
    for (std::size_t i = 0; i < std::extent_v<Type>; ++i) {
      add_fields<Element>(core::concat(name, "[", i, "]"), offset + i * sizeof(Element), fields);
    }
  } else {
    fields.push_back({name, c_type<Type>(), offset, sizeof(Type)});
  }
}

/// Every field of a block, in the order of the offsets.
template <typename Params>
[[nodiscard]] std::vector<ParameterField> fields_of() {
  std::vector<ParameterField> fields;
  add_fields<Params>({}, 0, fields);
  return fields;
}

}  // namespace tilewise::gpu
