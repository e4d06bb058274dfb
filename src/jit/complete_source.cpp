// Follows quoted includes through the embedded headers.
#include "jit/complete_source.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "jit/hash.hpp"
#include "jit/kernel_source.hpp"

namespace tilewise::jit {
namespace {

const DeviceSource* find_header(std::string_view path) {
  const auto headers = device_sources();
  const auto found = std::ranges::lower_bound(headers, path, {}, &DeviceSource::path);
  return found != headers.end() && found->path == path ? &*found : nullptr;
}

/// The path in a line like `#include "device/common/mask.h"`; empty for every other line.
std::string_view quoted_include(std::string_view line) {
  const auto skip = [&line](std::string_view expected) {
    line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
    if (!line.starts_with(expected)) return false;
    line.remove_prefix(expected.size());
    return true;
  };
  if (!skip("#") || !skip("include") || !skip("\"")) return {};
  return line.substr(0, line.find('"'));
}

void follow_includes(std::string_view text, std::string_view name, std::vector<const DeviceSource*>& reached) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view path = quoted_include(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (path.empty()) continue;
    const DeviceSource* header = find_header(path);
    if (!header)
      core::invalid_argument(name, ": must include device headers of this library (got ", core::quoted(path), ")");
    if (std::ranges::find(reached, header) != reached.end()) continue;
    reached.push_back(header);
    follow_includes(header->text, header->path, reached);
  }
}

}  // namespace

std::vector<const DeviceSource*> reachable_headers(std::string_view stub) {
  std::vector<const DeviceSource*> reached;
  follow_includes(stub, "stub", reached);
  std::ranges::sort(reached, {}, &DeviceSource::path);
  return reached;
}

std::string source_hash(const Target& target, const KernelSource& source) {
  Sha256 hash;
  hash.update_field("tilewise source 1");
  hash.update_field(to_string(target));
  hash.update_field(source.symbol);
  for (const std::string& option : source.options) hash.update_field(option);
  hash.update_field("stub");
  hash.update_field(source.stub);
  for (const DeviceSource* header : reachable_headers(source.stub)) {
    hash.update_field(header->path);
    hash.update_field(header->text);
  }
  return to_hex(hash.finish());
}

}  // namespace tilewise::jit
