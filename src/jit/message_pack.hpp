// Reads MessagePack, the form of the metadata in AMD's code objects. Any bytes are fine: what is not MessagePack gives
// none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tilewise::jit {

class PackedValue {
 public:
  using Array = std::vector<PackedValue>;
  struct Pair;  // no std::pair, which must not be named while its parts are incomplete
  using Map = std::vector<Pair>;
  /// Nil, booleans and binary data, which nothing here asks for, are monostate.
  std::variant<std::monostate, std::int64_t, double, std::string, Array, Map> value;

  /// The value under a text key of a map; null where this is no map or has no such key.
  [[nodiscard]] const PackedValue* find(std::string_view key) const;
  [[nodiscard]] std::optional<std::int64_t> integer() const;
  [[nodiscard]] std::optional<std::string_view> text() const;
  [[nodiscard]] const Array* array() const { return std::get_if<Array>(&value); }
};

struct PackedValue::Pair {
  PackedValue key, value;
};

/// The one value that `bytes` hold; none where they hold anything else or nest deeper than 32.
[[nodiscard]] std::optional<PackedValue> read_message_pack(std::span<const std::byte> bytes);

}  // namespace tilewise::jit
