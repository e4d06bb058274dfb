// `tilewise run`: attention on .npy files, or with --outs merge, with --k-cache the KV cache step; with --dout the
// backward pass too.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "commands.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "npy.hpp"
#include "operations/attention/names.hpp"
#include "operations/attention/rules.hpp"
#include "operations/layout.hpp"
#include "run_files.hpp"
#include "run_kv_cache.hpp"
#include "run_merge.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::tools {
namespace {

/// Tensors that come from files, in the order of kInputs.
enum Input : std::size_t {
  kQ,
  kK,
  kV,
  kBias,
  kAlibiSlopes,
  kSink,
  kCuSeqlensQ,
  kCuSeqlensK,
  kSequsedQ,
  kSequsedK,
  kLeftpadK,
  kSeedAndOffset,
  kDout,
  kDlse,
  kInputCount
};
/// Tensors that are written to files, in the order of kOutputs.
enum Output : std::size_t { kOut, kLse, kDq, kDk, kDv, kDbias, kDsink, kOutputCount };

struct FileOption {
  const char *name, *help;
};
constexpr std::array<FileOption, kInputCount> kInputs = {{
    {"--q", "queries: f32, f16, f64, or bf16 kept as uint16; required but with --outs and --k-cache"},
    {"--k", "keys; likewise"},
    {"--v", "values; likewise"},
    {"--bias", "added to the scores: f32 or the dtype of q; or bool, true = visible"},
    {"--alibi-slopes", "f32 (f64 where q is) [num_heads_q] or [batch_size, num_heads_q]"},
    {"--sink", "f32 or the dtype of q, [num_heads_q]: a logit that joins the denominator only"},
    {"--cu-seqlens-q", "int32 [batch_size + 1]; needs --layout thd"},
    {"--cu-seqlens-k", "int32 [batch_size + 1]; needs --layout thd"},
    {"--seqused-q", "int32 [batch_size]: queries that count"},
    {"--seqused-k", "int32 [batch_size]: keys that count"},
    {"--leftpad-k", "int32 [batch_size]: keys before those that count"},
    {"--seed-and-offset", "int64 [2]: the dropout's seed and offset, instead of --seed and --offset"},
    {"--dout", "gradient of out: runs the backward pass too"},
    {"--dlse", "gradient of the log-sum-exp"},
}};
constexpr std::array<FileOption, kOutputCount> kOutputs = {{
    {"--out", "the result"},
    {"--lse", "log-sum-exp of each row"},
    {"--dq", "gradient of q; needs --dout"},
    {"--dk", "gradient of k; needs --dout"},
    {"--dv", "gradient of v; needs --dout"},
    {"--dbias", "gradient of bias; needs --dout"},
    {"--dsink", "gradient of sink; needs --dout"},
}};

struct Options {
  std::vector<std::string> problem_words;
  std::array<std::string, kInputCount> inputs;
  std::array<std::string, kOutputCount> outputs;
  MergeFiles merge;
  KvCacheFiles kv_cache;
  std::string layout = "bshd", mask = "none", alignment;
  AttentionOptions attention;
  std::string implementation;
  int threads = 0;
  std::vector<const CLI::Option*> stated_by_problem;
};
constexpr const char* kCausalTopLeft = "causal_top_left";  // short for --mask causal --alignment top_left

/// Instead of a file's name: standard input for one input, standard output for one result.
constexpr const char* kStandardStream = "-";

using Arrays = std::array<Array, kInputCount>;

/// The names of an enumeration's values, for an option check.
template <typename Enum>
std::vector<std::string> names() {
  return {core::kNamesOf<Enum>.begin(), core::kNamesOf<Enum>.end()};
}

AttentionOptions attention_options(const Options& given, const Arrays& inputs) {
  AttentionOptions options;
  if (given.problem_words.empty()) {
    options = given.attention;
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
    options.seed = given.attention.seed;
    options.offset = given.attention.offset;
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
  return options;
}

/// A problem text must say what the arrays say; which results are wanted is the files' business.
void check_stated_problem(const Options& given, const Problem& described) {
  if (given.problem_words.empty()) return;
  Problem stated = parse_problem(single_problem(given.problem_words));
  stated.softmax_lse = described.softmax_lse;
  stated.dq = described.dq;
  stated.dk = described.dk;
  stated.dv = described.dv;
  stated.dbias = described.dbias;
  stated.dsink = described.dsink;
  if (stated == described) return;
  core::invalid_argument("PROBLEM: must agree with the files and --dout, which make '", to_string(described),
                         "' (got '", to_string(stated), "')");
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
void check_outputs_differ(const Options& given) {
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
void check_standard_streams(const Options& given) {
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

void check_files(const Options& given) {
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
std::ostream& report(const Options& given) {
  const bool taken = std::ranges::find(given.outputs, kStandardStream) != given.outputs.end();
  return taken ? std::cerr : std::cout;
}

void write_outputs(const Options& given, const std::array<Array, kOutputCount>& outputs) {
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

void run_files(const Options& given) {
  check_files(given);
  Arrays inputs;
  for (std::size_t i = 0; i < kInputCount; ++i)
    if (!given.inputs[i].empty()) inputs[i] = read_input(given.inputs[i]);
  set_num_threads(given.threads);
  const SelectOptions select{given.implementation};
  const bool backward = inputs[kDout].defined();

  std::array<Array, kOutputCount> outputs;
  ForwardArguments forward;
  forward.options = attention_options(given, inputs);
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

void add_files(CLI::App& command, Options& options) {
  for (std::size_t i = 0; i < kInputCount; ++i) {
    command.add_option(kInputs[i].name, options.inputs[i], kInputs[i].help)
        ->type_name("FILE.npy")
        ->group(i <= kV     ? "Inputs"
                : i < kDout ? "Inputs that go with options"
                            : "Backward");
  }
  for (std::size_t i = 0; i < kOutputCount; ++i)
    command.add_option(kOutputs[i].name, options.outputs[i], kOutputs[i].help)
        ->type_name("FILE.npy")
        ->group(i < kDq ? "Outputs" : "Backward");
}

/// Options that a problem text states as well, with which they exclude each other.
void add_attention_options(CLI::App& command, Options& options) {
  AttentionOptions& attention = options.attention;
  const auto add = [&](const char* name, auto& target, const char* help, const CLI::Validator& check) {
    options.stated_by_problem.push_back(
        with_check(command.add_option(name, target, help), check)->group("Attention, where PROBLEM is not given"));
  };
  const auto add_flag = [&](const char* name, bool& target, const char* help) {
    options.stated_by_problem.push_back(
        command.add_flag(name, target, help)->group("Attention, where PROBLEM is not given"));
  };
  add("--layout", options.layout, "order of the dimensions (default: bshd)", one_of(names<Layout>()));
  std::vector<std::string> masks = names<Mask>();
  masks.emplace_back(kCausalTopLeft);
  add("--mask", options.mask, "default: none", one_of(masks));
  add("--alignment", options.alignment, "default: bottom_right", one_of(names<Alignment>()));
  add("--window-left", attention.window_left, "keys visible left of the diagonal; -1: all", integer_between(-1));
  add("--window-right", attention.window_right, "keys visible right of it; -1: all", integer_between(-1));
  add("--softmax-scale", attention.softmax_scale, "default: 1/sqrt(head_dim)", any_number());
  add("--softcap", attention.softcap, "0: off", any_number());
  add("--dropout-p", attention.dropout_p, "in [0, 1)", any_number());
  add("--max-seqlen-q", attention.max_seqlen_q, "layout thd; default: the longest", integer_between(0));
  add("--max-seqlen-k", attention.max_seqlen_k, "layout thd; default: the longest", integer_between(0));
  add_flag("--deterministic", attention.deterministic, "dq, dbias and dsink bit-reproducible too");
  add_flag("--batch-invariant", attention.batch_invariant, "no sequence depends on the rest of the batch");
  with_check(command.add_option("--seed", attention.seed, "seed of the dropout"), unsigned_integer());
  with_check(command.add_option("--offset", attention.offset, "offset of the dropout"), unsigned_integer());
}

/// Refuses what another operation has no use for: inputs, outputs and options of attention but those that are named.
void refuse_others(const Options& given, std::string_view chosen_by, const std::vector<std::size_t>& inputs,
                   const std::vector<std::size_t>& outputs, const std::vector<std::string_view>& options) {
  const auto refuse = [chosen_by](std::string_view name) {
    core::invalid_argument(chosen_by, ": excludes ", name, " (got both)");
  };
  const auto has = [](const auto& list, const auto& value) { return std::ranges::find(list, value) != list.end(); };
  for (std::size_t i = 0; i < kInputCount; ++i)
    if (!given.inputs[i].empty() && !has(inputs, i)) refuse(kInputs[i].name);
  for (std::size_t i = 0; i < kOutputCount; ++i)
    if (!given.outputs[i].empty() && !has(outputs, i)) refuse(kOutputs[i].name);
  for (const CLI::Option* option : given.stated_by_problem)
    if (option->count() > 0 && !has(options, std::string_view(option->get_name()))) refuse(option->get_name());
}

void run_merge_files(const Options& given) {
  refuse_others(given, "--outs", {kSink, kDout, kDlse}, {kOut, kLse, kDsink}, {"--layout"});
  run_merge({given.merge, given.inputs[kSink], given.inputs[kDout], given.inputs[kDlse], given.outputs[kOut],
             given.outputs[kLse], given.outputs[kDsink], given.problem_words, given.layout, given.implementation,
             given.threads});
}

void run_kv_cache_files(const Options& given) {
  refuse_others(given, "--k-cache", {kQ, kK, kV, kAlibiSlopes, kSink, kCuSeqlensQ}, {kOut, kLse},
                {"--mask", "--window-left", "--window-right", "--softmax-scale", "--softcap", "--max-seqlen-q",
                 "--batch-invariant"});
  const auto& in = given.inputs;
  run_kv_cache({given.kv_cache, in[kQ], in[kK], in[kV], in[kAlibiSlopes], in[kSink], in[kCuSeqlensQ],
                given.outputs[kOut], given.outputs[kLse], given.problem_words, given.attention, given.mask,
                given.implementation, given.threads});
}

void run_given(const Options& given) {
  const MergeFiles& merge = given.merge;
  const bool merges = !merge.outs.empty(), steps = !given.kv_cache.k_cache.empty();
  for (const auto& [files, name] :
       {std::pair{&merge.lses, "--lses"}, {&merge.douts, "--douts"}, {&merge.dlses, "--dlses"}})
    if (!merges && !files->empty()) core::invalid_argument(name, ": needs --outs (got none)");
  for (const CLI::Option* option : given.kv_cache.all) {
    if (option->count() == 0) continue;
    if (merges) core::invalid_argument("--outs: excludes ", option->get_name(), " (got both)");
    if (!steps) core::invalid_argument(option->get_name(), ": needs --k-cache (got none)");
  }
  if (merges) return run_merge_files(given);
  if (steps) return run_kv_cache_files(given);
  for (const std::size_t i : {kQ, kK, kV})
    if (given.inputs[i].empty()) core::invalid_argument(kInputs[i].name, " is required");
  run_files(given);
}

void check_problem_excludes_options(const Options& given) {
  if (given.problem_words.empty()) return;
  for (const auto* options : {&given.stated_by_problem, &given.kv_cache.stated_by_problem}) {
    for (const CLI::Option* option : *options)
      if (option->count() > 0) core::invalid_argument(option->get_name(), ": excludes PROBLEM (got both)");
  }
}

}  // namespace

void add_run(CLI::App& program) {
  CLI::App& command = *program.add_subcommand("run", "Compute attention, merge, or a KV cache step on .npy files");
  const auto options = std::make_shared<Options>();
  command
      .add_option("PROBLEM", options->problem_words,
                  "states the options and must agree with the files (default: made of both)")
      ->option_text("...");
  add_files(command, *options);
  add_merge_files(command, options->merge);
  add_kv_cache_files(command, options->kv_cache);
  add_attention_options(command, *options);
  add_implementation_option(command, options->implementation);
  add_threads_option(command, options->threads);
  command.footer(
      "Examples: tilewise run --q q.npy --k k.npy --v v.npy --mask causal --out out.npy --lse lse.npy\n"
      "tilewise run --outs a.npy,b.npy --lses lse_a.npy,lse_b.npy --sink sink.npy --out out.npy\n"
      "tilewise run --q q.npy --k k.npy --v v.npy --k-cache keys.npy --v-cache values.npy --cache-seqlen 100 --out "
      "out.npy "
      "--k-cache-out keys.npy --v-cache-out values.npy\n"
      "One FILE.npy that is read and one that is written may be -, standard input and output; messages then go to\n"
      "standard error. Shapes and meanings: semantics.md, which is installed with the documents.");
  command.callback([options] {
    check_problem_excludes_options(*options);
    run_given(*options);
  });
}

}  // namespace tilewise::tools
