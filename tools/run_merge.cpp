// Reads the parts, merges them, and writes what is asked for.
#include "run_merge.hpp"

#include <iostream>
#include <string_view>

#include "array.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "operations/layout.hpp"
#include "operations/merge/merge.hpp"
#include "run_files.hpp"

namespace tilewise::tools {
namespace {

constexpr std::string_view kWith = "--outs";  // chooses merge

std::vector<Array> read_parts(const std::string& option, const std::vector<std::string>& names) {
  std::vector<Array> arrays;
  for (const std::string& name : names) arrays.push_back(read_named(option, name, kWith));
  return arrays;
}

std::vector<TensorView> views_of(const std::vector<Array>& arrays) {
  std::vector<TensorView> views;
  for (const Array& array : arrays) views.push_back(array.view());
  return views;
}

/// Zeros like each of them, where their files are wanted.
std::vector<Array> gradients_of(const std::vector<Array>& parts, const std::vector<std::string>& names,
                                std::string_view option) {
  std::vector<Array> gradients;
  if (names.empty()) return gradients;
  if (names.size() != parts.size()) {
    core::invalid_argument(option, ": must name as many files as --outs, ", parts.size(), " (got ", names.size(), ")");
  }
  for (const Array& part : parts) gradients.push_back(zeros_like(part.view(), option));
  return gradients;
}

/// A problem text must say what the arrays say; which results are wanted is the files' business.
void check_stated_problem(const std::vector<std::string>& words, const MergeProblem& described) {
  if (words.empty()) return;
  MergeProblem stated = parse_problem(single_problem(words));
  stated.softmax_lse = described.softmax_lse;
  stated.douts = described.douts;
  stated.dlses = described.dlses;
  stated.dsink = described.dsink;
  check_agrees(stated, described, "the files and --dout");
}

/// The shape of a part: a stacked array's without its first dimension.
Array result_of(const TensorView& part, bool stacked, DType dtype, std::string_view name) {
  const auto shape = shape_of(part).subspan(stacked ? 1 : 0);
  return Array(dtype, shape, name);
}

}  // namespace

void add_merge_files(CLI::App& command, MergeFiles& files) {
  const auto add = [&command](const char* name, std::vector<std::string>& target, const char* help) {
    command.add_option(name, target, help)
        ->delimiter(',')
        ->allow_extra_args(false)
        ->type_name("FILE.npy,...")
        ->group("Merge");
  };
  add("--outs", files.outs, "merge these partial results, or one stacked array, instead of attention on --q");
  add("--lses", files.lses, "their log-sum-exps");
  add("--douts", files.douts, "gradients of --outs; needs --dout");
  add("--dlses", files.dlses, "gradients of --lses; needs --dout");
}

void run_merge(const MergeRun& run) {
  const std::vector<Array> outs = read_parts("--outs", run.parts.outs), lses = read_parts("--lses", run.parts.lses);
  const Array sink = run.sink.empty() ? Array() : read_named("--sink", run.sink, kWith);
  const Array dout = run.dout.empty() ? Array() : read_named("--dout", run.dout, kWith);
  const Array dlse = run.dlse.empty() ? Array() : read_named("--dlse", run.dlse, kWith);
  const bool backward = dout.defined();
  if (!backward && (!run.parts.douts.empty() || !run.parts.dlses.empty() || !run.dsink.empty() || dlse.defined())) {
    core::invalid_argument("--douts: gradients need --dout (got none)");
  }
  set_num_threads(run.threads);
  MergeArguments forward;
  forward.layout = core::value_of<Layout>("--layout", run.layout);
  DType dtype = outs[0].view().dtype;
  if (!run.problem_words.empty()) {
    const MergeProblem stated = parse_problem(single_problem(run.problem_words));
    forward.layout = stated.layout;
    dtype = stated.dtype;
  }
  forward.outs = views_of(outs);
  forward.lses = views_of(lses);
  forward.sink = sink.view();
  const bool stacked = outs.size() == 1 && outs[0].view().rank == operations::axes_of(forward.layout).rank() + 1;
  const Array out = result_of(outs[0].view(), stacked, dtype, "out");
  const DType statistics = operations::statistics_dtype(dtype);
  const Array lse =
      lses.empty() ? Array(statistics, {0}, "lse") : result_of(lses[0].view(), stacked, statistics, "lse");
  forward.out = out.view();
  if (!run.lse.empty()) forward.softmax_lse = lse.view();
  Results results(kWith);
  results.add("--out", run.out, out.view());
  results.add("--lse", run.lse, lse.view());

  const SelectOptions select{run.implementation};
  const MergeProblem described = describe(forward);
  if (!backward) check_stated_problem(run.problem_words, described);
  const std::vector<Array> douts = gradients_of(outs, run.parts.douts, "--douts"),
                           dlses = gradients_of(lses, run.parts.dlses, "--dlses");
  const Array dsink = run.dsink.empty() || !sink.defined() ? Array() : zeros_like(sink.view(), "dsink");
  if (!run.dsink.empty() && !sink.defined()) core::invalid_argument("--dsink: needs --sink (got none)");
  for (std::size_t n = 0; n < douts.size(); ++n) results.add("--douts", run.parts.douts[n], douts[n].view());
  for (std::size_t n = 0; n < dlses.size(); ++n) results.add("--dlses", run.parts.dlses[n], dlses[n].view());
  results.add("--dsink", run.dsink, dsink.view());
  results.check_wanted();
  if (!run.out.empty() || !run.lse.empty()) {
    const Plan planned = plan(described, select);
    print_plan(std::cout, planned);
    tilewise::run(planned, forward);
  }
  if (backward) {
    const MergeBackwardArguments gradients{dout.view(),     dlse.view(),     forward.outs, forward.lses,  sink.view(),
                                           views_of(douts), views_of(dlses), dsink.view(), forward.layout};
    const MergeProblem problem = describe(gradients);
    check_stated_problem(run.problem_words, problem);
    const Plan planned = plan(problem, select);
    print_plan(std::cout, planned);
    tilewise::run(planned, gradients);
  }
  results.write();
}

}  // namespace tilewise::tools
