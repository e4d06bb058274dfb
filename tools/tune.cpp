// `tilewise tune`: times the schedules that a problem can have on the GPU that is here, and keeps the quickest one's
// name beside the compiled kernels, where later plans of that problem find it.
#include <algorithm>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ceilings/timing.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "core/device.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"
#include "gpu/compile_ahead.hpp"
#include "gpu/lowered_kernel.hpp"
#include "gpu/tunable.hpp"
#include "jit/tuned_schedules.hpp"
#include "option_checks.hpp"
#include "sample_call.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"

namespace tilewise::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Less than this is not worth a schedule of its own: runs differ by as much.
constexpr double kWorthwhileGain = 0.02;

struct TuneOptions {
  std::vector<std::string> problem_words;
  std::string problems_file, csv_file;
  double seconds = 0.1;
  bool dry_run = false, json = false;
};

/// An implementation of the table, for which one schedule was tuned.
class WithSchedule final : public core::Implementation {
 public:
  WithSchedule(const core::Implementation& row, const std::string& problem, std::string schedule) : row_(row) {
    tuned_ = std::make_shared<const core::TunedSchedules>(
        core::TunedSchedules{{core::tuning_key(row.name(), problem), std::move(schedule)}});
  }
  [[nodiscard]] std::string_view name() const noexcept override { return row_.name(); }
  [[nodiscard]] const core::OperationInterface& operation() const noexcept override { return row_.operation(); }
  [[nodiscard]] DeviceType device() const noexcept override { return row_.device(); }
  [[nodiscard]] core::FeatureBits supported_features() const noexcept override { return row_.supported_features(); }
  [[nodiscard]] core::Verdict judge_problem(const core::ProblemView& problem,
                                            const core::DeviceDescription& device) const override {
    core::DeviceDescription with_schedule = device;
    with_schedule.tuned = tuned_;
    return row_.judge_problem(problem, with_schedule);
  }

 private:
  const core::Implementation& row_;
  std::shared_ptr<const core::TunedSchedules> tuned_;
};

/// With the digits that percents need.
std::string format_ratio(double ratio) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", ratio);
  return text;
}

/// A schedule, and what came of it: a time, or why there is none.
struct Trial {
  std::string schedule;
  std::optional<Plan> plan;
  std::vector<double> samples;
  std::string failure;

  [[nodiscard]] double median_seconds() const { return median(samples); }
};

struct Tuning {
  std::string problem, implementation, device_kind;
  std::vector<Trial> trials;  ///< the untuned schedule first
  std::size_t quickest = 0;

  [[nodiscard]] bool is_worthwhile() const {
    return quickest > 0 && (trials[0].samples.empty() ||
                            trials[quickest].median_seconds() < (1.0 - kWorthwhileGain) * trials[0].median_seconds());
  }
  /// Of the quickest schedule's time; 0 where the untuned one has none.
  [[nodiscard]] double untuned_ratio() const {
    return trials[0].samples.empty() ? 0.0 : trials[0].median_seconds() / trials[quickest].median_seconds();
  }
};

/// The row that would serve the problem, with what it says of its schedules. Throws Error where there is none.
std::pair<const core::Implementation*, const gpu::Tunable*> tunable_row(const AnyProblem& problem) {
  const Plan chosen = plan(problem);
  for (const core::Implementation* row : core::implementation_table()) {
    if (row->name() != chosen.implementation() || &row->operation() != &problem.operation()) continue;
    if (const auto* tunable = dynamic_cast<const gpu::Tunable*>(row)) return {row, tunable};
  }
  throw Error(ErrorCode::unsupported, core::concat("PROBLEM: must be one whose implementation has several schedules (",
                                                   chosen.implementation(), " has one of ", to_string(problem), ")"));
}

void time_trials(std::vector<Trial>& trials, const SampleCall& call, Device device, double seconds) {
  constexpr int kRounds = 7;
  constexpr double kLeastSeconds = 2e-3;  // of a sample: host and device are apart by microseconds
  const core::DeviceSystem& system = *core::device_system(device.type);
  const auto time = [&](const Trial& trial, int calls) {
    system.synchronize(device.index, nullptr);
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) call.run(*trial.plan);
    system.synchronize(device.index, nullptr);
    return seconds_since(start) / calls;
  };
  for (int round = 0; round < kRounds; ++round) {
    for (Trial& trial : trials) {
      if (!trial.plan) continue;
      const double once = time(trial, 2);
      const double wanted = std::max(seconds / kRounds, kLeastSeconds);
      trial.samples.push_back(time(trial, static_cast<int>(std::clamp(wanted / once, 2.0, 1e4))));
    }
  }
}

AnyProblem read_problem(const std::string& text) {
  AnyProblem problem = parse_problem(text);
  if (problem.device() == DeviceType::cpu || problem.get_if<Problem>() == nullptr) {
    core::invalid_argument("PROBLEM: must be attention_forward or attention_backward on a GPU (got ", text, ")");
  }
  return problem;
}

core::DeviceDescription untuned_device(DeviceType type) {
  core::DeviceDescription device = core::describe_device(type);
  if (!device.refusal.empty()) throw Error(ErrorCode::runtime, device.refusal);
  device.tuned = nullptr;
  return device;
}

/// Kernels of all schedules, by as many processors as there are: plans find them then. Those that do not compile say
/// so when they are planned.
void compile_schedules(std::span<const AnyProblem> problems) {
  std::vector<gpu::KernelBuild> builds;
  for (const AnyProblem& problem : problems) {
    const core::DeviceDescription device = untuned_device(problem.device());
    for (const core::Implementation* row : core::implementation_table()) {
      const auto* tunable = dynamic_cast<const gpu::Tunable*>(row);
      if (tunable == nullptr || &row->operation() != &problem.operation() || row->device() != problem.device())
        continue;
      if (!row->judge_problem(problem, device).accepted()) continue;
      for (std::string& name : tunable->schedule_names(problem, device)) {
        const WithSchedule chosen(*row, tunable->tuning_text(problem), std::move(name));
        const core::Verdict verdict = chosen.judge_problem(problem, device);
        if (!verdict.accepted()) continue;
        const auto& lowering = dynamic_cast<const gpu::LoweredKernel&>(*verdict.kernel).lowering();
        gpu::add_builds(lowering.launches(), jit::parse_target(device.architecture), builds);
      }
    }
  }
  Progress progress(static_cast<std::int64_t>(builds.size()));
  gpu::compile_ahead(builds, [&](std::size_t done) { progress.update(static_cast<std::int64_t>(done), "compiled"); });
}

Tuning tune(const AnyProblem& asked, const TuneOptions& options) {
  const DeviceType type = asked.device();
  const core::DeviceDescription untuned = untuned_device(type);
  const Device device{type, core::planning_device(type)};
  SampleCall call(asked.get<Problem>());
  call.move_to(device);
  const AnyProblem problem = call.problem();
  const auto [row, tunable] = tunable_row(problem);
  Tuning tuning{tunable->tuning_text(problem), std::string(row->name()), core::tuned_kind(untuned), {}};
  for (std::string& name : tunable->schedule_names(problem, untuned)) {
    Trial& trial = tuning.trials.emplace_back(Trial{std::move(name), {}, {}, {}});
    const WithSchedule chosen(*row, tuning.problem, trial.schedule);
    const core::Implementation* table[] = {&chosen};
    try {
      trial.plan.emplace(core::make_plan(problem, {}, table));
    } catch (const Error& error) {  // one that does not compile loses
      trial.failure = error.what();
    }
  }
  time_trials(tuning.trials, call, device, options.seconds);
  for (std::size_t i = 0; i < tuning.trials.size(); ++i) {
    const Trial &trial = tuning.trials[i], &best = tuning.trials[tuning.quickest];
    if (trial.samples.empty()) continue;
    if (best.samples.empty() || trial.median_seconds() < best.median_seconds()) tuning.quickest = i;
  }
  return tuning;
}

/// Keeps the quickest schedule's name, or nothing where the untuned one is about as quick.
void keep(const Tuning& tuning) {
  const auto known = jit::load_tuned_schedules(tuning.device_kind);
  core::TunedSchedules schedules = known ? *known : core::TunedSchedules{};
  const std::string key = core::tuning_key(tuning.implementation, tuning.problem);
  if (tuning.is_worthwhile()) {
    schedules[key] = tuning.trials[tuning.quickest].schedule;
  } else if (schedules.erase(key) == 0) {
    return;
  }
  jit::store_tuned_schedules(tuning.device_kind, schedules);
}

Json to_json(const Tuning& tuning) {
  Json trials = Json::array();
  for (const Trial& trial : tuning.trials) {
    trials.push_back({{"schedule", trial.schedule},
                      {"seconds", trial.samples.empty() ? Json(nullptr) : Json(trial.median_seconds())},
                      {"failure", trial.failure}});
  }
  return {{"problem", tuning.problem},
          {"implementation", tuning.implementation},
          {"schedules", trials},
          {"quickest", tuning.trials[tuning.quickest].schedule},
          {"worthwhile", tuning.is_worthwhile()}};
}

void print(const Tuning& tuning) {
  std::cout << tuning.implementation << ": " << tuning.problem << '\n';
  Table table({"schedule", ">time", ">of untuned", ""});
  for (const Trial& trial : tuning.trials) {
    const bool timed = !trial.samples.empty();
    const bool compared = timed && !tuning.trials[0].samples.empty();
    table.add_row({trial.schedule, timed ? format_seconds(trial.median_seconds()) : "-",
                   compared ? format_number(trial.median_seconds() / tuning.trials[0].median_seconds()) : "-",
                   timed ? "" : trial.failure.substr(0, trial.failure.find('\n'))});
  }
  table.print(std::cout);
  std::cout << (tuning.is_worthwhile() ? "quickest: " + tuning.trials[tuning.quickest].schedule
                                       : std::string("the untuned schedule is within 2% of the quickest"))
            << '\n';
}

/// What one problem's untuned and quickest schedules take.
struct Summary {
  std::string problem, implementation, untuned, quickest;
  double untuned_us = 0.0, quickest_us = 0.0, ratio = 0.0;
};

Summary summary_of(const Tuning& tuning) {
  const Trial &untuned = tuning.trials[0], &quickest = tuning.trials[tuning.quickest];
  const auto us = [](const Trial& trial) { return trial.samples.empty() ? 0.0 : 1e6 * trial.median_seconds(); };
  return {tuning.problem, tuning.implementation, untuned.schedule,      quickest.schedule,
          us(untuned),    us(quickest),          tuning.untuned_ratio()};
}

void write_csv(const std::string& path, std::span<const Summary> rows) {
  std::ofstream file(path);
  file << "problem,implementation,untuned,untuned_us,quickest,quickest_us,ratio\n";
  for (const Summary& row : rows) {
    file << row.problem << ',' << row.implementation << ',' << row.untuned << ',' << format_number(row.untuned_us)
         << ',' << row.quickest << ',' << format_number(row.quickest_us) << ',' << format_ratio(row.ratio) << '\n';
  }
  file.close();
  if (!file) throw Error(ErrorCode::runtime, core::concat("--csv: ", path, " could not be written"));
}

void print(std::span<const Summary> rows) {
  Table table({"problem", "untuned", ">us", "quickest", ">us", ">ratio"});
  for (const Summary& row : rows) {
    table.add_row({row.problem, row.untuned, format_number(row.untuned_us), row.quickest,
                   format_number(row.quickest_us), format_ratio(row.ratio)});
  }
  std::cout << '\n';
  table.print(std::cout);
}

void run_tune(const TuneOptions& options) {
  const std::vector<ProblemText> texts = given_problems(options.problem_words, options.problems_file);
  if (texts.empty()) core::invalid_argument("PROBLEM: must be given, or a file of them with --problems (got none)");
  const auto at_its_place = [](const ProblemText& text, const auto& run) {
    try {
      return run();
    } catch (const Error& error) {
      throw Error(error.code(), text.place + error.what());
    }
  };
  std::vector<AnyProblem> problems;
  for (const ProblemText& text : texts) {
    problems.push_back(at_its_place(text, [&] { return read_problem(text.text); }));
  }
  if (!check_that_cache_keeps() && !options.dry_run) {
    throw Error(ErrorCode::runtime,
                "tune: what it finds could not be kept; --dry-run times the schedules all the same");
  }
  compile_schedules(problems);
  Json report = Json::array();
  std::vector<Summary> rows;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    const Tuning tuning = at_its_place(texts[i], [&] { return tune(problems[i], options); });
    if (!options.dry_run) keep(tuning);
    options.json ? report.push_back(to_json(tuning)) : print(tuning);
    rows.push_back(summary_of(tuning));
  }
  if (options.json) std::cout << report.dump(2) << '\n';
  if (!options.json && rows.size() > 1) print(rows);
  if (!options.csv_file.empty()) write_csv(options.csv_file, rows);
}

}  // namespace

void add_tune(CLI::App& program) {
  CLI::App& command = *program.add_subcommand("tune", "Find a problem's quickest schedule on the GPU that is here");
  const auto options = std::make_shared<TuneOptions>();
  command
      .add_option("PROBLEM", options->problem_words,
                  "attention problems on a GPU, forward or backward, each as one line of text")
      ->type_name("PROBLEM ...");
  command.add_option("--problems", options->problems_file, "a file with a problem a line; # begins a comment")
      ->type_name("FILE");
  with_check(command.add_option("--csv", options->csv_file, "write a line for each problem there, too"),
             path_to_write("FILE"));
  with_check(command.add_option("--seconds", options->seconds, "to time each schedule for"), number_between(1e-3))
      ->capture_default_str();
  command.add_flag("--dry-run", options->dry_run, "keep nothing");
  command.add_flag("--json", options->json, "print JSON");
  command.footer(
      "The quickest schedule is kept in the cache folder, for GPUs of the same architecture and size, if it gains 2%;\n"
      "programs that start later plan with it. `tilewise cache clear` forgets all of them. Calls shorter than their\n"
      "launch can't be told apart. Several problems are summed up in a table: what the untuned schedule takes of the\n"
      "quickest one's time.");
  command.callback([options] { run_tune(*options); });
}

}  // namespace tilewise::tools
