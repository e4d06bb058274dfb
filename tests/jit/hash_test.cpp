// SHA-256 against the vectors of FIPS 180-4 and itself in pieces.
#include "jit/hash.hpp"

#include <gtest/gtest.h>

namespace tilewise::jit {
namespace {

std::string hash_of(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return to_hex(hash.finish());
}

TEST(Hash, MatchesThePublishedVectors) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Hash, DoesNotDependOnHowTheTextIsCut) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>('a' + i * 7 % 26);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 hash;
    hash.update(std::string_view(text).substr(0, cut));
    hash.update(std::string_view(text).substr(cut));
    ASSERT_EQ(to_hex(hash.finish()), hash_of(text)) << cut;
  }
}

TEST(Hash, FieldsDoNotRunTogether) {
  Sha256 first, second;
  first.update_field("ab"), first.update_field("c");
  second.update_field("a"), second.update_field("bc");
  EXPECT_NE(first.finish(), second.finish());
}

}  // namespace
}  // namespace tilewise::jit
