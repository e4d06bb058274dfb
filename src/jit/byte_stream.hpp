// Writing values to a block of bytes and reading them back with every bound checked: cache files, bundles and the
// messages to the compiler process. Little-endian machines only, which every target of Tilewise is.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tilewise::jit {

static_assert(std::endian::native == std::endian::little);

class ByteWriter {
 public:
  void raw(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  void number(Number value) {
    raw(std::as_bytes(std::span(&value, 1)));
  }
  void bytes(std::span<const std::byte> bytes) {
    number<std::uint64_t>(bytes.size());
    raw(bytes);
  }
  void text(std::string_view text) { bytes(std::as_bytes(std::span(text.data(), text.size()))); }
  [[nodiscard]] const std::vector<std::byte>& result() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// After the first read that finds too few bytes, ok() is false and every read gives nothing.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  [[nodiscard]] std::span<const std::byte> raw(std::uint64_t count) {
    if (count > rest_.size()) ok_ = false;
    if (!ok_) return {};
    const auto taken = rest_.first(static_cast<std::size_t>(count));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  template <typename Number>
    requires std::is_arithmetic_v<Number>
  [[nodiscard]] Number number() {
    Number value{};
    const auto taken = raw(sizeof value);
    if (ok_) std::memcpy(&value, taken.data(), sizeof value);
    return value;
  }
  [[nodiscard]] std::span<const std::byte> bytes() { return raw(number<std::uint64_t>()); }
  [[nodiscard]] std::string text() {
    const auto taken = bytes();
    return std::string(reinterpret_cast<const char*>(taken.data()), taken.size());
  }
  [[nodiscard]] bool ok() const { return ok_; }
  /// Read to the end, and never past it.
  [[nodiscard]] bool complete() const { return ok_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace tilewise::jit
