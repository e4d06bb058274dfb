// Writes and checks the beginning of Tilewise's own files.
#include "jit/sealed_block.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "jit/files.hpp"
#include "jit/hash.hpp"

namespace tilewise::jit {

void write_sealed(ByteWriter& writer, const Seal& seal, std::span<const std::byte> block) {
  writer.raw(as_bytes(seal.magic));
  writer.number(seal.version);
  writer.raw(sha256(block));
  writer.bytes(block);
}

std::optional<std::span<const std::byte>> read_sealed(ByteReader& reader, const Seal& seal, std::string& fault) {
  const auto magic = reader.raw(seal.magic.size());
  const auto version = reader.number<std::uint32_t>();
  const auto digest = reader.raw(sizeof(Digest));
  const auto block = reader.bytes();
  if (!std::ranges::equal(magic, as_bytes(seal.magic))) {
    fault = core::concat("not ", seal.what, " of Tilewise");
  } else if (version != seal.version) {
    fault = core::concat("of format ", version, ", not ", seal.version);
  } else if (!reader.ok()) {
    fault = "cut off";
  } else if (!std::ranges::equal(sha256(block), digest)) {
    fault = "altered (its checksum differs)";
  } else {
    return block;
  }
  return std::nullopt;
}

}  // namespace tilewise::jit
