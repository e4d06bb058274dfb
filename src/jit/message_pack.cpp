// A recursive reader after the MessagePack specification; every count is checked against the bytes that are left.
#include "jit/message_pack.hpp"

#include <bit>
#include <concepts>

namespace tilewise::jit {
namespace {

constexpr int kDeepest = 32;

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}
  [[nodiscard]] bool read(PackedValue& into, int depth);
  [[nodiscard]] bool at_end() const { return rest_.empty(); }

 private:
  /// An unsigned big-endian number of `bytes` bytes.
  bool number(std::size_t bytes, std::uint64_t& into) {
    if (rest_.size() < bytes) return false;
    into = 0;
    for (std::size_t i = 0; i < bytes; ++i) into = into << 8 | std::to_integer<std::uint64_t>(rest_[i]);
    rest_ = rest_.subspan(bytes);
    return true;
  }
  bool integer(std::size_t bytes, bool with_sign, PackedValue& into) {
    std::uint64_t value = 0;
    if (!number(bytes, value)) return false;
    const unsigned unused = static_cast<unsigned>(64 - 8 * bytes);
    into.value = with_sign ? static_cast<std::int64_t>(value << unused) >> unused : static_cast<std::int64_t>(value);
    return true;
  }
  bool skip(std::uint64_t bytes) {
    if (rest_.size() < bytes) return false;
    rest_ = rest_.subspan(static_cast<std::size_t>(bytes));
    return true;
  }
  bool text(std::uint64_t bytes, PackedValue& into) {
    if (rest_.size() < bytes) return false;
    into.value = std::string(reinterpret_cast<const char*>(rest_.data()), static_cast<std::size_t>(bytes));
    return skip(bytes);
  }
  bool array(std::uint64_t count, PackedValue& into, int depth) {
    if (count > rest_.size()) return false;  // an element takes a byte or more
    PackedValue::Array elements(static_cast<std::size_t>(count));
    for (PackedValue& element : elements) {
      if (!read(element, depth + 1)) return false;
    }
    into.value = std::move(elements);
    return true;
  }
  bool map(std::uint64_t count, PackedValue& into, int depth) {
    if (count > rest_.size() / 2) return false;
    PackedValue::Map pairs(static_cast<std::size_t>(count));
    for (auto& [key, value] : pairs) {
      if (!read(key, depth + 1) || !read(value, depth + 1)) return false;
    }
    into.value = std::move(pairs);
    return true;
  }
  bool read_long(unsigned tag, PackedValue& into, int depth);

  std::span<const std::byte> rest_;
};

bool Reader::read(PackedValue& into, int depth) {
  std::uint64_t tag = 0;
  if (depth > kDeepest || !number(1, tag)) return false;
  if (tag < 0x80) return into.value = static_cast<std::int64_t>(tag), true;
  if (tag < 0x90) return map(tag & 0x0f, into, depth);
  if (tag < 0xa0) return array(tag & 0x0f, into, depth);
  if (tag < 0xc0) return text(tag & 0x1f, into);
  if (tag >= 0xe0) return into.value = static_cast<std::int64_t>(tag) - 0x100, true;
  return read_long(static_cast<unsigned>(tag), into, depth);
}

/// The forms 0xc0 to 0xdf: a type, then its size or value.
bool Reader::read_long(unsigned tag, PackedValue& into, int depth) {
  std::uint64_t size = 0;
  const auto sized = [&](unsigned first, std::size_t smallest) { return number(smallest << (tag - first), size); };
  if (tag <= 0xc3) return tag != 0xc1;                              // nil, (never used), booleans
  if (tag <= 0xc6) return sized(0xc4, 1) && skip(size);             // binary
  if (tag <= 0xc9) return sized(0xc7, 1) && skip(1) && skip(size);  // extension: type, bytes
  if (tag == 0xca)
    return number(4, size) && (into.value = double{std::bit_cast<float>(static_cast<std::uint32_t>(size))}, true);
  if (tag == 0xcb) return number(8, size) && (into.value = std::bit_cast<double>(size), true);
  if (tag <= 0xcf) return integer(std::size_t{1} << (tag - 0xcc), false, into);
  if (tag <= 0xd3) return integer(std::size_t{1} << (tag - 0xd0), true, into);
  if (tag <= 0xd8) return skip(1 + (std::uint64_t{1} << (tag - 0xd4)));  // extension of a fixed size
  if (tag <= 0xdb) return sized(0xd9, 1) && text(size, into);
  if (tag <= 0xdd) return sized(0xdc, 2) && array(size, into, depth);
  return sized(0xde, 2) && map(size, into, depth);
}

}  // namespace

const PackedValue* PackedValue::find(std::string_view key) const {
  const Map* map = std::get_if<Map>(&value);
  if (!map) return nullptr;
  for (const auto& [name, held] : *map) {
    if (name.text() == key) return &held;
  }
  return nullptr;
}

std::optional<std::int64_t> PackedValue::integer() const {
  const std::int64_t* number = std::get_if<std::int64_t>(&value);
  return number ? std::optional(*number) : std::nullopt;
}

std::optional<std::string_view> PackedValue::text() const {
  const std::string* held = std::get_if<std::string>(&value);
  return held ? std::optional<std::string_view>(*held) : std::nullopt;
}

std::optional<PackedValue> read_message_pack(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  PackedValue value;
  if (!reader.read(value, 0) || !reader.at_end()) return std::nullopt;
  return value;
}

}  // namespace tilewise::jit
