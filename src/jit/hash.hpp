// SHA-256 (FIPS 180-4): cache keys and checksums.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tilewise::jit {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text.data(), text.size()))); }
  /// A text and its length, so that two fields never read as one.
  void update_field(std::string_view text);
  /// The digest of all that came so far; the object is spent.
  [[nodiscard]] Digest finish();

 private:
  void process(const std::byte* block);

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  std::uint64_t bytes_ = 0;
};

[[nodiscard]] Digest sha256(std::span<const std::byte> bytes);
/// 64 lower-case hexadecimal digits.
[[nodiscard]] std::string to_hex(const Digest& digest);

}  // namespace tilewise::jit
