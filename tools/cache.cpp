// `tilewise cache`: the compiled kernels on disk, listed and cleared.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "commands.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "jit/disk_cache.hpp"

namespace tilewise::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMegabyte = 1e6;

/// Seconds since a kernel was used; never negative, whatever the clock did.
double age_seconds(const jit::CachedKernel& kernel) {
  const auto age = std::chrono::system_clock::now() - kernel.last_used;
  return std::max(0.0, std::chrono::duration<double>(age).count());
}

/// "40 s", "5 min", "3 h", "12 d".
std::string format_age(double seconds) {
  struct Unit {
    double seconds;
    const char* name;
  };
  constexpr Unit kUnits[] = {{86400, " d"}, {3600, " h"}, {60, " min"}, {1, " s"}};
  for (const Unit& unit : kUnits) {
    if (seconds >= 2 * unit.seconds || unit.seconds == 1) {
      return std::to_string(static_cast<long>(seconds / unit.seconds)) + unit.name;
    }
  }
  return {};
}

Json to_json(const std::vector<jit::CachedKernel>& kernels) {
  Json list = Json::array();
  for (const jit::CachedKernel& kernel : kernels) {
    list.push_back({{"key", kernel.key},
                    {"architecture", kernel.architecture},
                    {"symbol", kernel.symbol},
                    {"compiler", kernel.compiler},
                    {"bytes", kernel.bytes},
                    {"age_seconds", static_cast<long>(age_seconds(kernel))},
                    {"fault", kernel.fault}});
  }
  return {{"folder", jit::cache_folder().string()},
          {"limit_bytes", jit::cache_size_limit()},
          {"reason", jit::cache_folder_reason()},
          {"kernels", list}};
}

/// Refuses a bad TILEWISE_CACHE_SIZE_MB or a file in the folder's place before anything is said of the kernels.
void check_cache() {
  static_cast<void>(jit::cache_size_limit());
  const std::filesystem::path folder = jit::cache_folder();
  std::error_code error;
  if (std::filesystem::exists(folder, error) && !std::filesystem::is_directory(folder, error)) {
    core::invalid_argument("TILEWISE_CACHE_DIR: must be a folder (got the file '", folder.string(), "')");
  }
}

void list_kernels(bool json) {
  check_cache();
  check_that_cache_keeps();
  const std::vector<jit::CachedKernel> kernels = jit::list_disk_cache();
  if (json) {
    std::cout << to_json(kernels).dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
    return;
  }
  std::uintmax_t bytes = 0;
  Table table({"target", "kernel", "compiler", ">kB", ">used", "key"});
  constexpr std::size_t kShownDigits = 12;
  for (const jit::CachedKernel& kernel : kernels) {
    bytes += kernel.bytes;
    const std::string name = kernel.fault.empty() ? kernel.symbol : "(" + kernel.fault + ")";
    table.add_row({kernel.architecture, name, kernel.compiler, std::to_string(kernel.bytes / 1000),
                   format_age(age_seconds(kernel)) + " ago", kernel.key.substr(0, kShownDigits)});
  }
  if (!kernels.empty()) table.print(std::cout);
  const std::string folder = jit::cache_folder().string();
  std::cout << kernels.size() << (kernels.size() == 1 ? " kernel, " : " kernels, ")
            << format_number(static_cast<double>(bytes) / kMegabyte) << " of "
            << format_number(static_cast<double>(jit::cache_size_limit()) / kMegabyte) << " MB in "
            << (folder.empty() ? jit::cache_folder_reason() : folder) << '\n';
}

void clear_kernels() {
  const std::size_t count = jit::clear_disk_cache();
  std::cout << "removed " << count << (count == 1 ? " kernel" : " kernels") << " from " << jit::cache_folder().string()
            << '\n';
}

}  // namespace

void add_cache(CLI::App& program) {
  CLI::App& command = *program.add_subcommand("cache", "List or clear the compiled kernels on disk");
  command.require_subcommand(1);
  CLI::App& list = *command.add_subcommand("list", "List the kernels, most recently used first");
  const auto json = std::make_shared<bool>(false);
  list.add_flag("--json", *json, "print JSON");
  list.callback([json] { list_kernels(*json); });
  command.add_subcommand("clear", "Remove every kernel")->callback(clear_kernels);
}

}  // namespace tilewise::tools
