// How Tilewise's own files begin: 8 bytes of magic, a version, the SHA-256 of a block, its size and the block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "jit/byte_stream.hpp"

namespace tilewise::jit {

/// A kind of file.
struct Seal {
  std::string_view magic;  ///< 8 characters
  std::uint32_t version;   ///< raised whenever the layout behind it changes
  std::string_view what;   ///< "a kernel", for messages
};

void write_sealed(ByteWriter& writer, const Seal& seal, std::span<const std::byte> block);
/// The block; none, with the reason in `fault`, where it is cut, altered, of another kind or version.
[[nodiscard]] std::optional<std::span<const std::byte>> read_sealed(ByteReader& reader, const Seal& seal,
                                                                    std::string& fault);

}  // namespace tilewise::jit
