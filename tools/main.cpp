// The `tilewise` command: hands over to a subcommand and turns what it throws into a message on
// standard error and an exit status (0 done, 1 the task failed, 2 usage or bad input).
#include <algorithm>
#include <exception>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "console.hpp"
#include "core/spelling.hpp"
#include "core/thrown.hpp"
#include "operations/attention/foreign_words.hpp"
#include "run_kv_cache.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"

namespace {

using namespace tilewise;
using namespace tilewise::tools;

constexpr const char* kFooter =
    "PROBLEM is one line as Tilewise prints it, quoted or not: the operation, then key=value\n"
    "with defaults left out, e.g.\n"
    "  tilewise explain attention_forward dtype=bf16 seqlen_q=4096 num_heads_q=16 head_dim=128 mask=causal\n"
    "Exit status: 0 done, 1 the task failed, 2 usage or bad input.";

int exit_status(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::invalid_type ? kExitUsage : kExitFailure;
}

int report(const std::exception& error, int status) {
  std::cout.flush();
  std::cerr << "tilewise: " << error.what() << '\n';
  return status;
}

/// CLI11 only says that a subcommand is required where the first word is none. `words` end with null.
void check_subcommand(const CLI::App& program, const char* const* words) {
  if (!*words || **words == '-') return;
  const auto commands = program.get_subcommands([](const CLI::App*) { return true; });
  std::vector<std::string> names;
  for (const CLI::App* command : commands) {
    if (command->get_name() == *words) return check_subcommand(*command, words + 1);
    names.push_back(command->get_name());
  }
  if (names.empty()) return;
  core::refuse_word("SUBCOMMAND", *words, std::vector<std::string_view>(names.begin(), names.end()));
}

/// The sentence about the first option that the subcommand in use does not have, or "".
std::string unknown_option(const CLI::App& program) {
  const CLI::App* command = &program;
  std::string name = program.get_name();
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  std::vector<std::string_view> known, all;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& spelling : option->get_lnames()) {
      all.push_back(spelling);
      if (option->get_group() != kKvCacheGroup) known.push_back(spelling);
    }
  }
  const std::vector<std::string> words = program.remaining(true);
  const auto found = std::ranges::find_if(words, [](const std::string& word) { return word.starts_with("--"); });
  if (found == words.end()) return {};
  const std::string option = found->substr(0, found->find('='));
  std::string sentence = option + ": must be an option of `" + name + "`";
  // Attention's options come first: --scale means --softmax-scale sooner than --k-scale of a cache.
  auto meaning = operations::attention::meaning_of(std::string_view(option).substr(2), known);
  if (meaning.key.empty()) meaning = operations::attention::meaning_of(std::string_view(option).substr(2), all);
  const auto& [key, value, other] = meaning;
  if (key.empty()) return sentence;
  sentence += "; did you mean --" + std::string(key);
  if (!value.empty()) sentence += " " + std::string(value);
  if (!other.empty()) sentence += " and --" + std::string(other);
  return sentence + "?";
}

int run_command(int argc, char** argv) {
  CLI::App program("Fused attention for CPUs and GPUs: what runs here, on your arrays, how right and how fast.",
                   "tilewise");
  program.set_version_flag("--version", "tilewise " + std::string(version()));
  program.require_subcommand(1);
  program.footer(kFooter);
  add_doctor(program);
  add_explain(program);
  add_run(program);
  add_verify(program);
  add_bench(program);
  add_tune(program);
  add_cache(program);
  add_compile(program);
  add_completion(program);
  add_manual(program);
  if (argc > 1) check_subcommand(program, argv + 1);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return program.exit(success);
  } catch (const CLI::ParseError& error) {
    // A mistyped option may be the one that is missed, so it comes first.
    const std::string unknown = unknown_option(program);
    unknown.empty() ? report(error, kExitUsage) : report(std::runtime_error(unknown), kExitUsage);
    std::cerr << "Run tilewise --help, or tilewise SUBCOMMAND --help, for the options.\n";
    return kExitUsage;
  }
  return kExitOk;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int status = run_command(argc, argv);
    std::cout.flush();
    if (!std::cout) throw Error(ErrorCode::runtime, "standard output: could not be written");
    return status;
  } catch (const Failure&) {
    return kExitFailure;
  } catch (const Error& error) {
    return report(error, exit_status(error.code()));
  } catch (const std::bad_alloc&) {
    return report(Error(ErrorCode::runtime, "not enough memory"), kExitFailure);
  } catch (const std::exception& error) {
    return report(error, kExitFailure);
  } catch (...) {
    return report(Error(ErrorCode::runtime, core::describe_thrown(std::current_exception()).message), kExitFailure);
  }
}
