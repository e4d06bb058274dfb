// Layout: a sealed block (sealed_block.hpp) and nothing behind it.
#include "jit/kernel_file.hpp"

#include <cstdint>

#include "jit/byte_stream.hpp"
#include "jit/sealed_block.hpp"
#include "tilewise/error.hpp"

namespace tilewise::jit {
namespace {

constexpr Seal kKernelSeal{"TWKERNEL", kKernelFileVersion, "a kernel"};

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
  ByteWriter writer;
  write_sealed(writer, kKernelSeal, encode_payload(file));
  return writer.result();
}

std::optional<KernelFile> decode(std::span<const std::byte> bytes, std::string& fault) {
  ByteReader reader(bytes);
  const auto payload = read_sealed(reader, kKernelSeal, fault);
  if (payload && !reader.complete()) {
    fault = "longer than it says";
  } else if (payload) {
    try {
      ByteReader fields(*payload);
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
