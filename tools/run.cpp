// `tilewise run`: attention on .npy files, or with --outs merge, with --x a linear layer, with --gate-up too a layer of
// experts, with --elements quantising, with --logits routing, with --k-cache the KV cache step; with --dout the
// backward pass too.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
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

using Files = AttentionFiles;

/// What attention is given stands in `run`, and other operations take of it what they need.
struct Options {
  AttentionRun run;
  std::vector<std::unique_ptr<const OperationRun>> by_schema;
  KvCacheFiles kv_cache;
  std::vector<const CLI::Option*> stated_by_problem;
  std::vector<const CLI::Option*> of_functions;  // their tables, and a block mask's
};

/// The names of an enumeration's values, for an option check.
template <typename Enum>
std::vector<std::string> names() {
  return {core::kNamesOf<Enum>.begin(), core::kNamesOf<Enum>.end()};
}

/// The group that a file's flag is listed in.
const char* group_of(std::size_t place) {
  if (Files::is_backward(place)) return "Backward";
  if (Files::is_output(place)) return "Outputs";
  return place <= Files::Role::place_of("v") ? "Inputs" : "Inputs that go with options";
}

void add_files(CLI::App& command, Options& options) {
  for (std::size_t i = 0; i < Files::kCount; ++i) {
    if (!Files::is_file(i)) continue;
    const std::string help(Files::kTensors[i].summary);
    command.add_option(Files::flag(i), options.run.files.names[i], help)->type_name("FILE.npy")->group(group_of(i));
  }
  options.of_functions.push_back(
      command.add_option("--table", options.run.tables, "table0, or with the next ones table1 and on")
          ->type_name("FILE.npy")
          ->group(group_of(Files::Role::place_of("bias"))));
  constexpr std::array<const char*, operations::kBlockMaskTensors> kHelp{
      "int32 [1 or batch_size, 1 or num_heads_q, rows of blocks]: how many blocks mask_mod is asked of",
      "int32 [.., columns of blocks]: which ones; the others are hidden", "likewise of blocks that are visible whole",
      "likewise"};
  for (std::size_t i = 0; i < kHelp.size(); ++i)
    options.of_functions.push_back(command.add_option(block_mask_flag(i), options.run.block_mask[i], kHelp[i])
                                       ->type_name("FILE.npy")
                                       ->group(group_of(Files::Role::place_of("bias"))));
}

/// Adds a flag that a problem text states as well, with which it excludes.
CLI::Option* stated(Options& options, CLI::Option* option) {
  options.stated_by_problem.push_back(option->group("Attention, where PROBLEM is not given"));
  return option;
}

/// The flag of an option of attention, by its type.
template <typename Value>
void add_stated(CLI::App& command, Options& options, const std::string& flag, Value& target, const std::string& help) {
  if constexpr (std::is_same_v<Value, bool>) {
    stated(options, command.add_flag(flag, target, help));
  } else {
    CLI::Option* option = stated(options, command.add_option(flag, target, help));
    if constexpr (std::is_same_v<Value, std::string>)
      option->type_name("EXPRESSION");
    else if constexpr (std::is_same_v<Value, std::int64_t>)
      with_check(option, integer_between(target));  // the default is the least
    else if constexpr (std::is_same_v<Value, std::optional<std::int64_t>>)
      with_check(option, integer_between(0));
    else
      with_check(option, any_number());
  }
}

void add_attention_options(CLI::App& command, Options& options) {
  AttentionRun& run = options.run;
  const auto add_name = [&](const char* flag, std::string& target, const char* help, std::vector<std::string> names) {
    with_check(stated(options, command.add_option(flag, target, help)), one_of(std::move(names)));
  };
  add_name("--layout", run.layout, "order of the dimensions (default: bshd)", names<Layout>());
  std::vector<std::string> masks = names<Mask>();
  masks.emplace_back(kCausalTopLeft);
  add_name("--mask", run.mask, "default: none", masks);
  add_name("--alignment", run.alignment, "default: bottom_right", names<Alignment>());
  const auto add_field = [&](const auto& field) {
    const auto member = operations::schema::member_in<ForwardArguments>(field.members);
    if constexpr (operations::schema::kLengthOf<decltype(member)> > 0) {
      auto& target = run.options.*operations::schema::get<0>(member).inner;
      if constexpr (!std::is_enum_v<std::remove_reference_t<decltype(target)>>)
        if (!field.summary.empty())
          add_stated(command, options, flag_of(field.packed_key), target, std::string(field.summary));
    }
  };
  operations::schema::apply([&](const auto&... fields) { (add_field(fields), ...); },
                            operations::attention::kSchema.fields);
  const auto add_size = [&](const char* flag, std::int64_t& target, const char* help) {
    with_check(stated(options, command.add_option(flag, target, help)), integer_between(1));
  };
  add_size("--block-rows", run.options.block_rows, "queries of a block of the block mask; default: 128");
  add_size("--block-keys", run.options.block_keys, "its keys; default: 128");
  with_check(command.add_option("--seed", run.options.seed, "seed of the dropout"), unsigned_integer());
  with_check(command.add_option("--offset", run.options.offset, "offset of the dropout"), unsigned_integer());
}

/// Refuses what another operation has no use for: files and options of attention but those that are named.
void refuse_others(const Options& given, std::string_view chosen_by, const std::vector<Files::Role>& files,
                   const std::vector<std::string_view>& options) {
  const auto refuse = [chosen_by](std::string_view name) {
    core::invalid_argument(chosen_by, ": excludes ", name, " (got both)");
  };
  for (std::size_t i = 0; i < Files::kCount; ++i) {
    const auto is_it = [i](const Files::Role& role) { return role.place == i; };
    if (!given.run.files.names[i].empty() && std::ranges::none_of(files, is_it)) refuse(Files::flag(i));
  }
  const auto takes = [&](const CLI::Option& option) {
    return std::ranges::find(options, std::string_view(option.get_name())) != options.end();
  };
  for (const auto* given_options : {&given.of_functions, &given.stated_by_problem})
    for (const CLI::Option* option : *given_options)
      if (option->count() > 0 && !takes(*option)) refuse(option->get_name());
}

void run_kv_cache_files(const Options& given) {
  refuse_others(given, "--k-cache",
                {"q", "k", "v", "alibi_slopes", "sink", "key_indices", "cu_seqlens_q", "out", "softmax_lse"},
                {"--mask", "--window-left", "--window-right", "--softmax-scale", "--softcap", "--max-seqlen-q",
                 "--batch-invariant", "--score-mod", "--mask-mod", "--table", "--block-counts", "--block-indices",
                 "--full-block-counts", "--full-block-indices", "--block-rows", "--block-keys"});
  const Files& files = given.run.files;
  run_kv_cache({given.kv_cache, files["q"], files["k"], files["v"], files["alibi_slopes"], files["sink"],
                files["key_indices"], files["cu_seqlens_q"], files["out"], files["softmax_lse"],
                given.run.problem_words, given.run.options, given.run.tables, given.run.block_mask, given.run.mask,
                given.run.implementation, given.run.threads});
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
  for (const Files::Role role : {Files::Role("q"), Files::Role("k"), Files::Role("v")})
    if (given.run.files[role].empty()) core::invalid_argument(Files::flag(role), " is required");
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
