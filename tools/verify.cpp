// `tilewise verify`: random problems, every implementation against the reference. A failure
// prints the one line that reproduces it.
#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backends/emulation/emulation_backend.hpp"
#include "backends/reference/reference_backend.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "core/select.hpp"
#include "core/spelling.hpp"
#include "option_checks.hpp"
#include "report.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise::tools {
namespace {

struct VerifyOptions {
  std::int64_t count = 100, sizes = 1, head_dim_multiple = 1;
  std::uint64_t seed = 1;
  std::vector<std::string> implementations, without;
  std::vector<std::string> problem_words;
  std::string operation;
  double tolerance_scale = 1.0;
  double max_flops = verify::Limits{}.max_flops;
  int threads = 0;
  bool gpu = false, report = false;
};

struct Tally {
  explicit Tally(std::string name) : implementation(std::move(name)) {}

  std::string implementation;
  std::int64_t passed = 0, failed = 0, refused = 0;
  double largest_ratio = 0.0;
  std::string refusal;  // the first one that says more than kComputesNo
};

/// Why an implementation refuses the problems of an operation that it has no row for.
constexpr std::string_view kComputesNo = "computes no ";

bool has_row(const core::OperationInterface& operation, const Tally& tally) {
  return core::find_row(core::implementation_table(), operation, tally.implementation) != nullptr;
}

/// The operations to draw problems of: the one that is named, or all that any of the implementations computes.
std::vector<const verify::Verifier*> drawn_operations(const VerifyOptions& options, std::span<const Tally> tallies) {
  std::vector<const verify::Verifier*> drawn;
  for (const verify::Verifier* verifier : verify::verifiers()) {
    const core::OperationInterface& operation = verifier->operation();
    const bool computed =
        std::ranges::any_of(tallies, [&operation](const Tally& tally) { return has_row(operation, tally); });
    if (options.operation.empty() ? computed : operation.name() == options.operation) drawn.push_back(verifier);
  }
  return drawn;
}

std::vector<std::string> operation_names() {
  std::vector<std::string> names;
  for (const core::OperationInterface* operation : core::operation_table()) names.emplace_back(operation->name());
  return names;
}

/// The limits of each operation that is drawn. A feature to leave out may be of any operation, drawn or not, so that
/// one list serves all of them.
std::vector<verify::Limits> make_limits(const VerifyOptions& options, std::span<const verify::Verifier* const> drawn) {
  std::vector<verify::Limits> limits(
      drawn.size(), verify::Limits{.max_flops = options.max_flops, .head_dim_multiple = options.head_dim_multiple});
  std::vector<std::string_view> known;
  for (const verify::Verifier* verifier : verify::verifiers()) {
    for (const std::string_view name : verifier->operation().feature_names())
      if (std::ranges::find(known, name) == known.end()) known.push_back(name);
  }
  for (const std::string& name : options.without) {
    if (std::ranges::find(known, name) == known.end()) {
      core::invalid_argument("--without: must be of ", core::listed(known), core::did_you_mean(name, known), " (got ",
                             core::quoted(name), ")");
    }
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      const std::span<const std::string_view> names = drawn[i]->operation().feature_names();
      const auto found = std::ranges::find(names, name);
      if (found != names.end()) limits[i].features &= ~(core::FeatureBits{1} << (found - names.begin()));
    }
  }
  return limits;
}

/// The asked-for implementations, or everything but the reference and emulations, or everything on GPUs.
std::vector<Tally> make_tallies(const VerifyOptions& options) {
  const std::vector<std::string> names = verify::implementation_names();
  std::vector<Tally> tallies;
  for (const std::string& name : options.implementations) {
    if (std::ranges::find(names, name) == names.end()) {
      core::refuse_word("--implementation", name, std::vector<std::string_view>(names.begin(), names.end()));
    }
    tallies.emplace_back(name);
  }
  if (!tallies.empty()) return tallies;
  for (const core::Implementation* row : core::implementation_table()) {
    const bool on_gpu = row->device() != DeviceType::cpu;
    const bool swept =
        row->name() != backends::reference_implementation().name() && !backends::is_emulation(row->name());
    const bool known = std::ranges::find(tallies, row->name(), &Tally::implementation) != tallies.end();
    if (!known && (options.gpu ? on_gpu : swept)) tallies.emplace_back(std::string(row->name()));
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
  if (report.status != verify::Status::refused) return;
  ++tally.refused;
  if (tally.refusal.empty() || tally.refusal.starts_with(kComputesNo)) tally.refusal = report.message;
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

/// One without a row for the problem's operation refuses it.
verify::Report check(const AnyProblem& problem, const Tally& tally, std::uint64_t seed) {
  if (has_row(problem.operation(), tally)) return verify::check_implementation(problem, tally.implementation, seed);
  verify::Report report;
  report.status = verify::Status::refused;
  report.message = std::string(kComputesNo) + std::string(problem.operation().name());
  return report;
}

/// Of options drawn from one seed; in other sizes, drawn from the other, where that is another.
AnyProblem draw_problem(const verify::Verifier& verifier, const verify::Limits& limits, std::uint64_t of_options,
                        std::uint64_t seed) {
  AnyProblem problem = verifier.random_problem(of_options, limits);
  return seed == of_options ? problem : verifier.resized(problem, seed, limits);
}

void run_verify(const VerifyOptions& options) {
  std::optional<AnyProblem> given;
  if (!options.problem_words.empty()) given = parse_problem(single_problem(options.problem_words));
  std::vector<Tally> tallies = make_tallies(options);
  const std::vector<const verify::Verifier*> drawn = drawn_operations(options, tallies);
  const std::vector<verify::Limits> limits = make_limits(options, drawn);
  set_num_threads(options.threads);

  Progress progress(options.count);
  std::int64_t checks = 0, failures = 0;
  for (std::int64_t i = 0; i < options.count; ++i) {
    const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(i);
    // Every --sizes problems have options in common, drawn from the first one's seed.
    const std::uint64_t of_options = seed - static_cast<std::uint64_t>(i % options.sizes);
    const std::size_t turn = of_options / static_cast<std::uint64_t>(options.sizes) % drawn.size();
    const AnyProblem problem = given ? *given : draw_problem(*drawn[turn], limits[turn], of_options, seed);
    for (Tally& tally : tallies) {
      progress.update(i, tally.implementation + ": " + std::to_string(failures) + " failed");
      verify::Report report = check(problem, tally, seed);
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
  const auto options = std::make_shared<VerifyOptions>();
  CLI::Option* count =
      with_check(command.add_option("--count", options->count, "problems to draw (default: 100; 1 with --problem)"),
                 integer_between(1));
  with_check(
      command.add_option("--seed", options->seed, "seed of the first problem and its tensors; the next ones count up"),
      unsigned_integer())
      ->capture_default_str();
  with_check(command.add_option("--sizes", options->sizes,
                                "problems in a row that differ in their sizes alone (a merge's don't), so that most "
                                "share compiled kernels"),
             integer_between(1))
      ->capture_default_str()
      ->excludes(command.add_option("--problem", options->problem_words, "check this problem instead of random ones")
                     ->type_name("PROBLEM"));
  CLI::Option* operation = with_check(
      command.add_option("--operation", options->operation, "draw problems of this one (default: of all, in turn)"),
      one_of(operation_names()));
  operation->excludes(command.get_option("--problem"));
  command
      .add_option("--implementation", options->implementations,
                  "check these, comma-separated (default: all but the reference and emulations)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAME,...");
  command.add_option("--without", options->without, "features not to draw, e.g. backward,dropout")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("FEATURE,...");
  with_check(command.add_option("--max-flops", options->max_flops, "size limit of the problems drawn"),
             number_between(1))
      ->capture_default_str();
  with_check(
      command.add_option("--head-dim-multiple", options->head_dim_multiple,
                         "round head dims up to multiples of this (not a merge's); Hopper's kernels take those of 8"),
      integer_between(1, 256))
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
  for (const char* name : {"--count", "--sizes", "--seed", "--operation", "--implementation", "--problem", "--without",
                           "--max-flops", "--head-dim-multiple", "--tolerance-scale"})
    report->excludes(command.get_option(name));
  add_threads_option(command, options->threads);
  command.footer(
      "Exit status 1 where a check fails or none was made; with --report, where a row failed or every implementation\n"
      "on a kind of GPU refused a feature.");
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
