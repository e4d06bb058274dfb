// The MessagePack reader on every form of the specification, and on bytes that are none.
#include "jit/message_pack.hpp"

#include <gtest/gtest.h>

#include <random>

#include "jit/files.hpp"

namespace tilewise::jit {
namespace {

std::optional<PackedValue> read(std::string_view bytes) { return read_message_pack(as_bytes(bytes)); }

using namespace std::string_literals;

TEST(MessagePack, ReadsIntegersOfEveryWidth) {
  const std::vector<std::pair<std::string, std::int64_t>> cases = {
      {"\x00"s, 0},
      {"\x7f"s, 127},
      {"\xe0"s, -32},
      {"\xff"s, -1},
      {"\xcc\xff"s, 255},
      {"\xcd\x01\x02"s, 0x0102},
      {"\xce\xff\x00\x00\x01"s, 0xff000001},
      {"\xcf\x00\x00\x00\x01\x00\x00\x00\x00"s, 0x100000000},
      {"\xd0\x80"s, -128},
      {"\xd1\xff\xfe"s, -2},
      {"\xd2\x80\x00\x00\x00"s, -2147483648},
      {"\xd3\xff\xff\xff\xff\xff\xff\xff\xfd"s, -3},
  };
  for (const auto& [bytes, value] : cases) {
    const auto read_value = read(bytes);
    ASSERT_TRUE(read_value);
    EXPECT_EQ(read_value->integer(), value);
  }
}

TEST(MessagePack, ReadsTextsListsAndMaps) {
  // {"a": [1, "bc", nil, true], "long": 300 characters}
  const std::string text(300, 'q');
  const auto value = read("\x82\xa1"s + "a\x94\x01\xa2" + "bc\xc0\xc3\xd9\x04long\xda\x01\x2c"s + text);
  ASSERT_TRUE(value);
  const PackedValue* list = value->find("a");
  ASSERT_TRUE(list && list->array());
  ASSERT_EQ(list->array()->size(), 4U);
  EXPECT_EQ((*list->array())[0].integer(), 1);
  EXPECT_EQ((*list->array())[1].text(), "bc");
  EXPECT_FALSE((*list->array())[2].integer());
  EXPECT_EQ(value->find("long")->text(), text);
  EXPECT_EQ(value->find("absent"), nullptr);
  EXPECT_EQ(list->find("a"), nullptr);
}

TEST(MessagePack, SkipsBinaryAndExtensions) {
  const auto value = read("\x96\xc4\x02zz\xc7\x01\x05z\xd4\x01z\xd8\x01" + std::string(16, 'z') +
                          "\xca\x3f\x80\x00\x00\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00"s);
  ASSERT_TRUE(value && value->array());
  EXPECT_EQ(std::get<double>((*value->array())[4].value), 1.0);
  EXPECT_EQ(std::get<double>((*value->array())[5].value), 1.0);
}

TEST(MessagePack, RefusesWhatIsCutDeepOrFollowedByMore) {
  EXPECT_FALSE(read(""));
  EXPECT_FALSE(read("\xc1"));
  EXPECT_FALSE(read("\x01\x01"));
  EXPECT_FALSE(read("\xdd\xff\xff\xff\xff"s));  // four billion elements in no byte
  EXPECT_FALSE(read("\xdf\xff\xff\xff\xff\x01\x01"s));
  EXPECT_FALSE(read("\xdb\xff\xff\xff\xff"s + "abc"));
  EXPECT_FALSE(read(std::string(100'000, '\x91') + "\x01"));
  const std::string whole = "\x82\xa1"s + "a\x92\x01\xa2" + "bc\xa1z\xcd\x01\x02";
  ASSERT_TRUE(read(whole));
  for (std::size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(read(whole.substr(0, size))) << size;
}

TEST(MessagePack, TakesAnyBytes) {
  std::mt19937 random(7);
  std::size_t read_count = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    read_count += read(bytes).has_value() ? 1 : 0;
  }
  EXPECT_GT(read_count, 0U);
  EXPECT_LT(read_count, 20'000U);
}

}  // namespace
}  // namespace tilewise::jit
