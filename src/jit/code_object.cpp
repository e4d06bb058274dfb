// Reads ELF (64-bit, little-endian) with every offset checked.
#include "jit/code_object.hpp"

#include <elf.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "core/message.hpp"
#include "jit/message_pack.hpp"

namespace tilewise::jit {
namespace {

using Bytes = std::span<const std::byte>;

/// A part of the bytes; empty where it does not lie within them.
Bytes part(Bytes bytes, std::uint64_t offset, std::uint64_t size) {
  if (offset > bytes.size() || size > bytes.size() - offset) return {};
  return bytes.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(size));
}

template <typename Value>
std::optional<Value> value_at(Bytes bytes, std::uint64_t offset) {
  const Bytes found = part(bytes, offset, sizeof(Value));
  if (found.empty()) return std::nullopt;
  Value value;
  std::memcpy(&value, found.data(), sizeof value);
  return value;
}

std::string_view text_of(Bytes bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return text.substr(0, std::min(text.find('\0'), text.size()));
}

struct Section {
  std::string_view name;
  std::uint32_t type;
  Bytes contents;
};

std::vector<Section> sections(Bytes image) {
  const auto header = value_at<Elf64_Ehdr>(image, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64 ||
      header->e_ident[EI_DATA] != ELFDATA2LSB) {
    return {};
  }
  std::vector<Elf64_Shdr> headers;
  const Bytes table = part(image, header->e_shoff, std::uint64_t{header->e_shnum} * sizeof(Elf64_Shdr));
  for (std::uint64_t i = 0; i < header->e_shnum; ++i) {
    const auto section = value_at<Elf64_Shdr>(table, i * sizeof(Elf64_Shdr));
    if (!section) return {};
    headers.push_back(*section);
  }
  if (header->e_shstrndx >= headers.size()) return {};
  const Elf64_Shdr& strings = headers[header->e_shstrndx];
  const Bytes names = part(image, strings.sh_offset, strings.sh_size);
  std::vector<Section> found;
  for (const Elf64_Shdr& section : headers) {
    const Bytes contents = section.sh_type == SHT_NOBITS ? Bytes{} : part(image, section.sh_offset, section.sh_size);
    const Bytes name = section.sh_name < names.size() ? names.subspan(section.sh_name) : Bytes{};
    found.push_back({text_of(name), section.sh_type, contents});
  }
  return found;
}

/// The contents of the note of this owner and type; empty where there is none.
Bytes find_note(Bytes notes, std::string_view owner, std::uint32_t type) {
  const auto padded = [](std::uint64_t size) { return (size + 3) / 4 * 4; };
  while (const auto header = value_at<Elf64_Nhdr>(notes, 0)) {
    const std::uint64_t name_at = sizeof(Elf64_Nhdr), contents_at = name_at + padded(header->n_namesz);
    const Bytes contents = part(notes, contents_at, header->n_descsz);
    if (header->n_type == type && text_of(part(notes, name_at, header->n_namesz)) == owner) return contents;
    const std::uint64_t next = contents_at + padded(header->n_descsz);
    if (next >= notes.size()) break;
    notes = notes.subspan(static_cast<std::size_t>(next));
  }
  return {};
}

int integer_field(const PackedValue& map, std::string_view key) {
  const PackedValue* field = map.find(key);
  const std::int64_t value = field ? field->integer().value_or(0) : 0;
  return static_cast<int>(std::clamp<std::int64_t>(value, 0, std::numeric_limits<int>::max()));
}

KernelResources read_amd_kernel(const PackedValue& kernel) {
  constexpr int kRegisterBytes = 4;
  KernelResources used;
  used.accumulation_registers = integer_field(kernel, ".agpr_count");
  // .vgpr_count is the size of the unified file that the kernel takes, accumulation registers included.
  used.registers = std::max(0, integer_field(kernel, ".vgpr_count") - used.accumulation_registers);
  used.static_shared_bytes = integer_field(kernel, ".group_segment_fixed_size");
  used.spill_bytes = kRegisterBytes * std::min(integer_field(kernel, ".vgpr_spill_count"), 1 << 20);
  used.scratch_bytes = integer_field(kernel, ".private_segment_fixed_size");
  used.max_threads = integer_field(kernel, ".max_flat_workgroup_size");
  return used;
}

/// The largest number right before `words` ("32" in "Used 32 registers"); 0 where there is none.
int number_before(std::string_view text, std::string_view words) {
  int largest = 0;
  for (std::size_t at = text.find(words); at != std::string_view::npos; at = text.find(words, at + 1)) {
    std::size_t start = at;
    while (start > 0 && text[start - 1] >= '0' && text[start - 1] <= '9') --start;
    int value = 0;
    std::from_chars(text.data() + start, text.data() + at, value);
    largest = std::max(largest, value);
  }
  return largest;
}

/// Launch bounds from the attributes of the cubin's section .nv.info.SYMBOL; 0 where none are declared.
int nvidia_max_threads(Bytes cubin, std::string_view symbol) {
  constexpr auto kWithSize = std::uint8_t{4}, kMaxThreads = std::uint8_t{5};
  for (const Section& section : sections(cubin)) {
    if (!section.name.starts_with(".nv.info.") || section.name.substr(9) != symbol) continue;
    // Each attribute: form, kind, then 2 bytes that are its value or (form 4) the size of what follows.
    for (Bytes rest = section.contents; rest.size() >= 4;) {
      const auto form = value_at<std::uint8_t>(rest, 0), kind = value_at<std::uint8_t>(rest, 1);
      const std::uint64_t size = form == kWithSize ? value_at<std::uint16_t>(rest, 2).value_or(0) : 0;
      if (form == kWithSize && kind == kMaxThreads) {
        std::int64_t threads = 1;
        for (std::uint64_t i = 0; i < 3; ++i) {
          threads *= std::min(value_at<std::uint32_t>(rest, 4 + 4 * i).value_or(0), 1024U);
        }
        return static_cast<int>(std::min<std::int64_t>(threads, 1024));
      }
      rest = rest.subspan(std::min<std::size_t>(rest.size(), static_cast<std::size_t>(4 + size)));
    }
  }
  return 0;
}

}  // namespace

std::optional<KernelResources> amd_resources(Bytes image, std::string_view symbol, std::string& fault) {
  constexpr std::uint32_t kMetadataNote = 32;
  const std::vector<Section> found = sections(image);
  Bytes note;
  for (const Section& section : found) {
    if (note.empty() && section.type == SHT_NOTE) note = find_note(section.contents, "AMDGPU", kMetadataNote);
  }
  const auto metadata = note.empty() ? std::nullopt : read_message_pack(note);
  const PackedValue* kernels = metadata ? metadata->find("amdhsa.kernels") : nullptr;
  if (!kernels || !kernels->array()) {
    fault = found.empty() ? "not an ELF file" : "no metadata of kernels";
    return std::nullopt;
  }
  for (const PackedValue& kernel : *kernels->array()) {
    const PackedValue* name = kernel.find(".name");
    if (name && name->text() == symbol) return read_amd_kernel(kernel);
  }
  fault = core::concat("no kernel ", core::quoted(symbol));
  return std::nullopt;
}

KernelResources nvidia_resources(Bytes cubin, std::string_view log, std::string_view symbol) {
  // ptxas speaks of each function in turn; ours is the last entry function with this name.
  const std::size_t start = log.rfind(core::concat("'", symbol, "'"));
  std::string_view own = start == std::string_view::npos ? log : log.substr(start);
  own = own.substr(0, std::min(own.find("Compiling entry function"), own.size()));
  KernelResources used;
  used.registers = number_before(own, " registers");
  used.static_shared_bytes = number_before(own, " bytes smem");
  used.spill_bytes = number_before(own, " bytes spill stores");
  used.scratch_bytes = number_before(own, " bytes stack frame");
  used.max_threads = nvidia_max_threads(cubin, symbol);
  return used;
}

}  // namespace tilewise::jit
