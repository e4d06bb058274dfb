// The feature table of `tilewise verify --report`: a stranger's GPU in one command.
#include "report.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "console.hpp"
#include "core/device.hpp"
#include "jit/child_process.hpp"
#include "jit/kernel_cache.hpp"
#include "operations/attention/attention.hpp"
#include "report_features.hpp"
#include "report_rows.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::tools {
namespace {

struct Task {
  ReportRow row;
  std::string problem;
};

/// Whether an implementation of that name has a row for the problem's operation.
bool computes(const core::Implementation& implementation, const AnyProblem& problem) {
  return core::find_row(core::implementation_table(), problem.operation(), implementation.name()) != nullptr;
}

std::string first_line_with(const std::string& text, std::string_view words) {
  const std::size_t at = text.find(words);
  if (at == std::string::npos) return {};
  return text.substr(at, text.find('\n', at) - at);
}

/// The reason in the last column of the summary's row, which begins with the implementation's name.
std::string refusal_of(const std::string& output, const std::string& implementation) {
  const std::size_t row = output.rfind("\n" + implementation + " ");
  if (row == std::string::npos) return {};
  const std::string line = output.substr(row + 1, output.find('\n', row + 1) - row - 1);
  const std::size_t dash = line.find("  -  ");
  return dash == std::string::npos ? std::string() : line.substr(dash + 5);
}

void run_task(Task& task, const std::string& program) {
  constexpr double kLimitSeconds = 300;
  ReportRow& row = task.row;
  const jit::ChildResult child = jit::run_child(
      {program, "verify", "--implementation", row.implementation, "--count", "3", "--problem", task.problem}, {}, {},
      kLimitSeconds);
  if (child.succeeded()) {
    row.result = RowResult::pass;
  } else if (child.signal != 0 || child.timed_out || !child.start_error.empty()) {
    row.result = RowResult::crash;
    row.detail = child.start_error.empty() ? child.ending() : child.start_error;
  } else if (child.output.find("Nothing was checked") != std::string::npos) {
    row.result = RowResult::refused;
    row.detail = refusal_of(child.output, row.implementation);
  } else {
    row.result = RowResult::fail;
    row.detail = first_line_with(child.output, "FAILED ");
    if (row.detail.empty()) row.detail = child.errors.substr(0, child.errors.find('\n'));
  }
}

/// What tells one report from another: versions, and what each GPU is. Nothing of it names the machine or who uses it.
void print_machine(const std::vector<const core::Implementation*>& implementations) {
  utsname system{};
  uname(&system);
  std::cout << "Tilewise " << version() << " on " << system.sysname << ' ' << system.release << ' ' << system.machine
            << '\n';
  std::set<DeviceType> described;
  for (const core::Implementation* implementation : implementations) {
    if (!described.insert(implementation->device()).second) continue;
    const core::DeviceDescription device = core::describe_device(implementation->device());
    std::cout << gpu_line(device, jit::compiler_name(jit::parse_target(device.architecture)));
  }
}

/// Implementations of devices that are here, and why the others are not.
std::vector<const core::Implementation*> present_implementations() {
  std::vector<const core::Implementation*> present;
  for (const core::Implementation* row : core::implementation_table()) {
    Problem problem;
    if (row->device() == DeviceType::cpu || &row->operation() != &operation_of(&problem)) continue;
    problem = parse_problem("attention_forward dtype=bf16 seqlen_q=64 head_dim=64");
    problem.device = row->device();
    const core::DeviceDescription device = core::describe_device(row->device());
    const core::Verdict verdict =
        device.refusal.empty() ? row->judge_problem(problem, device) : core::Verdict::refuse(device.refusal);
    if (verdict.accepted()) {
      present.push_back(row);
    } else {
      std::cout << row->name() << ": not here: " << verdict.reason << '\n';
    }
  }
  return present;
}

void run_all(std::vector<Task>& tasks) {
  constexpr unsigned kMostAtOnce = 8;
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::atomic<std::size_t> next = 0;
  std::atomic<std::int64_t> done = 0;
  Progress progress(static_cast<std::int64_t>(tasks.size()));
  std::vector<std::jthread> workers;
  for (unsigned i = 0; i < std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostAtOnce); ++i) {
    workers.emplace_back([&] {
      for (std::size_t task = next++; task < tasks.size(); task = next++) {
        run_task(tasks[task], program);
        ++done;
      }
    });
  }
  while (done < static_cast<std::int64_t>(tasks.size())) {
    progress.update(done, "rows checked");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

bool print_feature_report() {
  const std::vector<const core::Implementation*> implementations = present_implementations();
  if (implementations.empty()) {
    std::cout << "No GPU that Tilewise can use is here.\n";
    return false;
  }
  print_machine(implementations);
  const char* const home = std::getenv("HOME");
  std::vector<Task> tasks;
  for (const core::Implementation* implementation : implementations) {
    for (const FeatureProblem& feature : feature_table()) {
      if (!computes(*implementation, parse_problem(feature.problem))) continue;
      tasks.push_back({{.implementation = std::string(implementation->name()),
                        .device = implementation->device(),
                        .feature = feature.feature,
                        .pass = feature.pass,
                        .detail = {},
                        .some_gpus = feature.some_gpus},
                       feature.problem});
    }
  }
  run_all(tasks);
  Table table({"implementation", "feature", "pass", "result", ""});
  std::vector<ReportRow> rows;
  for (Task& task : tasks) {
    const ReportRow& row = rows.emplace_back(std::move(task.row));
    table.add_row({row.implementation, row.feature, row.pass, to_string(row.result),
                   without_home(row.detail, home == nullptr ? "" : home)});
  }
  table.print(std::cout);
  const ReportSummary summary = summarize(rows);
  std::cout << summary.text << "This output is what to send back: it names no user, no host and no file of yours.\n";
  return summary.good;
}

}  // namespace tilewise::tools
