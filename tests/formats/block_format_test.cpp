// Names of formats.
#include "tilewise/block_format.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "../support/expect_error.hpp"
#include "formats/field.hpp"

namespace tilewise {
namespace {

TEST(BlockFormat, NamesReadBack) {
  for (const std::string_view name : {"none", "fp8_tensor", "fp8_row", "fp8_1x128", "fp8_128x128", "fp8_1x128_e8m0",
                                      "fp8_128x128_e8m0", "mxfp8", "mxfp4", "nvfp4"}) {
    const BlockFormat format = parse_block_format(name);
    EXPECT_EQ(to_string(format), name);
    EXPECT_EQ(format.defined(), name != "none");
  }
  EXPECT_EQ(parse_block_format("nvfp4"), (BlockFormat{DType::fp4_e2m1, DType::fp8_e4m3, 1, 16, true}));
  EXPECT_EQ(parse_block_format("mxfp4"), (BlockFormat{DType::fp4_e2m1, DType::fp8_e8m0, 1, 32, false}));
  EXPECT_EQ(to_string(BlockFormat{DType::fp4_e2m1, DType::f32, 1, 32, false}), "unknown");
  test::expect_invalid(
      "w: must be one of none, fp8_tensor, fp8_row, fp8_1x128, fp8_128x128, fp8_1x128_e8m0, fp8_128x128_e8m0, mxfp8, "
      "mxfp4, nvfp4; did you mean nvfp4? (got 'nvfp5')",
      [] { (void)parse_block_format("nvfp5", "w"); });
}

TEST(BlockFormat, IsAFieldOfAProblem) {
  std::string text = "linear";
  core::print_word(text, "format", parse_block_format("fp8_1x128_e8m0"));
  EXPECT_EQ(text, "linear format=fp8_1x128_e8m0");
  core::Words words(text);
  BlockFormat format;
  EXPECT_TRUE(core::read_field(words, "format", format, BlockFormat{}));
  EXPECT_EQ(format, parse_block_format("fp8_1x128_e8m0"));
  EXPECT_TRUE(core::read_field(words, "format", format, BlockFormat{}));  // not given a second time: the default
  EXPECT_FALSE(format.defined());
  std::set<std::size_t> hashes;
  for (const std::string_view name :
       {"none", "fp8_tensor", "fp8_row", "fp8_1x128", "fp8_1x128_e8m0", "mxfp8", "nvfp4"}) {
    core::Hasher hasher;
    add_to(hasher, parse_block_format(name));
    hashes.insert(hasher.value());
  }
  EXPECT_EQ(hashes.size(), 7u);
}

}  // namespace
}  // namespace tilewise
