// `tilewise bench`: time, GFLOP/s, GB/s, and the fraction of this machine's ceiling, which is
// measured in the same run. On the CPU alone: python -m tilewise.bench times GPUs, by their events.
#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench_call.hpp"
#include "ceilings/ceilings.hpp"
#include "ceilings/timing.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "core/select.hpp"
#include "machine.hpp"
#include "option_checks.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::tools {
namespace {

using Json = nlohmann::ordered_json;

struct BenchOptions {
  std::vector<std::string> problem_words;
  std::string implementation;
  double min_time = 0.25;
  bool no_ceilings = false, json = false;
  int threads = 0;
};

struct Result {
  Plan plan;
  DType dtype;
  std::int64_t runs;
  double median_seconds, best_seconds, flops, bytes;
};

/// Forward full and causal, backward, and decoding, in fp32 and bf16: shapes of today's models.
std::vector<std::string> default_problems() {
  std::vector<std::string> problems;
  for (const std::string dtype : {"f32", "bf16"}) {
    const std::string shape = " dtype=" + dtype + " seqlen_q=1024 num_heads_q=16 head_dim=";
    for (const std::string rest : {"64", "64 mask=causal", "128", "128 mask=causal"})
      problems.push_back("attention_forward" + shape + rest);
    problems.push_back("attention_backward" + shape + "128 mask=causal");
    problems.push_back("attention_forward dtype=" + dtype +
                       " seqlen_q=1 seqlen_k=8192 num_heads_q=32 num_heads_k=8 head_dim=128");
  }
  return problems;
}

/// Times single calls until `min_time` is spent, and at least one, after one that warms caches and the
/// thread pool up. Calls too short for the clock are timed in groups.
Result measure(const AnyProblem& problem, const BenchOptions& options) {
  constexpr double kShortestSample = 20e-6;
  const std::unique_ptr<const BenchCall> call = make_bench_call(problem);
  Result result{plan(call->problem(), SelectOptions{options.implementation}),
                call->dtype(),
                0,
                0.0,
                0.0,
                call->flops(),
                call->bytes()};
  call->run(result.plan);

  std::vector<double> samples;
  std::int64_t group = 1;
  const Clock::time_point begin = Clock::now();
  do {
    const Clock::time_point start = Clock::now();
    for (std::int64_t i = 0; i < group; ++i) call->run(result.plan);
    const double elapsed = seconds_since(start);
    if (elapsed < kShortestSample) {
      group *= 2;
      continue;
    }
    samples.push_back(elapsed / static_cast<double>(group));
    result.runs += group;
  } while (samples.empty() || seconds_since(begin) < options.min_time);
  result.best_seconds = std::ranges::min(samples);
  result.median_seconds = median(std::move(samples));
  return result;
}

/// How near a call came to the least time the machine needs for its arithmetic or its traffic.
struct CeilingFraction {
  double fraction;
  bool compute_bound;
};
std::optional<CeilingFraction> ceiling_fraction(const Result& result, const Ceilings& ceilings) {
  const double peak = ceilings.peak_gflops(result.dtype) * 1e9;
  const double bandwidth = ceilings.read_gb_per_s * 1e9;
  if (peak <= 0.0 || bandwidth <= 0.0) return std::nullopt;
  const double compute = result.flops / peak, traffic = result.bytes / bandwidth;
  return CeilingFraction{std::max(compute, traffic) / result.median_seconds, compute >= traffic};
}

Json to_json(const Result& result, const std::optional<Ceilings>& ceilings) {
  Json entry{{"problem", to_string(result.plan.problem())},
             {"implementation", result.plan.implementation()},
             {"schedule", result.plan.schedule()},
             {"runs", result.runs},
             {"seconds", result.median_seconds},
             {"best_seconds", result.best_seconds},
             {"flops", result.flops},
             {"bytes", result.bytes},
             {"gflops", result.flops / result.median_seconds * 1e-9},
             {"gb_per_s", result.bytes / result.median_seconds * 1e-9}};
  const auto fraction = ceilings ? ceiling_fraction(result, *ceilings) : std::nullopt;
  entry["ceiling_fraction"] = fraction ? Json(fraction->fraction) : Json(nullptr);
  entry["bound"] = fraction ? Json(fraction->compute_bound ? "compute" : "memory") : Json(nullptr);
  return entry;
}

void print_json(const std::vector<Result>& results, const std::optional<Ceilings>& ceilings) {
  Json report{{"version", version()}, {"cpu", processor_name()}, {"num_threads", get_num_threads()}};
  report["ceilings"] = ceilings ? Json::parse(to_json(*ceilings)) : Json(nullptr);
  report["results"] = Json::array();
  for (const Result& result : results) report["results"].push_back(to_json(result, ceilings));
  std::cout << report.dump(2) << '\n';
}

void print_table(const std::vector<Result>& results, const std::optional<Ceilings>& ceilings) {
  std::cout << processor_name() << ", threads: " << get_num_threads() << '\n';
  if (ceilings) {
    std::cout << "Ceilings: fp32 " << format_number(ceilings->peak_gflops(DType::f32)) << " GFLOP/s, bf16 "
              << format_number(ceilings->peak_gflops(DType::bf16)) << " GFLOP/s, memory reads "
              << format_number(ceilings->read_gb_per_s) << " GB/s\n";
  }
  std::cout << '\n';
  Table table({"implementation", ">time", ">GFLOP/s", ">GB/s", ">of ceiling", "bound", "problem"});
  for (const Result& result : results) {
    const auto fraction = ceilings ? ceiling_fraction(result, *ceilings) : std::nullopt;
    table.add_row({std::string(result.plan.implementation()), format_seconds(result.median_seconds),
                   format_number(result.flops / result.median_seconds * 1e-9),
                   format_number(result.bytes / result.median_seconds * 1e-9),
                   fraction ? format_number(fraction->fraction * 100.0) + "%" : "-",
                   fraction ? (fraction->compute_bound ? "compute" : "memory") : "-",
                   to_string(result.plan.problem())});
  }
  table.print(std::cout);
}

/// Throws Error(invalid_argument) unless `device` is the CPU: calls are timed by the host's clock, and the ceilings
/// are the processor's.
void require_cpu(std::string_view argument, DeviceType device, std::string_view value) {
  if (device == DeviceType::cpu) return;
  core::invalid_argument(argument, ": must be of the CPU (got ", value,
                         "); on a GPU, measure with `python -m tilewise.bench --device cuda`");
}

std::vector<AnyProblem> problems_of(const BenchOptions& options) {
  for (const core::Implementation* row : core::implementation_table())
    if (row->name() == options.implementation) require_cpu("--implementation", row->device(), row->name());
  std::vector<AnyProblem> problems;
  for (const std::string& text :
       options.problem_words.empty() ? default_problems() : join_problems(options.problem_words)) {
    problems.push_back(parse_problem(text));
    require_cpu("device", problems.back().device(), to_string(problems.back().device()));
  }
  return problems;
}

void run_bench(const BenchOptions& options) {
  const std::vector<AnyProblem> problems = problems_of(options);
  set_num_threads(options.threads);

  const auto count = static_cast<std::int64_t>(problems.size());
  Progress progress(count + 1);
  progress.update(0, "ceilings");
  std::optional<Ceilings> ceilings;
  if (!options.no_ceilings) ceilings = measure_ceilings(get_num_threads());
  std::vector<Result> results;
  for (const AnyProblem& problem : problems) {
    progress.update(1 + static_cast<std::int64_t>(results.size()), to_string(problem));
    results.push_back(measure(problem, options));
  }
  progress.clear();
  options.json ? print_json(results, ceilings) : print_table(results, ceilings);
}

}  // namespace

void add_bench(CLI::App& program) {
  CLI::App& command = *program.add_subcommand("bench", "Measure problems on the CPU, beside its ceilings");
  const auto options = std::make_shared<BenchOptions>();
  command.add_option("PROBLEM", options->problem_words, "problems (default: a small grid of common shapes)")
      ->option_text("...");
  add_implementation_option(command, options->implementation);
  add_threads_option(command, options->threads);
  with_check(command.add_option("--min-time", options->min_time, "seconds spent on each problem"),
             number_between(0, 3600))
      ->capture_default_str();
  command.add_flag("--no-ceilings", options->no_ceilings, "do not measure the machine, which takes a second");
  command.add_flag("--json", options->json, "print JSON");
  command.footer(
      "GFLOP/s counts the visible work, 2 per multiply-add; GB/s each input and output once; \"of ceiling\"\n"
      "is the least time that arithmetic or memory reads would take, by the time it took (the median).\n"
      "GPUs are measured by python -m tilewise.bench --device cuda.");
  command.callback([options] { run_bench(*options); });
}

}  // namespace tilewise::tools
