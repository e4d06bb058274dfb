// A multiply-and-fold hash of the fields of a value: a few cycles for each 64 bits.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace tilewise::core {

class Hasher {
 public:
  void add(std::int64_t value) { mix(static_cast<std::uint64_t>(value)); }
  /// Adding zero turns -0.0 into 0.0: equal values hash equally.
  void add(double value) { mix(std::bit_cast<std::uint64_t>(value + 0.0)); }
  /// Flags and enumerations share words.
  void add(bool value) { pack(1, value); }
  template <typename Enum>
    requires std::is_enum_v<Enum>
  void add(Enum value) {
    pack(8, static_cast<std::uint64_t>(value));
  }
  [[nodiscard]] std::size_t value() {
    mix(packed_);
    return static_cast<std::size_t>(state_);
  }

 private:
  void mix(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 32;
  }
  void pack(int bits, std::uint64_t value) {
    if (used_ + bits > 64) {
      mix(packed_);
      packed_ = 0, used_ = 0;
    }
    packed_ |= value << used_;
    used_ += bits;
  }

  std::uint64_t state_ = 0x243F6A8885A308D3u, packed_ = 0;
  int used_ = 0;
};

}  // namespace tilewise::core
