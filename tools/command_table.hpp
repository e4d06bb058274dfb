// The program's subcommands and options as plain rows, read from what the command line itself is parsed with, so that
// the manual page and the shells' completions say what the program does.
#pragma once

#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace tilewise::tools {

/// What a shell may offer for an option's value.
enum class ValueKind { none, choice, file, folder, text };

struct OptionRow {
  std::vector<std::string> names;  ///< with their dashes, short ones first; a positional's one name without
  std::string value;               ///< as the help text shows it, "FILE.npy"; "" where there is none
  ValueKind kind = ValueKind::none;
  std::vector<std::string> choices;  ///< of kind choice
  std::string description, group, default_value;
  std::vector<std::string> excludes;  ///< names of options that it can't be given with
  bool required = false, repeats = false;
};

struct CommandRow {
  std::string words;  ///< "tilewise cache list"
  std::string description;
  std::string footer;  ///< "" where it is that of the command above
  std::vector<OptionRow> options, positionals;
  std::vector<CommandRow> subcommands;

  /// The last of its words.
  [[nodiscard]] std::string name() const { return words.substr(words.rfind(' ') + 1); }
};

[[nodiscard]] CommandRow command_table(const CLI::App& program);

/// The command and all below it, each before its own subcommands.
[[nodiscard]] std::vector<const CommandRow*> all_commands(const CommandRow& command);

}  // namespace tilewise::tools
