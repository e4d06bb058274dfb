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

using Files = AttentionFiles;
/// Inputs as they were read, and outputs once they are made.
using Arrays = std::array<Array, Files::kCount>;

/// `block_mask`: what a problem's text says of it.
AttentionOptions stated_options(const AttentionRun& given, BlockMaskShape& block_mask) {
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
    const Problem stated = parse_problem(single_problem(given.problem_words));
    block_mask = stated.block_mask;
    options = operations::attention::stated_options(stated);
    options.seed = given.options.seed;
    options.offset = given.options.offset;
  }
  return options;
}

/// A problem text must say what the arrays say; which results are wanted is the files' business.
void check_stated_problem(const AttentionRun& given, const Problem& described) {
  if (given.problem_words.empty()) return;
  Problem stated = parse_problem(single_problem(given.problem_words));
  for (const auto& tensor : Files::kTensors)
    if (tensor.access == core::Access::write && tensor.given != nullptr) stated.*tensor.given = described.*tensor.given;
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
  const auto& names = given.files.names;
  for (std::size_t i = 0; i < Files::kCount; ++i) {
    if (!Files::is_output(i) || names[i].empty()) continue;
    for (std::size_t other = 0; other < i; ++other) {
      if (!Files::is_output(other) || names[other].empty() || !same(names[i], names[other])) continue;
      core::invalid_argument(Files::flag(i), ": must name another file than ", Files::flag(other), " (got '", names[i],
                             "')");
    }
  }
}

/// An array is no text, and only one can be read from a stream.
void check_standard_streams(const AttentionRun& given) {
  std::string reader;
  for (std::size_t i = 0; i < Files::kCount; ++i) {
    if (given.files.names[i] != kStandardStream) continue;
    const std::string flag = Files::flag(i);
    const int stream = Files::is_output(i) ? STDOUT_FILENO : STDIN_FILENO;
    if (!Files::is_output(i)) {
      if (!reader.empty())
        core::invalid_argument(flag, ": must name a file where ", reader, " is standard input (got '-')");
      reader = flag;
    }
    if (isatty(stream) == 1) core::invalid_argument(flag, ": must be a file or a pipe (got '-', a terminal)");
  }
}

void check_files(const AttentionRun& given) {
  const Files& files = given.files;
  const std::string dout = Files::flag("dout");
  bool any_output = false;
  for (std::size_t i = 0; i < Files::kCount; ++i) {
    if (files.names[i].empty() || !Files::is_output(i)) continue;
    any_output = true;
    if (Files::is_backward(i) && files["dout"].empty())
      core::invalid_argument(Files::flag(i), ": needs ", dout, " (got none)");
  }
  if (!any_output) core::invalid_argument("--out: must name a file to write, or another output (got none)");
  if (files["dout"].empty() && !files["dlse"].empty()) core::invalid_argument("--dlse: needs ", dout, " (got none)");
  for (std::size_t i = 0; i < Files::kCount; ++i) {
    if (files.names[i].empty() || Files::kTensors[i].like.empty()) continue;
    const std::size_t input = Files::Role::place_of(Files::kTensors[i].like);
    if (files.names[input].empty())
      core::invalid_argument(Files::flag(i), ": needs ", Files::flag(input), " (got none)");
  }
  check_outputs_differ(given);
  check_standard_streams(given);
}

Array read_input(const std::string& name) {
  return name == kStandardStream ? read_npy(std::cin, "standard input") : read_npy(name);
}

/// Where what is said of the call goes: not among an array's bytes.
std::ostream& report(const AttentionRun& given) {
  bool taken = false;
  for (std::size_t i = 0; i < Files::kCount; ++i)
    taken |= Files::is_output(i) && given.files.names[i] == kStandardStream;
  return taken ? std::cerr : std::cout;
}

void write_outputs(const AttentionRun& given, const Arrays& arrays) {
  for (std::size_t i = 0; i < Files::kCount; ++i) {
    const std::string& name = given.files.names[i];
    if (!Files::is_output(i) || name.empty()) continue;
    if (name == kStandardStream) {
      write_npy(std::cout, arrays[i].view());  // main() sees to a failure
    } else {
      write_npy(name, arrays[i].view());
    }
    report(given) << name << ": " << describe(arrays[i].view()) << '\n';
  }
}

template <typename Arguments>
Arguments arguments_of(const AttentionOptions& options, const Arrays& arrays, std::span<const Array> tables) {
  Arguments arguments;
  arguments.options = options;
  operations::schema::for_each_member<operations::attention::kSchema>(
      arguments, [&](std::size_t place, TensorView& view) { view = arrays[place].view(); });
  for (const Array& table : tables) arguments.options.tables.push_back(table.view());
  return arguments;
}

/// Like its input.
Array make_gradient(std::size_t place, const Arrays& arrays) {
  return zeros_like(arrays[Files::Role::place_of(Files::kTensors[place].name.substr(1))].view(), Files::flag(place));
}

}  // namespace

void run_attention(const AttentionRun& given) {
  check_files(given);
  Arrays arrays;
  for (std::size_t i = 0; i < Files::kCount; ++i)
    if (!Files::is_output(i) && !given.files.names[i].empty()) arrays[i] = read_input(given.files.names[i]);
  std::vector<Array> tables;
  for (const std::string& name : given.tables) tables.push_back(read_npy(name));
  set_num_threads(given.threads);
  const SelectOptions select{given.implementation};
  const auto array = [&arrays](Files::Role role) -> Array& { return arrays[role.place]; };
  const bool backward = array("dout").defined();

  BlockMaskShape stated_mask;
  AttentionOptions options = stated_options(given, stated_mask);
  const std::vector<Array> block_mask = take_block_mask(given.block_mask, stated_mask, "a block mask", options);
  array("out") = make_out(array("q").view(), array("v").view());
  if (backward || !given.files["softmax_lse"].empty())
    array("softmax_lse") = make_lse(array("q").view(), options.layout);
  const auto forward = arguments_of<ForwardArguments>(options, arrays, tables);
  const Problem forward_problem = describe(forward);
  if (!backward) check_stated_problem(given, forward_problem);
  BackwardArguments gradients;
  if (backward) {
    for (std::size_t i = 0; i < Files::kCount; ++i)
      if (Files::is_output(i) && Files::is_backward(i) && !given.files.names[i].empty())
        arrays[i] = make_gradient(i, arrays);
    gradients = arguments_of<BackwardArguments>(options, arrays, tables);
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
  write_outputs(given, arrays);
}

}  // namespace tilewise::tools
