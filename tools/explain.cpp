// `tilewise explain`: every implementation with its verdict, estimate and reason.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.hpp"
#include "console.hpp"
#include "core/explain.hpp"
#include "gpu/architectures.hpp"
#include "option_checks.hpp"
#include "target.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::tools {
namespace {

struct ExplainOptions {
  std::vector<std::string> words;
  std::string implementation, target;
  int multiprocessors = 0;
  bool json = false;
};

nlohmann::ordered_json to_json(const Explanation& explanation) {
  nlohmann::ordered_json report;
  report["problem"] = to_string(explanation.problem);
  report["implementations"] = nlohmann::ordered_json::array();
  for (const ExplainRow& row : explanation.rows) {
    nlohmann::ordered_json entry;
    entry["implementation"] = row.implementation;
    entry["accepted"] = row.accepted;
    entry["chosen"] = row.chosen;
    if (row.accepted) {
      entry["estimated_us"] = row.estimated_us;
      entry["schedule"] = row.reason;
    } else {
      entry["reason"] = row.reason;
    }
    report["implementations"].push_back(std::move(entry));
  }
  return report;
}

void print(const Explanation& explanation, const std::string& note, bool json) {
  if (json) {
    std::cout << to_json(explanation).dump(2) << '\n';
    return;
  }
  const std::string table = explanation.to_string();
  std::cout << table << (table.ends_with('\n') ? "" : "\n") << note;
}

void explain_problem(const ExplainOptions& options) {
  const std::string text = single_problem(options.words);
  const SelectOptions select{options.implementation};
  if (options.target.empty()) return print(explain(parse_problem(text), select), {}, options.json);
  const gpu::Architecture& architecture = gpu::named_architecture(options.target);
  const core::DeviceDescription device = described_target(architecture, options.multiprocessors);
  print(core::explain_for(read_problem(text, architecture), select, device, core::Whereabouts::elsewhere),
        note_on(architecture), options.json);
}

}  // namespace

void add_explain(CLI::App& program) {
  CLI::App& command = *program.add_subcommand("explain", "Say which implementation computes a problem, and why");
  const auto options = std::make_shared<ExplainOptions>();
  command.add_option("PROBLEM", options->words, "the problem, as one line of text")->required()->option_text("...");
  add_implementation_option(command, options->implementation);
  CLI::Option* const target =
      command.add_option("--target", options->target, "as on this GPU, which need not be here, e.g. sm_90a, gfx942")
          ->type_name("NAME");
  with_check(command.add_option("--multiprocessors", options->multiprocessors,
                                "of a target with as many (default: those of a common GPU of it)"),
             integer_between(1, 65536))
      ->needs(target);
  command.add_flag("--json", options->json, "print JSON");
  command.callback([options] { explain_problem(*options); });
}

}  // namespace tilewise::tools
