// Layout: 8 bytes of magic, version, SHA-256 of the payload, its size, the payload.
#include "jit/kernel_file.hpp"

#include <algorithm>
#include <cstdint>

#include "core/message.hpp"
#include "jit/byte_stream.hpp"
#include "jit/files.hpp"
#include "jit/hash.hpp"

namespace tilewise::jit {
namespace {

constexpr std::string_view kMagic = "TWKERNEL";

std::vector<std::byte> encode_payload(const KernelFile& file) {
  ByteWriter writer;
  writer.text(file.key);
  writer.text(file.source_hash);
  writer.text(file.target.architecture);
  writer.text(file.kernel.symbol);
  writer.text(file.kernel.compiler);
  writer.text(file.kernel.log);
  const KernelResources& used = file.kernel.resources;
  for (const int value : {used.registers, used.accumulation_registers, used.static_shared_bytes, used.spill_bytes,
                          used.scratch_bytes, used.max_threads}) {
    writer.number<std::int32_t>(value);
  }
  writer.number(file.kernel.compile_seconds);
  writer.bytes(file.kernel.image);
  return writer.result();
}

KernelFile decode_payload(ByteReader& reader) {
  KernelFile file;
  file.key = reader.text();
  file.source_hash = reader.text();
  file.target = parse_target(reader.text());
  file.kernel.symbol = reader.text();
  file.kernel.compiler = reader.text();
  file.kernel.log = reader.text();
  KernelResources& used = file.kernel.resources;
  for (int* value : {&used.registers, &used.accumulation_registers, &used.static_shared_bytes, &used.spill_bytes,
                     &used.scratch_bytes, &used.max_threads}) {
    *value = reader.number<std::int32_t>();
  }
  file.kernel.compile_seconds = reader.number<double>();
  const auto image = reader.bytes();
  file.kernel.image.assign(image.begin(), image.end());
  return file;
}

}  // namespace

std::vector<std::byte> encode(const KernelFile& file) {
  const std::vector<std::byte> payload = encode_payload(file);
  ByteWriter writer;
  writer.raw(as_bytes(kMagic));
  writer.number<std::uint32_t>(kKernelFileVersion);
  writer.raw(sha256(payload));
  writer.bytes(payload);
  return writer.result();
}

std::optional<KernelFile> decode(std::span<const std::byte> bytes, std::string& fault) {
  ByteReader reader(bytes);
  const auto magic = reader.raw(kMagic.size());
  const auto version = reader.number<std::uint32_t>();
  const auto digest = reader.raw(sizeof(Digest));
  const auto payload = reader.bytes();
  if (!std::ranges::equal(magic, as_bytes(kMagic))) {
    fault = "not a kernel of Tilewise";
  } else if (version != kKernelFileVersion) {
    fault = core::concat("of format ", version, ", not ", kKernelFileVersion);
  } else if (!reader.complete()) {
    fault = "cut off";
  } else if (!std::ranges::equal(sha256(payload), digest)) {
    fault = "altered (its checksum differs)";
  } else {
    try {
      ByteReader fields(payload);
      KernelFile file = decode_payload(fields);
      if (fields.complete()) return file;
      fault = "malformed";
    } catch (const Error& error) {  // an architecture of another version of the library
      fault = error.what();
    }
  }
  return std::nullopt;
}

}  // namespace tilewise::jit
