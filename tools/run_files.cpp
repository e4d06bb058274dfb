// Reads, checks and writes the files of a call.
#include "run_files.hpp"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "core/message.hpp"
#include "npy.hpp"

namespace tilewise::tools {
namespace {

void check_named(std::string_view option, const std::string& file, std::string_view with) {
  if (file == kStandardStream) core::invalid_argument(option, ": must name a file with ", with, " (got '-')");
}

}  // namespace

Array read_named(std::string_view option, const std::string& file, std::string_view with) {
  check_named(option, file, with);
  return read_npy(file);
}

bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  return fs::weakly_canonical(fs::absolute(a)) == fs::weakly_canonical(fs::absolute(b));
}

void Results::add(const std::string& option, const std::string& file, const TensorView& array) {
  if (file.empty()) return;
  check_named(option, file, with_);
  const auto same = [&file](const Result& other) { return same_file(file, other.file); };
  if (const auto other = std::ranges::find_if(results_, same); other != results_.end()) {
    core::invalid_argument(option, ": must name another file than ", other->option, " (got '", file, "')");
  }
  results_.push_back({option, file, array});
}

void Results::check_wanted() const {
  if (results_.empty()) core::invalid_argument("--out: must name a file to write, or another output (got none)");
}

void Results::write() const {
  for (const Result& result : results_) {
    write_npy(result.file, result.array);
    std::cout << result.file << ": " << describe(result.array) << '\n';
  }
}

void print_plan(std::ostream& stream, const Plan& plan) {
  stream << to_string(plan.problem()) << "\n  " << plan.implementation() << ", " << plan.schedule() << '\n';
}

}  // namespace tilewise::tools
