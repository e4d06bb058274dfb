// Bytes of e4m3 translated to e4m3fnuz: each is half of what it was, wherever it stands in a word.
#include "device/common/float8_fnuz.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "device/common/float8.h"

namespace tilewise::device {
namespace {

TEST(Float8Fnuz, TranslatesEveryByteAtEveryPlace) {
  for (std::uint32_t value = 0; value < 256; ++value) {
    for (const std::uint32_t beside : {0x00U, 0x80U, 0x7FU, 0xFFU, 0x01U, 0x7EU}) {
      for (int place = 0; place < 4; ++place) {
        const std::uint32_t mask = 0xFFU << (8 * place);
        const std::uint32_t word = ((beside * 0x01010101U) & ~mask) | value << (8 * place);
        const bool is_nan = (e4m3_nans(magnitudes(word)) >> (8 * place) & 0x80U) != 0;
        EXPECT_EQ(is_nan, (value & 0x7FU) == 0x7FU) << value << " beside " << beside;
        const auto translated =
            static_cast<std::uint8_t>(with_fnuz_nans(without_negative_zeros(word, magnitudes(word))) >> (8 * place));
        const float half = fnuz_to_float(translated), expected = e4m3_to_float(static_cast<std::uint8_t>(value));
        EXPECT_EQ(std::isnan(half), std::isnan(expected)) << value << " beside " << beside;
        if (!std::isnan(expected)) {
          EXPECT_EQ(2.0F * half, expected) << value << " beside " << beside;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::device
