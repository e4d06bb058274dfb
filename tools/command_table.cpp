// Reads the rows of the command's options from CLI11.
#include "command_table.hpp"

#include <algorithm>
#include <string_view>

namespace tilewise::tools {
namespace {

/// "a|b|c" in its parts.
std::vector<std::string> split_choices(std::string_view text) {
  std::vector<std::string> choices;
  while (true) {
    const std::size_t end = text.find('|');
    choices.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return choices;
    text.remove_prefix(end + 1);
  }
}

ValueKind kind_of(const std::string& value) {
  if (value.find('|') != std::string::npos) return ValueKind::choice;
  if (value.starts_with("FILE")) return ValueKind::file;
  return value == "DIR" ? ValueKind::folder : ValueKind::text;
}

OptionRow option_row(const CLI::Option& option) {
  OptionRow row;
  if (option.nonpositional()) {
    for (const std::string& name : option.get_snames()) row.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) row.names.push_back("--" + name);
  } else {
    row.names.push_back(option.get_name(true));
  }
  if (option.get_items_expected_max() > 0) {
    row.value = option.get_option_text().empty() ? option.get_type_name() : option.get_option_text();
    row.kind = kind_of(option.get_type_name());
    if (row.kind == ValueKind::choice) row.choices = split_choices(option.get_type_name());
    row.repeats = option.get_items_expected_max() > 1;
    row.default_value = option.get_default_str();
  }
  row.description = option.get_description();
  row.group = option.get_group();
  row.required = option.get_required();
  for (const CLI::Option* other : option.get_excludes()) row.excludes.push_back(other->get_name());
  std::ranges::sort(row.excludes);
  return row;
}

CommandRow command_row(const CLI::App& command, const std::string& words, const std::string& footer_above) {
  CommandRow row;
  row.words = words;
  row.description = command.get_description();
  if (command.get_footer() != footer_above) row.footer = command.get_footer();
  for (const CLI::Option* option : command.get_options([](const CLI::Option*) { return true; })) {
    (option->nonpositional() ? row.options : row.positionals).push_back(option_row(*option));
  }
  for (const CLI::App* below : command.get_subcommands([](const CLI::App*) { return true; })) {
    row.subcommands.push_back(command_row(*below, words + ' ' + below->get_name(), command.get_footer()));
  }
  return row;
}

}  // namespace

CommandRow command_table(const CLI::App& program) { return command_row(program, program.get_name(), {}); }

std::vector<const CommandRow*> all_commands(const CommandRow& command) {
  std::vector<const CommandRow*> commands = {&command};
  for (const CommandRow& below : command.subcommands) {
    const std::vector<const CommandRow*> more = all_commands(below);
    commands.insert(commands.end(), more.begin(), more.end());
  }
  return commands;
}

}  // namespace tilewise::tools
