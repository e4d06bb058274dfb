// Runs a fuzz target over its corpus without libFuzzer, with any compiler.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

TEST(Fuzz, CorpusReplays) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(TILEWISE_FUZZ_CORPUS)) files.push_back(entry.path());
  std::ranges::sort(files);
  ASSERT_FALSE(files.empty()) << "no corpus in " << TILEWISE_FUZZ_CORPUS;
  for (const std::filesystem::path& file : files) {
    SCOPED_TRACE(file.filename().string());
    std::ifstream stream(file, std::ios::binary);
    ASSERT_TRUE(stream.is_open());
    const std::vector<char> text{std::istreambuf_iterator<char>(stream), {}};
    const std::vector<std::uint8_t> input(text.begin(), text.end());
    EXPECT_EQ(LLVMFuzzerTestOneInput(input.data(), input.size()), 0);
    // Every prefix of a file is an input of its own: truncation is the commonest damage.
    for (std::size_t size = 0; size < std::min<std::size_t>(input.size(), 160); ++size) {
      const std::vector<std::uint8_t> prefix(input.begin(), input.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_EQ(LLVMFuzzerTestOneInput(prefix.data(), prefix.size()), 0) << "first " << size << " bytes";
    }
  }
}
