// `tilewise explain`: every implementation with its verdict, estimate and reason.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands.hpp"
#include "console.hpp"
#include "option_checks.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::tools {
namespace {

struct ExplainOptions {
  std::vector<std::string> words;
  std::string implementation;
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

void explain_problem(const ExplainOptions& options) {
  const std::string text = single_problem(options.words);
  const Explanation explanation = explain(parse_problem(text), SelectOptions{options.implementation});
  if (options.json) {
    std::cout << to_json(explanation).dump(2) << '\n';
    return;
  }
  const std::string table = explanation.to_string();
  std::cout << table << (table.ends_with('\n') ? "" : "\n");
}

}  // namespace

void add_explain(CLI::App& program) {
  CLI::App& command = *program.add_subcommand("explain", "Say which implementation computes a problem, and why");
  const auto options = std::make_shared<ExplainOptions>();
  command.add_option("PROBLEM", options->words, "the problem, as one line of text")->required()->option_text("...");
  add_implementation_option(command, options->implementation);
  command.add_flag("--json", options->json, "print JSON");
  command.callback([options] { explain_problem(*options); });
}

}  // namespace tilewise::tools
