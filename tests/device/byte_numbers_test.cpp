// Numbers of few bits as floats: every one of them, wherever it stands in a word, as one by one.
#include "device/tile/byte_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "device/common/float4.h"
#include "device/tile/machine_host.h"

namespace tilewise::device {
namespace {

template <class Machine>
void expect_every_byte() {
  for (std::uint32_t value = 0; value < 256; ++value) {
    for (const std::uint32_t beside : {0x00U, 0x80U, 0x7FU, 0x38U}) {
      for (std::uint32_t place = 0; place < 8; ++place) {
        const std::uint32_t others = beside * 0x01010101U, shift = 8 * (place % 4);
        std::uint32_t words[2] = {others, others};
        words[place / 4] = (others & ~(0xFFU << shift)) | value << shift;
        float numbers[8];
        numbers_of_e4m3<Machine, 2>(numbers, words);
        for (std::uint32_t i = 0; i < 8; ++i) {
          const float expected = e4m3_to_float(static_cast<std::uint8_t>(i == place ? value : beside));
          EXPECT_EQ(std::isnan(numbers[i]), std::isnan(expected)) << value << " beside " << beside << ", " << i;
          if (!std::isnan(expected)) {
            EXPECT_EQ(numbers[i], expected) << value << " beside " << beside << ", " << i;
          }
        }
      }
    }
  }
}

TEST(ByteNumbers, AreE4m3sWhereBytesAreTranslated) {
  static_assert(kKnowsFnuz<HostCdnaMachine>);
  expect_every_byte<HostCdnaMachine>();
}

TEST(ByteNumbers, AreE4m3sWhereNothingIsThereForThem) {
  static_assert(!kKnowsFnuz<HostRdnaMachine>);
  expect_every_byte<HostRdnaMachine>();
}

TEST(ByteNumbers, AreE2m1sAtEveryPlace) {
  for (std::uint32_t value = 0; value < 16; ++value) {
    for (const std::uint32_t beside : {0U, 7U, 15U}) {
      for (std::uint32_t place = 0; place < 8; ++place) {
        const std::uint32_t word = ((beside * 0x11111111U) & ~(15U << (4 * place))) | value << (4 * place);
        float numbers[8];
        numbers_of_e2m1<HostRdnaMachine>(numbers, word);
        for (std::uint32_t i = 0; i < 8; ++i) {
          const float expected = e2m1_to_float(static_cast<std::uint8_t>(i == place ? value : beside));
          EXPECT_EQ(numbers[i], expected) << value << " beside " << beside << ", " << i;
          EXPECT_EQ(std::signbit(numbers[i]), std::signbit(expected)) << value << " beside " << beside << ", " << i;
        }
      }
    }
  }
}

TEST(ByteNumbers, FillHalvesOfFloats) {
  EXPECT_EQ((pack_short<HostCdnaMachine, kBf16>(-1.75F, 448.0F)), 0x43E0BFE0U);
  EXPECT_EQ((pack_short<HostCdnaMachine, kF16>(-1.75F, 448.0F)), 0x5F00BF00U);
}

}  // namespace
}  // namespace tilewise::device
