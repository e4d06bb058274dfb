// `tilewise manual`: the manual page, in the macros of man(7), from the options themselves.
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>

#include "command_table.hpp"
#include "commands.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::tools {
namespace {

/// Text as roff reads it: no line is taken for a macro, and dashes stay dashes.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool line_begins = result.empty() || result.back() == '\n';
    if (line_begins && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else {
      result += c;
    }
  }
  return result;
}

/// The first line is bold, as names of options are.
void print_entry(std::ostream& page, const std::string& bold, const std::string& text) {
  page << ".TP\n.B " << escaped(bold) << '\n' << escaped(text) << '\n';
}

std::string with_commas(const std::vector<std::string>& words) {
  std::string list;
  for (const std::string& word : words) list += (list.empty() ? "" : ", ") + word;
  return list;
}

void print_option(std::ostream& page, const OptionRow& option) {
  const bool positional = !option.names.front().starts_with('-');
  std::string text = option.description;
  if (option.required && !positional) text += " (required)";
  if (!option.default_value.empty()) text += " (default: " + option.default_value + ")";
  if (!option.excludes.empty()) text += "; not with " + with_commas(option.excludes);
  print_entry(page, with_commas(option.names) + (option.value.empty() ? "" : ' ' + option.value), text);
}

std::string synopsis(const CommandRow& command) {
  std::string line = command.words + " [OPTIONS]";
  if (!command.subcommands.empty()) line += " SUBCOMMAND";
  for (const OptionRow& positional : command.positionals) {
    const std::string word = positional.names.front() + (positional.repeats ? "..." : "");
    line += positional.required ? ' ' + word : " [" + word + ']';
  }
  return line;
}

/// Lines of a footer stay as they are.
void print_footer(std::ostream& page, const std::string& footer) {
  if (!footer.empty()) page << ".nf\n" << escaped(footer) << "\n.fi\n";
}

void print_options(std::ostream& page, const CommandRow& command) {
  for (const OptionRow& positional : command.positionals) print_option(page, positional);
  std::string group;
  for (const OptionRow& option : command.options) {
    if (option.group != group && option.group != "Options") page << ".PP\n" << escaped(option.group) << ":\n";
    group = option.group;
    print_option(page, option);
  }
}

std::string manual_page(const CommandRow& program) {
  std::ostringstream page;
  page << ".\\\" Made by `tilewise manual` from the command's own options.\n"
       << ".TH TILEWISE 1 \"\" \"tilewise " << version() << "\" \"User Commands\"\n"
       << ".SH NAME\n"
       << escaped(program.name()) << " \\- " << escaped(program.description) << '\n'
       << ".SH SYNOPSIS\n";
  for (const CommandRow& command : program.subcommands) {
    if (&command != &program.subcommands.front()) page << ".br\n";
    page << ".B " << escaped(command.words) << '\n'
         << escaped(synopsis(command).substr(command.words.size() + 1)) << '\n';
  }
  page << ".SH OPTIONS\n";
  print_options(page, program);
  page << ".SH SUBCOMMANDS\n";
  for (const CommandRow* command : all_commands(program)) {
    if (command == &program) continue;
    page << ".SS " << escaped(synopsis(*command)) << '\n' << escaped(command->description) << ".\n";
    print_options(page, *command);
    if (!command->footer.empty()) page << ".PP\n";
    print_footer(page, command->footer);
  }
  page << ".SH NOTES\n";
  print_footer(page, program.footer);
  page << ".SH SEE ALSO\n"
       << "What every option means: semantics.md among the package's documents, and\n"
       << ".B python \\-m tilewise.semantics\n"
       << "where the Python package is installed.\n";
  return page.str();
}

}  // namespace

void add_manual(CLI::App& program) {
  program.add_subcommand("manual", "Print the manual page, e.g. for man -l -")->callback([&program] {
    std::cout << manual_page(command_table(program));
  });
}

}  // namespace tilewise::tools
