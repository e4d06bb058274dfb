// What operations of `tilewise run` share whose tensors come from files alone: reading them, and the files that results
// go to.
#pragma once

#include <algorithm>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "array.hpp"
#include "core/message.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::tools {

/// Instead of a file's name: standard input for one input, standard output for one result.
inline constexpr std::string_view kStandardStream = "-";

/// "--softmax-lse"
[[nodiscard]] inline std::string flag_of(std::string_view name) {
  std::string flag = core::concat("--", name);
  std::ranges::replace(flag, '_', '-');
  return flag;
}

/// read_npy() of a file that `option` names. `with` is the option that chose the operation, which knows no standard
/// streams. Throws Error.
[[nodiscard]] Array read_named(std::string_view option, const std::string& file, std::string_view with);

/// Whether both names lead to one file.
[[nodiscard]] bool same_file(const std::string& a, const std::string& b);

/// Files with room for a result, each once.
class Results {
 public:
  explicit Results(std::string_view with) : with_(with) {}
  /// Does nothing where no file is named. Throws Error for one that is taken. The array must outlive the results.
  void add(const std::string& option, const std::string& file, const TensorView& array);
  /// Throws Error where there is nothing to write.
  void check_wanted() const;
  void write() const;

 private:
  struct Result {
    std::string option, file;
    TensorView array;
  };
  std::string_view with_;
  std::vector<Result> results_;
};

/// Throws Error unless the problem that a text states is the one that `files` make.
template <typename Problem>
void check_agrees(const Problem& stated, const Problem& described, std::string_view files) {
  if (stated == described) return;
  core::invalid_argument("PROBLEM: must agree with ", files, ", which make '", to_string(described), "' (got '",
                         to_string(stated), "')");
}

/// Which problem runs by which implementation.
void print_plan(std::ostream& stream, const Plan& plan);

}  // namespace tilewise::tools
