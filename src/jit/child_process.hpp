// Runs a program in a process of its own, with a time limit: what a compiler does to itself stays there.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/visibility.hpp"

namespace tilewise::jit {

struct TILEWISE_INTERNAL ChildResult {
  std::string start_error;  ///< why it could not be started; empty where it was
  int exit_status = 0;
  int signal = 0;  ///< that ended it; 0: it ended by itself
  bool timed_out = false;
  std::string output, errors;  ///< of standard output and standard error; cut at a generous length
  double seconds = 0;

  [[nodiscard]] bool succeeded() const { return start_error.empty() && exit_status == 0 && signal == 0 && !timed_out; }
  /// "exit status 1", "ended by signal 6 (Aborted)", "stopped after 120 s": for messages.
  [[nodiscard]] std::string ending() const;
};

/// `arguments[0]` is a path or is looked up in PATH. The program gets `input` on standard input, runs in `folder`
/// (empty: here), in a process group of its own that is killed after `limit_seconds`, and with messages in English.
[[nodiscard]] TILEWISE_INTERNAL ChildResult run_child(const std::vector<std::string>& arguments, std::string_view input,
                                                      const std::string& folder, double limit_seconds);

/// Words that run `arguments` in `folder` where the C library can't start a process in one (glibc before 2.29).
[[nodiscard]] std::vector<std::string> command_in(const std::string& folder, const std::vector<std::string>& arguments);

}  // namespace tilewise::jit
