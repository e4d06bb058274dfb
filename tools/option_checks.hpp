// Option checks whose messages name the argument, the expectation and the value, and options that subcommands share.
// Apart from console.hpp, since CLI11's headers take three seconds to compile.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace tilewise::tools {

/// An option check: an integer in [low, high].
[[nodiscard]] CLI::Validator integer_between(std::int64_t low,
                                             std::int64_t high = std::numeric_limits<std::int64_t>::max());
/// An option check: a number in [low, high]; infinities and NaN are refused.
[[nodiscard]] CLI::Validator number_between(double low, double high = std::numeric_limits<double>::max());
/// An option check: a number; the library says what is wrong with an unfit one.
[[nodiscard]] CLI::Validator any_number();
/// An option check: an integer from 0 to 2^64 - 1.
[[nodiscard]] CLI::Validator unsigned_integer();
/// An option check: one of these words.
[[nodiscard]] CLI::Validator one_of(std::vector<std::string> words);
/// An option check: a name to write to, which "-" is not; `type` is shown as the option's.
[[nodiscard]] CLI::Validator path_to_write(const std::string& type);

/// Attaches a check, whose description becomes the option's type in the help text.
CLI::Option* with_check(CLI::Option* option, CLI::Validator check);

/// Adds --threads; call set_num_threads() with it (0: the default).
void add_threads_option(CLI::App& command, int& threads);
/// Adds --implementation.
void add_implementation_option(CLI::App& command, std::string& implementation);

}  // namespace tilewise::tools
