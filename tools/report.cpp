// The feature table of `tilewise verify --report`: a stranger's GPU in one command.
#include "report.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "console.hpp"
#include "core/device.hpp"
#include "jit/child_process.hpp"
#include "operations/attention/attention.hpp"
#include "report_rows.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::tools {
namespace {

/// What a row of the table adds to the base problem, or sets anew.
struct FeatureRow {
  std::string_view name, words;
  bool forward = true, backward = true;
};

constexpr std::string_view kBase = "batch_size=2 seqlen_q=70 seqlen_k=150 num_heads_q=4 num_heads_k=2";
constexpr std::string_view kHeadDim = "head_dim=64";
constexpr std::string_view kPacked =
    "layout=thd batch_size=3 max_seqlen_q=70 max_seqlen_k=150 total_q=160 total_k=300 num_heads_q=4 num_heads_k=2";

constexpr std::array<FeatureRow, 35> kRows{{
    {"bf16", "dtype=bf16"},
    {"f16", "dtype=f16"},
    {"layout sbhd", "layout=sbhd"},
    {"layout bhsd", "layout=bhsd"},
    {"packed", "layout=thd"},
    {"packed causal", "layout=thd mask=causal"},
    {"equal heads", "num_heads_k=4"},
    {"multi-query", "num_heads_k=1"},
    {"head_dim 128", "head_dim=128"},
    {"head_dim 256", "head_dim=256"},
    {"head_dim 80", "head_dim=80"},
    {"head_dim 33", "head_dim=33"},
    {"head_dim_v", "head_dim=96 head_dim_v=64"},
    {"causal", "mask=causal"},
    {"causal top_left", "mask=causal alignment=top_left"},
    {"window", "window_left=40 window_right=9"},
    {"softmax_scale negative", "softmax_scale=-0.2"},
    {"softcap", "softcap=2.5"},
    {"bias f32", "bias=f32[b,h,q,k]"},
    {"bias of q's dtype", "bias=query[1,h,q,k]"},
    {"bias bool", "bias=bool[b,1,q,k]"},
    {"dbias", "bias=f32[1,h,q,k] dbias=1", false},
    {"alibi", "alibi_slopes=[h] mask=causal"},
    {"sink", "sink=1"},
    {"sink of q's dtype", "sink=query"},
    {"dsink", "sink=1 dsink=1", false},
    {"dsink of q's dtype", "sink=query dsink=1", false},
    {"dropout", "dropout_p=0.25"},
    {"dropout, seed tensor", "dropout_p=0.25 seed_tensor=1"},
    {"seqused, leftpad", "seqused_q=1 seqused_k=1 leftpad_k=1"},
    {"gradient of lse", "dlse=1", false},
    {"deterministic", "deterministic=1", false},
    {"batch_invariant", "batch_invariant=1"},
    {"decode, split keys", "seqlen_q=1 seqlen_k=3000", true, false},
    {"unaligned rows", "head_dim=63"},
}};

/// The problem of a row: the base, with the row's words in place of the base's of the same name.
std::string problem_text(const FeatureRow& row, bool backward) {
  const bool packed = row.words.find("layout=thd") != std::string_view::npos;
  std::vector<std::string> words;
  const auto add = [&words](std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(' '), text.size());
      const std::string word(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      const std::string key = word.substr(0, word.find('=') + 1);
      std::erase_if(words, [&key](const std::string& other) { return other.starts_with(key); });
      words.push_back(word);
    }
  };
  add("dtype=bf16");
  add(packed ? kPacked : kBase);
  add(kHeadDim);
  add(row.words);
  std::string text = backward ? "attention_backward" : "attention_forward";
  for (const std::string& word : words) text += " " + word;
  return text;
}

struct Task {
  ReportRow row;
  std::string problem;
};

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
  std::vector<Task> tasks;
  for (const core::Implementation* implementation : implementations) {
    for (const FeatureRow& feature : kRows) {
      for (const bool backward : {false, true}) {
        if (backward ? !feature.backward : !feature.forward) continue;
        tasks.push_back({{.implementation = std::string(implementation->name()),
                          .device = implementation->device(),
                          .feature = std::string(feature.name),
                          .backward = backward,
                          .detail = {}},
                         problem_text(feature, backward)});
      }
    }
  }
  run_all(tasks);
  Table table({"implementation", "feature", "pass", "result", ""});
  std::vector<ReportRow> rows;
  for (Task& task : tasks) {
    const ReportRow& row = rows.emplace_back(std::move(task.row));
    table.add_row(
        {row.implementation, row.feature, row.backward ? "backward" : "forward", to_string(row.result), row.detail});
  }
  table.print(std::cout);
  const ReportSummary summary = summarize(rows);
  std::cout << summary.text;
  return summary.good;
}

}  // namespace tilewise::tools
