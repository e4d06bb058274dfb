// Lines of "SCHEDULE<tab>IMPLEMENTATION PROBLEM" under one that names the version.
#include "jit/tuned_schedules.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "core/message.hpp"
#include "jit/disk_cache.hpp"
#include "jit/files.hpp"
#include "jit/trust.hpp"
#include "tilewise/error.hpp"
#include "tilewise/tilewise.h"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;

fs::path file_of(const std::string& device_kind) { return cache_folder() / "tuned" / (device_kind + ".txt"); }

std::string first_line() { return core::concat("tilewise ", tilewise_version()); }

}  // namespace

std::shared_ptr<const core::TunedSchedules> load_tuned_schedules(const std::string& device_kind) {
  if (cache_folder().empty()) return nullptr;
  const fs::path path = file_of(device_kind);
  std::error_code error;
  if (!fs::exists(path, error) || !distrust(path).empty()) return nullptr;
  const auto bytes = read_file(path);
  if (!bytes) return nullptr;
  std::istringstream text(std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()));
  std::string line;
  if (!std::getline(text, line) || line != first_line()) return nullptr;
  core::TunedSchedules schedules;
  while (std::getline(text, line)) {
    const std::size_t tab = line.find('\t');
    if (tab != std::string::npos) schedules[line.substr(tab + 1)] = line.substr(0, tab);
  }
  return std::make_shared<const core::TunedSchedules>(std::move(schedules));
}

void store_tuned_schedules(const std::string& device_kind, const core::TunedSchedules& schedules) {
  if (cache_folder().empty()) throw Error(ErrorCode::runtime, cache_folder_reason());
  const fs::path path = file_of(device_kind);
  std::string text = first_line() + "\n";
  for (const auto& [key, schedule] : schedules) core::append(text, core::concat(schedule, "\t", key, "\n"));
  std::string fault = distrust(path.parent_path());
  if (fault.empty() && !make_folder(path.parent_path())) {
    fault = core::concat(path.parent_path().string(), ": ", std::strerror(errno));
  }
  if (fault.empty()) fault = write_file_atomically(path, as_bytes(text));
  if (!fault.empty()) throw Error(ErrorCode::runtime, fault);
}

}  // namespace tilewise::jit
