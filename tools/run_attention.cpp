// Attention on files: what the options and a problem's text say, the checks of the files, and the calls.
#include "run_attention.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <span>
#include <utility>
#include <vector>

#include "array.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "npy.hpp"
#include "operations/attention/names.hpp"
#include "operations/attention/rules.hpp"
#include "operations/layout.hpp"
#include "run_files.hpp"

namespace tilewise::tools {
namespace {

/// Instead of a file's name: standard input for one input, standard output for one result.
constexpr const char* kStandardStream = "-";

using Arrays = std::array<Array, kInputCount>;

AttentionOptions attention_options(const AttentionRun& given, const Arrays& inputs, std::span<const Array> tables) {
  AttentionOptions options;
  if (given.problem_words.empty()) {
    options = given.options;
    options.layout = core::value_of<Layout>("--layout", given.layout);
    const bool top_left = given.mask == kCausalTopLeft;
    options.mask = top_left ? Mask::causal : core::value_of<Mask>("--mask", given.mask);
    if (top_left) options.alignment = Alignment::top_left;
    if (!given.alignment.empty()) options.alignment = core::value_of<Alignment>("--alignment", given.alignment);
    if (top_left && options.alignment != Alignment::top_left) {
      core::invalid_argument("--alignment: must be top_left with --mask causal_top_left (got ", given.alignment, ")");
    }
  } else {
    options = operations::attention::stated_options(parse_problem(single_problem(given.problem_words)));
    options.seed = given.options.seed;
    options.offset = given.options.offset;
  }
  options.bias = inputs[kBias].view();
  options.alibi_slopes = inputs[kAlibiSlopes].view();
  options.sink = inputs[kSink].view();
  options.cu_seqlens_q = inputs[kCuSeqlensQ].view();
  options.cu_seqlens_k = inputs[kCuSeqlensK].view();
  options.seqused_q = inputs[kSequsedQ].view();
  options.seqused_k = inputs[kSequsedK].view();
  options.leftpad_k = inputs[kLeftpadK].view();
  options.seed_and_offset = inputs[kSeedAndOffset].view();
  for (const Array& table : tables) options.tables.push_back(table.view());
  return options;
}

/// A problem text must say what the arrays say; which results are wanted is the files' business.
void check_stated_problem(const AttentionRun& given, const Problem& described) {
  if (given.problem_words.empty()) return;
  Problem stated = parse_problem(single_problem(given.problem_words));
  stated.softmax_lse = described.softmax_lse;
  stated.dq = described.dq;
  stated.dk = described.dk;
  stated.dv = described.dv;
  stated.dbias = described.dbias;
  stated.dsink = described.dsink;
  check_agrees(stated, described, "the files and --dout");
}

/// Tensors of the wrong rank give an empty result here, since describe() tells what is wrong with them.
Array make_out(const TensorView& q, const TensorView& v) {
  TensorView out = q;
  if (q.rank < 1 || v.rank < 1) return Array(q.dtype, {0}, "out");
  out.shape[static_cast<std::size_t>(q.rank - 1)] = core::size_at(v, v.rank - 1);
  return zeros_like(out, "out");
}

Array make_lse(const TensorView& q, Layout layout) {
  const operations::Axes axes = operations::axes_of(layout);
  const DType dtype = operations::statistics_dtype(q.dtype);
  if (q.rank != axes.rank()) return Array(dtype, {0}, "lse");
  const std::int64_t seq = core::size_at(q, axes.seq), heads = core::size_at(q, axes.head);
  if (layout == Layout::thd) return Array(dtype, {heads, seq}, "lse");
  return Array(dtype, {core::size_at(q, axes.batch), heads, seq}, "lse");
}

/// Two results in one file would leave the later one alone.
void check_outputs_differ(const AttentionRun& given) {
  const auto same = [](const std::string& a, const std::string& b) {
    return a == kStandardStream || b == kStandardStream ? a == b : same_file(a, b);
  };
  for (std::size_t i = 0; i < kOutputCount; ++i) {
    if (given.outputs[i].empty()) continue;
    for (std::size_t other = 0; other < i; ++other) {
      if (given.outputs[other].empty() || !same(given.outputs[i], given.outputs[other])) continue;
      core::invalid_argument(kOutputs[i].name, ": must name another file than ", kOutputs[other].name, " (got '",
                             given.outputs[i], "')");
    }
  }
}

/// An array is no text, and only one can be read from a stream.
void check_standard_streams(const AttentionRun& given) {
  const char* reader = nullptr;
  for (std::size_t i = 0; i < kInputCount; ++i) {
    if (given.inputs[i] != kStandardStream) continue;
    const char* name = kInputs[i].name;
    if (reader) core::invalid_argument(name, ": must name a file where ", reader, " is standard input (got '-')");
    if (isatty(STDIN_FILENO) == 1) core::invalid_argument(name, ": must be a file or a pipe (got '-', a terminal)");
    reader = name;
  }
  for (std::size_t i = 0; i < kOutputCount; ++i) {
    if (given.outputs[i] == kStandardStream && isatty(STDOUT_FILENO) == 1) {
      core::invalid_argument(kOutputs[i].name, ": must be a file or a pipe (got '-', a terminal)");
    }
  }
}

void check_files(const AttentionRun& given) {
  bool any_output = false;
  for (std::size_t i = 0; i < kOutputCount; ++i) {
    any_output = any_output || !given.outputs[i].empty();
    if (i >= kDq && !given.outputs[i].empty() && given.inputs[kDout].empty()) {
      core::invalid_argument(kOutputs[i].name, ": needs --dout (got none)");
    }
  }
  if (!any_output) core::invalid_argument("--out: must name a file to write, or another output (got none)");
  if (given.inputs[kDout].empty() && !given.inputs[kDlse].empty()) {
    core::invalid_argument("--dlse: needs --dout (got none)");
  }
  for (const auto& [gradient, input] : {std::pair{kDbias, kBias}, std::pair{kDsink, kSink}})
    if (!given.outputs[gradient].empty() && given.inputs[input].empty())
      core::invalid_argument(kOutputs[gradient].name, ": needs ", kInputs[input].name, " (got none)");
  check_outputs_differ(given);
  check_standard_streams(given);
}

Array read_input(const std::string& name) {
  return name == kStandardStream ? read_npy(std::cin, "standard input") : read_npy(name);
}

/// Where what is said of the call goes: not among an array's bytes.
std::ostream& report(const AttentionRun& given) {
  const bool taken = std::ranges::find(given.outputs, kStandardStream) != given.outputs.end();
  return taken ? std::cerr : std::cout;
}

void write_outputs(const AttentionRun& given, const std::array<Array, kOutputCount>& outputs) {
  for (std::size_t i = 0; i < kOutputCount; ++i) {
    if (given.outputs[i].empty()) continue;
    if (given.outputs[i] == kStandardStream) {
      write_npy(std::cout, outputs[i].view());  // main() sees to a failure
    } else {
      write_npy(given.outputs[i], outputs[i].view());
    }
    report(given) << given.outputs[i] << ": " << describe(outputs[i].view()) << '\n';
  }
}

}  // namespace

void run_attention(const AttentionRun& given) {
  check_files(given);
  Arrays inputs;
  for (std::size_t i = 0; i < kInputCount; ++i)
    if (!given.inputs[i].empty()) inputs[i] = read_input(given.inputs[i]);
  std::vector<Array> tables;
  for (const std::string& name : given.tables) tables.push_back(read_npy(name));
  set_num_threads(given.threads);
  const SelectOptions select{given.implementation};
  const bool backward = inputs[kDout].defined();

  std::array<Array, kOutputCount> outputs;
  ForwardArguments forward;
  forward.options = attention_options(given, inputs, tables);
  forward.q = inputs[kQ].view();
  forward.k = inputs[kK].view();
  forward.v = inputs[kV].view();
  outputs[kOut] = make_out(forward.q, forward.v);
  forward.out = outputs[kOut].view();
  if (backward || !given.outputs[kLse].empty()) {
    outputs[kLse] = make_lse(forward.q, forward.options.layout);
    forward.softmax_lse = outputs[kLse].view();
  }
  const Problem forward_problem = describe(forward);
  if (!backward) check_stated_problem(given, forward_problem);
  BackwardArguments gradients;
  if (backward) {
    const std::array<Input, kOutputCount> likes = {kQ, kQ, kQ, kK, kV, kBias, kSink};
    for (std::size_t i = kDq; i < kOutputCount; ++i)
      if (!given.outputs[i].empty()) outputs[i] = zeros_like(inputs[likes[i]].view(), kOutputs[i].name);
    gradients = {inputs[kDout].view(),
                 inputs[kDlse].view(),
                 forward.q,
                 forward.k,
                 forward.v,
                 forward.out,
                 forward.softmax_lse,
                 outputs[kDq].view(),
                 outputs[kDk].view(),
                 outputs[kDv].view(),
                 outputs[kDbias].view(),
                 outputs[kDsink].view(),
                 forward.options};
    check_stated_problem(given, describe(gradients));
  }
  const Plan forward_plan = plan(forward_problem, select);
  print_plan(report(given), forward_plan);
  run(forward_plan, forward);
  if (backward) {
    const Plan backward_plan = plan(describe(gradients), select);
    print_plan(report(given), backward_plan);
    run(backward_plan, gradients);
  }
  write_outputs(given, outputs);
}

}  // namespace tilewise::tools
