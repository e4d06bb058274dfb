// `tilewise completion`: what bash, zsh and fish offer while the command is typed, from its own options.
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "command_table.hpp"
#include "commands.hpp"
#include "option_checks.hpp"

namespace tilewise::tools {
namespace {

std::string joined(const std::vector<std::string>& words, std::string_view separator = " ") {
  std::string list;
  for (const std::string& word : words) {
    if (!list.empty()) list += separator;
    list += word;
  }
  return list;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

/// A word of a POSIX shell's script.
std::string quoted_word(const std::string& text) { return "'" + replaced(text, "'", "'\\''") + "'"; }

std::vector<std::string> subcommand_names(const CommandRow& command) {
  std::vector<std::string> names;
  for (const CommandRow& below : command.subcommands) names.push_back(below.name());
  return names;
}

/// 'tilewise cache' | 'tilewise cache list' | ...: the pattern of a case of bash.
std::string known_commands(const CommandRow& program, std::string_view separator) {
  std::vector<std::string> patterns;
  for (const CommandRow* command : all_commands(program)) {
    if (command != &program) patterns.push_back(quoted_word(command->words));
  }
  return joined(patterns, separator);
}

// ---- bash -----------------------------------------------------------------------------------

constexpr std::string_view kBashBegin =
    R"(# bash completion of tilewise, made by `tilewise completion bash` from the command's own options.
_tilewise() {
  COMPREPLY=()
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command=tilewise index
  if [[ $word == = ]]; then
    word=
  elif [[ $before == = ]]; then
    before=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((index = 1; index < COMP_CWORD; ++index)); do
    case "$command ${COMP_WORDS[index]}" in
      )";

constexpr std::string_view kBashEnd = R"(  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _tilewise tilewise
)";

/// What compgen is to offer for a value; nothing for a text that only the user knows.
std::string bash_generator(const OptionRow& option) {
  switch (option.kind) {
    case ValueKind::choice:
      return "-W " + quoted_word(joined(option.choices));
    case ValueKind::file:
      return "-f";
    case ValueKind::folder:
      return "-d";
    default:
      return {};
  }
}

std::string bash_completion(const CommandRow& program) {
  std::string script(kBashBegin);
  script += known_commands(program, " | ") +
            ") command+=\" ${COMP_WORDS[index]}\" ;;\n    esac\n  done\n  local words=\n  case $command in\n";
  for (const CommandRow* command : all_commands(program)) {
    std::vector<std::string> words = subcommand_names(*command);
    for (const OptionRow& positional : command->positionals) {
      words.insert(words.end(), positional.choices.begin(), positional.choices.end());
    }
    for (const OptionRow& option : command->options) {
      words.insert(words.end(), option.names.begin(), option.names.end());
    }
    script += "    " + quoted_word(command->words) + ") words=" + quoted_word(joined(words)) + " ;;\n";
  }
  script += "  esac\n  case \"$command $before\" in\n";
  for (const CommandRow* command : all_commands(program)) {
    for (const OptionRow& option : command->options) {
      if (option.kind == ValueKind::none) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names) patterns.push_back(quoted_word(command->words + ' ' + name));
      const std::string generator = bash_generator(option);
      script += "    " + joined(patterns, " | ") + ")\n";
      const bool path = option.kind == ValueKind::file || option.kind == ValueKind::folder;
      if (path) script += "      compopt -o filenames 2>/dev/null\n";
      if (!generator.empty()) script += "      mapfile -t COMPREPLY < <(compgen " + generator + " -- \"$word\")\n";
      script += "      return\n      ;;\n";
    }
  }
  return script + "  esac\n" + std::string(kBashEnd);
}

// ---- zsh ------------------------------------------------------------------------------------

/// Text within the brackets and between the colons of _arguments.
std::string zsh_text(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '[' || c == ']' || c == ':') result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_action(const OptionRow& option) {
  const std::string message = ':' + zsh_text(option.value) + ':';
  switch (option.kind) {
    case ValueKind::choice:
      return message + '(' + joined(option.choices) + ')';
    case ValueKind::file:
      return message + "_files";
    case ValueKind::folder:
      return message + "_files -/";
    case ValueKind::text:
      return message;
    default:
      return {};
  }
}

std::string zsh_function(const CommandRow& command) { return '_' + replaced(command.words, " ", "_"); }

std::string zsh_arguments(const CommandRow& command) {
  std::vector<std::string> specifications;
  for (const OptionRow& option : command.options) {
    for (const std::string& name : option.names) {
      const std::string others = option.repeats ? "*" : '(' + joined(option.names) + ')';
      const char* equals_too = option.kind != ValueKind::none && name.starts_with("--") ? "=" : "";
      specifications.push_back(
          quoted_word(others + name + equals_too + '[' + zsh_text(option.description) + ']' + zsh_action(option)));
    }
  }
  for (const OptionRow& positional : command.positionals) {
    specifications.push_back(quoted_word((positional.repeats ? "*:" : "1:") + zsh_text(positional.names.front()) + ':' +
                                         (positional.choices.empty() ? "" : '(' + joined(positional.choices) + ')')));
  }
  return joined(specifications, " \\\n    ");
}

std::string zsh_command(const CommandRow& command) {
  std::string script = zsh_function(command) + "() {\n";
  if (command.subcommands.empty()) return script + "  _arguments \\\n    " + zsh_arguments(command) + "\n}\n";
  std::vector<std::string> described;
  for (const CommandRow& below : command.subcommands) {
    described.push_back(quoted_word(below.name() + ':' + below.description));
  }
  script += "  local curcontext=$curcontext state line\n  local -a commands=(\n    " + joined(described, "\n    ") +
            "\n  )\n  _arguments -C \\\n    " + zsh_arguments(command) +
            " \\\n    '1: :->command' \\\n    '*:: :->rest'\n  case $state in\n"
            "    command) _describe subcommand commands ;;\n    rest)\n      case $words[1] in\n";
  for (const CommandRow& below : command.subcommands) {
    script += "        " + below.name() + ") " + zsh_function(below) + " ;;\n";
  }
  return script + "      esac\n      ;;\n  esac\n}\n";
}

/// Works as a file of fpath and as one that is sourced.
std::string zsh_completion(const CommandRow& program) {
  std::string script =
      "#compdef tilewise\n# Completion of tilewise, made by `tilewise completion zsh` from the command's own "
      "options.\n";
  for (const CommandRow* command : all_commands(program)) script += zsh_command(*command);
  return script +
         "if [[ $funcstack[1] == _tilewise ]]; then\n  _tilewise \"$@\"\nelse\n  compdef _tilewise tilewise\nfi\n";
}

// ---- fish -----------------------------------------------------------------------------------

constexpr std::string_view kFishBegin =
    R"(# Completion of tilewise, made by `tilewise completion fish` from the command's own options.
function __tilewise_command --description 'The subcommands typed so far'
  set -l command tilewise
  for word in (commandline -opc)[2..-1]
    switch "$command $word"
      case )";

constexpr std::string_view kFishMiddle = R"(
        set command "$command $word"
    end
  end
  echo $command
end
)";

std::string fish_word(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish_value(const OptionRow& option) {
  switch (option.kind) {
    case ValueKind::none:
      return {};
    case ValueKind::choice:
      return " -x -a " + fish_word(joined(option.choices));
    case ValueKind::file:
      return " -r -F";
    case ValueKind::folder:
      return " -x -a '(__fish_complete_directories)'";
    default:
      return " -x";
  }
}

std::string fish_completion(const CommandRow& program) {
  std::string script(kFishBegin);
  script += known_commands(program, " ");
  script += kFishMiddle;
  for (const CommandRow* command : all_commands(program)) {
    const std::string here =
        "complete -c tilewise -n " + fish_word("test (__tilewise_command) = \"" + command->words + '"');
    script += here + " -f\n";
    for (const CommandRow& below : command->subcommands) {
      script += here + " -f -a " + below.name() + " -d " + fish_word(below.description) + '\n';
    }
    for (const OptionRow& positional : command->positionals) {
      if (!positional.choices.empty()) script += here + " -f -a " + fish_word(joined(positional.choices)) + '\n';
    }
    for (const OptionRow& option : command->options) {
      script += here;
      for (const std::string& name : option.names) {
        script += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      script += fish_value(option) + " -d " + fish_word(option.description) + '\n';
    }
  }
  return script;
}

struct Shell {
  const char* name;
  std::string (*script)(const CommandRow& program);
};
constexpr Shell kShells[] = {{"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}};

}  // namespace

void add_completion(CLI::App& program) {
  CLI::App& command =
      *program.add_subcommand("completion", "Print a shell's completion, e.g. for source <(tilewise completion bash)");
  std::vector<std::string> names;
  for (const Shell& shell : kShells) names.emplace_back(shell.name);
  const auto name = std::make_shared<std::string>();
  with_check(command.add_option("SHELL", *name, "whose completion to print"), one_of(names))->required();
  command.callback([&program, name] {
    for (const Shell& shell : kShells) {
      if (*name == shell.name) std::cout << shell.script(command_table(program));
    }
  });
}

}  // namespace tilewise::tools
