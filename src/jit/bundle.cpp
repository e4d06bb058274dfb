// Layout: the index (source hash and size of each kernel) as a sealed block, the kernels as kernel_file.hpp encodes
// them, each with a checksum of its own.
#include "jit/bundle.hpp"

#include <cstdint>

#include "core/message.hpp"
#include "jit/bundle_file.hpp"
#include "jit/byte_stream.hpp"
#include "jit/files.hpp"
#include "jit/kernel_cache.hpp"
#include "jit/kernel_file.hpp"
#include "jit/sealed_block.hpp"

namespace tilewise::jit {
namespace {

constexpr Seal kSeal{"TWBUNDLE", 1, "a bundle"};

}  // namespace

BundleEntry make_bundle_entry(const Target& target, const KernelSource& source) {
  return {target, source_hash(target, source), *find_or_compile(target, source)};
}

void write_bundle(const std::string& path, std::span<const BundleEntry> entries) {
  ByteWriter index, kernels;
  index.number<std::uint64_t>(entries.size());
  for (const BundleEntry& entry : entries) {
    const std::vector<std::byte> kernel = encode({{}, entry.source_hash, entry.target, entry.kernel});
    index.text(entry.source_hash);
    index.number<std::uint64_t>(kernel.size());
    kernels.raw(kernel);
  }
  ByteWriter file;
  write_sealed(file, kSeal, index.result());
  file.raw(kernels.result());
  if (const std::string reason = write_file_atomically(path, file.result()); !reason.empty()) {
    throw Error(ErrorCode::runtime, core::concat("bundle: ", reason));
  }
}

Bundle::Bundle(const std::string& path) {
  const auto refuse = [&path](std::string_view what) { core::invalid_argument("bundle: ", path, ": ", what); };
  auto bytes = read_file(path);
  if (!bytes) refuse("can't be read");
  bytes_ = std::move(*bytes);
  ByteReader reader(bytes_);
  std::string fault;
  const auto index = read_sealed(reader, kSeal, fault);
  if (!index) refuse(fault);
  ByteReader rows(*index);
  for (auto count = rows.number<std::uint64_t>(); count > 0 && rows.ok(); --count) {
    std::string hash = rows.text();
    const auto kernel = reader.raw(rows.number<std::uint64_t>());
    entries_.insert_or_assign(std::move(hash), kernel);
  }
  if (!rows.complete() || !reader.complete()) refuse("cut off");
}

std::optional<CompiledKernel> Bundle::find(const std::string& source_hash, std::string& fault) const {
  const auto found = entries_.find(source_hash);
  if (found == entries_.end()) return std::nullopt;
  auto file = decode(found->second, fault);
  if (!file) return std::nullopt;
  if (file->source_hash != source_hash) {
    fault = "under another's name";
    return std::nullopt;
  }
  return std::move(file->kernel);
}

}  // namespace tilewise::jit
