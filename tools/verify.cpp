// `tilewise verify`: random problems, every implementation against the reference. A failure
// prints the one line that reproduces it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backends/emulation/emulation_backend.hpp"
#include "backends/reference/reference_backend.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "operations/attention/attention.hpp"
#include "report.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"
#include "verify/verify.hpp"

namespace tilewise::tools {
namespace {

struct Options {
  std::int64_t count = 100;
  std::uint64_t seed = 1;
  std::vector<std::string> implementations, without;
  std::vector<std::string> problem_words;
  double tolerance_scale = 1.0;
  double max_flops = verify::Filter{}.max_flops;
  int threads = 0;
  bool gpu = false, report = false;
};

struct Tally {
  explicit Tally(std::string name) : implementation(std::move(name)) {}

  std::string implementation;
  std::int64_t passed = 0, failed = 0, refused = 0;
  double largest_ratio = 0.0;
  std::string refusal;  // the first one
};

operations::attention::Feature feature_named(const std::string& name) {
  std::string known;
  for (int i = 0; i < static_cast<int>(operations::attention::Feature::count_); ++i) {
    const auto feature = static_cast<operations::attention::Feature>(i);
    if (operations::attention::to_string(feature) == name) return feature;
    known += (i ? ", " : "") + std::string(operations::attention::to_string(feature));
  }
  throw Error(ErrorCode::invalid_argument, "--without: must be of " + known + " (got '" + name + "')");
}

verify::Filter make_filter(const Options& options) {
  verify::Filter filter;
  filter.max_flops = options.max_flops;
  operations::attention::FeatureSet unwanted;
  for (const std::string& name : options.without) unwanted.insert(feature_named(name));
  filter.features = filter.features.minus(unwanted);
  return filter;
}

/// The asked-for implementations, or everything but the reference and emulations, or everything on GPUs.
std::vector<Tally> make_tallies(const Options& options) {
  const std::vector<std::string> names = verify::implementation_names();
  std::vector<Tally> tallies;
  for (const std::string& name : options.implementations) {
    if (std::ranges::find(names, name) == names.end()) {
      std::string known;
      for (const std::string& other : names) known += (known.empty() ? "" : ", ") + other;
      throw Error(ErrorCode::invalid_argument, "--implementation: must be one of " + known + " (got '" + name + "')");
    }
    tallies.emplace_back(name);
  }
  if (!tallies.empty()) return tallies;
  for (const core::Implementation* row : core::implementation_table()) {
    const bool on_gpu = row->device() != DeviceType::cpu;
    const bool swept = row != &backends::reference_implementation() && !backends::is_emulation(row->name());
    if (options.gpu ? on_gpu : swept) tallies.emplace_back(std::string(row->name()));
  }
  return tallies;
}

double largest_ratio(const verify::Report& report) {
  double ratio = 0.0;
  for (const verify::OutputReport& output : report.outputs)
    ratio = std::max({ratio, output.max_ratio, output.norm_ratio});
  return ratio;
}

/// Tightens a passed report: --tolerance-scale below 1 asks how far the bounds are from being met.
void apply_tolerance_scale(verify::Report& report, double scale) {
  if (report.status != verify::Status::passed || largest_ratio(report) <= scale) return;
  report.status = verify::Status::failed;
  report.message = "error is " + format_number(largest_ratio(report)) + " of its bound; --tolerance-scale allows " +
                   format_number(scale);
  report.reproduce += " --tolerance-scale " + format_number(scale);
}

void count(Tally& tally, const verify::Report& report) {
  tally.largest_ratio = std::max(tally.largest_ratio, largest_ratio(report));
  if (report.status == verify::Status::passed) ++tally.passed;
  if (report.status == verify::Status::failed) ++tally.failed;
  if (report.status == verify::Status::refused && ++tally.refused == 1) tally.refusal = report.message;
}

void print_summary(std::span<const Tally> tallies) {
  Table table({"implementation", ">passed", ">failed", ">refused", ">largest error / bound", "first refusal"});
  for (const Tally& tally : tallies) {
    table.add_row({tally.implementation, std::to_string(tally.passed), std::to_string(tally.failed),
                   std::to_string(tally.refused),
                   tally.passed + tally.failed ? format_number(tally.largest_ratio) : "-", tally.refusal});
  }
  table.print(std::cout);
}

void run_verify(const Options& options) {
  const bool given = !options.problem_words.empty();
  const Problem problem = given ? Problem(parse_problem(single_problem(options.problem_words))) : Problem{};
  const verify::Filter filter = make_filter(options);
  std::vector<Tally> tallies = make_tallies(options);
  set_num_threads(options.threads);

  Progress progress(options.count);
  std::int64_t checks = 0, failures = 0;
  for (std::int64_t i = 0; i < options.count; ++i) {
    const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(i);
    const Problem drawn = given ? problem : verify::random_problem(seed, filter);
    for (Tally& tally : tallies) {
      progress.update(i, tally.implementation + ": " + std::to_string(failures) + " failed");
      verify::Report report = verify::check_implementation(drawn, tally.implementation, seed);
      apply_tolerance_scale(report, options.tolerance_scale);
      count(tally, report);
      if (report.status != verify::Status::refused) ++checks;
      if (report.status != verify::Status::failed) continue;
      ++failures;
      progress.clear();
      std::cout << report.to_string() << std::endl;
    }
  }
  progress.clear();
  print_summary(tallies);
  if (checks == 0) std::cout << "Nothing was checked: every implementation refused.\n";
  if (checks == 0 || failures > 0) throw Failure{};
}

}  // namespace

void add_verify(CLI::App& program) {
  CLI::App& command =
      *program.add_subcommand("verify", "Check implementations against the reference on random problems");
  const auto options = std::make_shared<Options>();
  CLI::Option* count =
      with_check(command.add_option("--count", options->count, "problems to draw (default: 100; 1 with --problem)"),
                 integer_between(1));
  with_check(
      command.add_option("--seed", options->seed, "seed of the first problem and its tensors; the next ones count up"),
      unsigned_integer())
      ->capture_default_str();
  command
      .add_option("--implementation", options->implementations,
                  "check these, comma-separated (default: all but the reference and emulations)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAME,...");
  command.add_option("--problem", options->problem_words, "check this problem instead of random ones")
      ->type_name("PROBLEM");
  command.add_option("--without", options->without, "features not to draw, e.g. backward,dropout")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("FEATURE,...");
  with_check(command.add_option("--max-flops", options->max_flops, "size limit of the problems drawn"),
             number_between(1))
      ->capture_default_str();
  with_check(command.add_option("--tolerance-scale", options->tolerance_scale,
                                "fail above this fraction of the error bound; at most 1"),
             number_between(0, 1))
      ->capture_default_str();
  CLI::Option* gpu = command.add_flag("--gpu", options->gpu, "check the implementations of GPUs alone");
  gpu->excludes(command.get_option("--implementation"));
  CLI::Option* report = command.add_flag(
      "--report", options->report, "the whole feature table on whatever GPU is here, each row in a process of its own");
  report->excludes(gpu);
  for (const char* name :
       {"--count", "--seed", "--implementation", "--problem", "--without", "--max-flops", "--tolerance-scale"})
    report->excludes(command.get_option(name));
  add_threads_option(command, options->threads);
  command.footer("Exit status 1 where a check fails or none was made.");
  command.callback([options, count] {
    if (options->report) {
      if (!print_feature_report()) throw Failure{};
      return;
    }
    if (!options->problem_words.empty() && count->count() == 0) options->count = 1;
    run_verify(*options);
  });
}

}  // namespace tilewise::tools
