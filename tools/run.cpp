// `tilewise run`: attention on .npy files, or with --outs merge, with --x a linear layer, with --gate-up too a layer of
// experts, with --elements quantising, with --logits routing, with --k-cache the KV cache step; with --dout the
// backward pass too.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

#include "commands.hpp"
#include "core/message.hpp"
#include "operations/attention/names.hpp"
#include "operations/linear/linear.hpp"
#include "operations/merge/merge.hpp"
#include "operations/moe/moe.hpp"
#include "operations/quantize/quantize.hpp"
#include "operations/route/route.hpp"
#include "option_checks.hpp"
#include "run_attention.hpp"
#include "run_kv_cache.hpp"
#include "run_schema.hpp"

namespace tilewise::tools {
namespace {

/// What attention is given stands in `run`, and other operations take of it what they need.
struct Options {
  AttentionRun run;
  std::vector<std::unique_ptr<const OperationRun>> by_schema;
  KvCacheFiles kv_cache;
  std::vector<const CLI::Option*> stated_by_problem;
  const CLI::Option* of_functions = nullptr;  // their tables
};

/// The names of an enumeration's values, for an option check.
template <typename Enum>
std::vector<std::string> names() {
  return {core::kNamesOf<Enum>.begin(), core::kNamesOf<Enum>.end()};
}

void add_files(CLI::App& command, Options& options) {
  for (std::size_t i = 0; i < kInputCount; ++i) {
    command.add_option(kInputs[i].name, options.run.inputs[i], kInputs[i].help)
        ->type_name("FILE.npy")
        ->group(i <= kV     ? "Inputs"
                : i < kDout ? "Inputs that go with options"
                            : "Backward");
  }
  options.of_functions =
      command.add_option("--table", options.run.tables, "table0, or with the next ones table1 and on")
          ->type_name("FILE.npy")
          ->group("Inputs that go with options");
  for (std::size_t i = 0; i < kOutputCount; ++i)
    command.add_option(kOutputs[i].name, options.run.outputs[i], kOutputs[i].help)
        ->type_name("FILE.npy")
        ->group(i < kDq ? "Outputs" : "Backward");
}

/// Options that a problem text states as well, with which they exclude each other.
void add_attention_options(CLI::App& command, Options& options) {
  AttentionOptions& attention = options.run.options;
  const auto add = [&](const char* name, auto& target, const char* help, const CLI::Validator& check) {
    options.stated_by_problem.push_back(
        with_check(command.add_option(name, target, help), check)->group("Attention, where PROBLEM is not given"));
  };
  const auto add_flag = [&](const char* name, bool& target, const char* help) {
    options.stated_by_problem.push_back(
        command.add_flag(name, target, help)->group("Attention, where PROBLEM is not given"));
  };
  add("--layout", options.run.layout, "order of the dimensions (default: bshd)", one_of(names<Layout>()));
  std::vector<std::string> masks = names<Mask>();
  masks.emplace_back(kCausalTopLeft);
  add("--mask", options.run.mask, "default: none", one_of(masks));
  add("--alignment", options.run.alignment, "default: bottom_right", one_of(names<Alignment>()));
  add("--window-left", attention.window_left, "keys visible left of the diagonal; -1: all", integer_between(-1));
  add("--window-right", attention.window_right, "keys visible right of it; -1: all", integer_between(-1));
  add("--softmax-scale", attention.softmax_scale, "default: 1/sqrt(head_dim)", any_number());
  add("--softcap", attention.softcap, "0: off", any_number());
  add("--dropout-p", attention.dropout_p, "in [0, 1)", any_number());
  add("--max-seqlen-q", attention.max_seqlen_q, "layout thd; default: the longest", integer_between(0));
  add("--max-seqlen-k", attention.max_seqlen_k, "layout thd; default: the longest", integer_between(0));
  const auto add_function = [&](const char* name, std::string& target, const char* help) {
    options.stated_by_problem.push_back(command.add_option(name, target, help)
                                            ->type_name("EXPRESSION")
                                            ->group("Attention, where PROBLEM is not given"));
  };
  add_function("--score-mod", attention.score_mod, "makes a score of score, b, h, q_idx, kv_idx and tables");
  add_function("--mask-mod", attention.mask_mod, "says of b, h, q_idx, kv_idx and tables whether a key is visible");
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
    if (!given.run.inputs[i].empty() && !has(inputs, i)) refuse(kInputs[i].name);
  if (given.of_functions->count() > 0) refuse(given.of_functions->get_name());
  for (std::size_t i = 0; i < kOutputCount; ++i)
    if (!given.run.outputs[i].empty() && !has(outputs, i)) refuse(kOutputs[i].name);
  for (const CLI::Option* option : given.stated_by_problem)
    if (option->count() > 0 && !has(options, std::string_view(option->get_name()))) refuse(option->get_name());
}

void run_kv_cache_files(const Options& given) {
  refuse_others(given, "--k-cache", {kQ, kK, kV, kAlibiSlopes, kSink, kCuSeqlensQ}, {kOut, kLse},
                {"--mask", "--window-left", "--window-right", "--softmax-scale", "--softcap", "--max-seqlen-q",
                 "--batch-invariant"});
  const auto& in = given.run.inputs;
  run_kv_cache({given.kv_cache, in[kQ], in[kK], in[kV], in[kAlibiSlopes], in[kSink], in[kCuSeqlensQ],
                given.run.outputs[kOut], given.run.outputs[kLse], given.run.problem_words, given.run.options,
                given.run.mask, given.run.implementation, given.run.threads});
}

void run_given(const Options& given) {
  // The last one first: --gate-up and --elements go with --x, which chooses linear layers where it stands alone.
  for (const auto& operation : std::views::reverse(given.by_schema)) {
    if (!operation->is_chosen()) continue;
    // The option that chooses another operation before those that go with it.
    for (const CLI::Option* option : given.kv_cache.all)
      if (option->count() > 0)
        core::invalid_argument(operation->chooser(), ": excludes ", option->get_name(), " (got both)");
    return operation->run({given.run.problem_words, given.run.implementation, given.run.threads});
  }
  for (const auto& operation : given.by_schema) operation->refuse_own();
  const bool steps = !given.kv_cache.k_cache.empty();
  for (const CLI::Option* option : given.kv_cache.all)
    if (option->count() > 0 && !steps) core::invalid_argument(option->get_name(), ": needs --k-cache (got none)");
  if (steps) return run_kv_cache_files(given);
  for (const std::size_t i : {kQ, kK, kV})
    if (given.run.inputs[i].empty()) core::invalid_argument(kInputs[i].name, " is required");
  run_attention(given.run);
}

void check_problem_excludes_options(const Options& given) {
  if (given.run.problem_words.empty()) return;
  for (const auto* options : {&given.stated_by_problem, &given.kv_cache.stated_by_problem}) {
    for (const CLI::Option* option : *options)
      if (option->count() > 0) core::invalid_argument(option->get_name(), ": excludes PROBLEM (got both)");
  }
}

}  // namespace

void add_run(CLI::App& program) {
  CLI::App& command = *program.add_subcommand(
      "run",
      "Compute attention, merge, a linear layer, routing, experts, a KV cache step or quantised numbers on .npy files");
  const auto options = std::make_shared<Options>();
  command
      .add_option("PROBLEM", options->run.problem_words,
                  "states the options and must agree with the files (default: made of both)")
      ->option_text("...");
  add_files(command, *options);
  add_kv_cache_files(command, options->kv_cache);
  add_attention_options(command, *options);
  const auto add = [&]<typename Op>(typename SchemaRun<Op>::Role chooser, const char* group) {
    options->by_schema.push_back(std::make_unique<SchemaRun<Op>>(command, chooser, group));
  };
  add.operator()<operations::Merge>("outs", "Merge");
  add.operator()<operations::Linear>("x", "Linear layers");
  add.operator()<operations::Route>("logits", "Routing");
  add.operator()<operations::Moe>("gate_up", "Experts");
  add.operator()<operations::Quantize>("elements", "Quantising");
  add_implementation_option(command, options->run.implementation);
  add_threads_option(command, options->run.threads);
  command.footer(
      "Examples: tilewise run --q q.npy --k k.npy --v v.npy --mask causal --out out.npy --lse lse.npy\n"
      "tilewise run --outs a.npy,b.npy --lses lse_a.npy,lse_b.npy --sink sink.npy --out out.npy\n"
      "tilewise run --x x.npy --w w.npy --bias bias.npy --activation silu --out out.npy\n"
      "tilewise run --logits logits.npy --top-k 8 --score sigmoid --topk-ids ids.npy --topk-weights weights.npy\n"
      "tilewise run --x x.npy --topk-ids ids.npy --topk-weights weights.npy --gate-up gate_up.npy --down down.npy "
      "--out "
      "out.npy\n"
      "tilewise run --x x.npy --format mxfp4 --elements elements.npy --scales scales.npy\n"
      "tilewise run --elements elements.npy --scales scales.npy --format mxfp4 --out out.npy\n"
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
