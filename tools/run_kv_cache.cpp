// Reads the tensors of a KV cache step, runs it, and writes its results and what it changed.
#include "run_kv_cache.hpp"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <string_view>
#include <utility>

#include "array.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/schema.hpp"
#include "option_checks.hpp"
#include "run_files.hpp"

namespace tilewise::tools {
namespace {

using core::invalid_argument;

constexpr std::string_view kWith = "--k-cache";  // chooses the operation

struct TensorOption {
  const char *name, *help;
};
/// Those that attention does not have, in the order of views_of().
constexpr std::array<TensorOption, KvCacheFiles::kTensorCount> kTensors = {{
    {"--cache-seqlens", "int32 [batch_size]: places in use before the new keys"},
    {"--block-table", "int32 [batch_size, max_pages_per_seq]: the caches are paged"},
    {"--cache-batch-idx", "int32 [batch_size]: which sequence of the cache"},
    {"--cache-leftpad", "int32 [batch_size]: places to skip at the start"},
    {"--slots", "int32 or int64, without --q: where each new token goes; -1: nowhere"},
    {"--rotary-cos", "f32 or the dtype of q, [rows, rotary_dim / 2]"},
    {"--rotary-sin", "likewise"},
    {"--rotary-seqlens", "int32 [batch_size]: positions of the first new keys"},
    {"--cu-seqlens-k-new", "int32 [batch_size + 1]: where packed new keys start"},
    {"--k-scale", "f32, of caches in fp8: of one element, each head, sequence or token"},
    {"--v-scale", "likewise"},
}};

/// Where the tensors of kTensors go. Structured bindings name every member, so that a new one does not compile until it
/// is looked at here.
std::array<TensorView*, kTensors.size()> views_of(KvCacheOptions& o) {
  [[maybe_unused]] auto& [rotary_cos, rotary_sin, rotary_interleaved, rotary_seqlens, rotary_offset, cache_seqlens,
                          cache_seqlen, cache_batch_idx, cache_leftpad, block_table, slots, cu_seqlens_q, max_seqlen_q,
                          cu_seqlens_k_new, max_seqlen_k_new, head_dim_v, k_scale, v_scale, k_scale_value,
                          v_scale_value, mask, window_left, window_right, softmax_scale, softcap, alibi_slopes, sink,
                          num_splits, batch_invariant] = o;
  return {&cache_seqlens, &block_table,    &cache_batch_idx,  &cache_leftpad, &slots,  &rotary_cos,
          &rotary_sin,    &rotary_seqlens, &cu_seqlens_k_new, &k_scale,       &v_scale};
}

Array read(std::string_view option, const std::string& file) {
  return file.empty() ? Array() : read_named(option, file, kWith);
}

/// fp8 is kept as uint8.
TensorView cache_view(const Array& array) {
  TensorView view = array.view();
  if (view.dtype == DType::u8) view.dtype = DType::fp8_e4m3;
  return view;
}

/// The options that a problem states: all that are no tensors and no numbers in their place.
void set_stated_options(KvCacheOptions& options, const KvCacheProblem& p) {
  options.mask = p.mask;
  options.window_left = p.window_left;
  options.window_right = p.window_right;
  options.softmax_scale.reset();
  options.softcap = p.softcap;
  options.num_splits = p.num_splits;
  options.batch_invariant = p.batch_invariant;
  options.rotary_interleaved = p.rotary_interleaved;
  options.rotary_offset = p.rotary_offset;
  if (p.mla) options.head_dim_v = p.head_dim_v;
  const bool alone = operations::kv_cache::appends_alone(p);
  if (!alone) options.softmax_scale = p.softmax_scale;
  if (!operations::kv_cache::is_packed(p)) return;
  if (!alone) options.max_seqlen_q = p.seqlen_q;
  if (p.append) options.max_seqlen_k_new = p.seqlen_k_new;
}

KvCacheOptions options_of(const KvCacheRun& run) {
  KvCacheOptions options = run.files.options;
  if (!run.problem_words.empty()) {
    set_stated_options(options, parse_problem(single_problem(run.problem_words)));
    return options;
  }
  const AttentionOptions& attention = run.attention;
  options.mask = core::value_of<Mask>("--mask", run.mask);
  options.window_left = attention.window_left;
  options.window_right = attention.window_right;
  options.softmax_scale = attention.softmax_scale;
  options.softcap = attention.softcap;
  options.max_seqlen_q = attention.max_seqlen_q;
  options.batch_invariant = attention.batch_invariant;
  return options;
}

/// A problem text must say what the arrays say; whether --lse is wanted is the files' business.
void check_stated_problem(const KvCacheRun& run, const KvCacheProblem& described) {
  if (run.problem_words.empty()) return;
  KvCacheProblem stated = parse_problem(single_problem(run.problem_words));
  stated.softmax_lse = described.softmax_lse;
  check_agrees(stated, described, "the files");
}

/// Adds the tensors that the call changes in place, where files are wanted for them; refuses files for others.
void add_changed(const operations::kv_cache::Call& call, const KvCacheFiles& files, Results& results) {
  struct Output {
    std::string_view tensor;
    const char* option;
    const std::string& file;
    std::string_view need;
  };
  constexpr std::string_view kKeys = "new keys, --k", kTokens = "new keys, --k, and scales for each token";
  const std::array<Output, 4> outputs = {{{"k_cache", "--k-cache-out", files.k_cache_out, kKeys},
                                          {"v_cache", "--v-cache-out", files.v_cache_out, kKeys},
                                          {"k_scale", "--k-scale-out", files.k_scale_out, kTokens},
                                          {"v_scale", "--v-scale-out", files.v_scale_out, kTokens}}};
  const auto add = [&](const core::ArgumentName& name, const TensorView& view, core::Access access) {
    const auto* output = std::ranges::find(outputs, name.role, &Output::tensor);
    if (output == outputs.end() || output->file.empty()) return;
    if (access != core::Access::mutate || !view.defined()) {
      invalid_argument(output->option, ": needs ", output->need, " (got none)");
    }
    TensorView stored = view;
    if (stored.dtype == DType::fp8_e4m3) stored.dtype = DType::u8;
    results.add(output->option, output->file, stored);
  };
  operations::KvCache::for_each_tensor(call, add);
}

template <typename Arguments>
void run_arguments(const KvCacheRun& run, const Arguments& arguments, Results& results) {
  add_changed(operations::kv_cache::Call(arguments), run.files, results);
  results.check_wanted();
  const KvCacheProblem described = describe(arguments);
  check_stated_problem(run, described);
  set_num_threads(run.threads);
  const Plan planned = plan(described, SelectOptions{run.implementation});
  print_plan(std::cout, planned);
  tilewise::run(planned, arguments);
  results.write();
}

/// Tensors of the wrong rank give an empty result here, since describe() tells what is wrong with them.
Array make_out(const KvCacheArguments& a) {
  if (a.q.rank < 1) return Array(a.q.dtype, {0}, "out");
  TensorView out = a.q;
  const bool mla = !a.v_cache.defined();
  const std::int64_t values = a.v_cache.rank < 1 ? 0 : core::size_at(a.v_cache, a.v_cache.rank - 1);
  out.shape[static_cast<std::size_t>(a.q.rank - 1)] = mla ? a.options.head_dim_v.value_or(0) : values;
  return zeros_like(out, "out");
}

Array make_lse(const TensorView& q) {
  if (q.rank == 3) return Array(DType::f32, {q.shape[1], q.shape[0]}, "lse");
  if (q.rank == 4) return Array(DType::f32, {q.shape[0], q.shape[2], q.shape[1]}, "lse");
  return Array(DType::f32, {0}, "lse");
}

void refuse_without_queries(const KvCacheRun& run) {
  if (!run.q.empty()) return;
  for (const auto& [option, file] : {std::pair<const char*, const std::string&>{"--out", run.out},
                                     {"--lse", run.lse},
                                     {"--alibi-slopes", run.alibi_slopes},
                                     {"--sink", run.sink},
                                     {"--cu-seqlens-q", run.cu_seqlens_q}}) {
    if (!file.empty()) invalid_argument(option, ": needs --q (got none)");
  }
}

}  // namespace

void add_kv_cache_files(CLI::App& command, KvCacheFiles& files) {
  const auto keep = [&files](CLI::Option* option) {
    files.all.push_back(option->group(kKvCacheGroup));
    return option;
  };
  const auto add_file = [&](const char* name, std::string& target, const char* help) {
    keep(command.add_option(name, target, help))->type_name("FILE.npy");
  };
  add_file("--k-cache", files.k_cache,
           "attend over this cache of keys, and append --k and --v to it, instead of attention on --k; without --q "
           "append alone; fp8 e4m3 is kept as uint8");
  add_file("--v-cache", files.v_cache, "its values; without it they are the keys' first --head-dim-v columns");
  for (std::size_t i = 0; i < kTensors.size(); ++i) add_file(kTensors[i].name, files.tensors[i], kTensors[i].help);
  add_file("--k-cache-out", files.k_cache_out, "the keys after appending");
  add_file("--v-cache-out", files.v_cache_out, "the values after appending");
  add_file("--k-scale-out", files.k_scale_out, "scales for each token after appending");
  add_file("--v-scale-out", files.v_scale_out, "likewise");

  KvCacheOptions& options = files.options;
  const auto add = [&](const char* name, auto& target, const char* help, const CLI::Validator& check) {
    return keep(with_check(command.add_option(name, target, help), check));
  };
  add("--cache-seqlen", options.cache_seqlen, "one number for all of --cache-seqlens", integer_between(0));
  add("--k-scale-value", options.k_scale_value, "one number for all of --k-scale", any_number());
  add("--v-scale-value", options.v_scale_value, "one number for all of --v-scale", any_number());
  files.stated_by_problem = {
      add("--head-dim-v", options.head_dim_v, "columns of the keys that are values", integer_between(1)),
      add("--max-seqlen-k-new", options.max_seqlen_k_new, "of packed new keys; default: all", integer_between(0)),
      add("--num-splits", options.num_splits, "parts of the keys; 0: chosen from shapes", integer_between(0)),
      add("--rotary-offset", options.rotary_offset, "first dimension that is rotated", integer_between(0)),
      keep(command.add_flag("--rotary-interleaved", options.rotary_interleaved, "pairs are (2i, 2i + 1)"))};
}

void run_kv_cache(const KvCacheRun& run) {
  const KvCacheFiles& files = run.files;
  refuse_without_queries(run);
  const Array q = read("--q", run.q), k = read("--k", run.k), v = read("--v", run.v),
              k_cache = read(kWith, files.k_cache), v_cache = read("--v-cache", files.v_cache),
              slopes = read("--alibi-slopes", run.alibi_slopes), sink = read("--sink", run.sink),
              starts = read("--cu-seqlens-q", run.cu_seqlens_q);
  std::array<Array, kTensors.size()> tensors;
  KvCacheOptions options = options_of(run);
  const auto views = views_of(options);
  for (std::size_t i = 0; i < kTensors.size(); ++i) {
    tensors[i] = read(kTensors[i].name, files.tensors[i]);
    *views[i] = tensors[i].view();
  }
  options.alibi_slopes = slopes.view();
  options.sink = sink.view();
  options.cu_seqlens_q = starts.view();
  Results results(kWith);
  if (run.q.empty()) {
    run_arguments(run, AppendKvArguments{cache_view(k_cache), cache_view(v_cache), k.view(), v.view(), options},
                  results);
    return;
  }
  KvCacheArguments arguments{q.view(), cache_view(k_cache), cache_view(v_cache), k.view(), v.view(), {}, {}, options};
  const Array out = make_out(arguments), lse = run.lse.empty() ? Array() : make_lse(q.view());
  arguments.out = out.view();
  arguments.softmax_lse = lse.view();
  results.add("--out", run.out, out.view());
  results.add("--lse", run.lse, lse.view());
  run_arguments(run, arguments, results);
}

}  // namespace tilewise::tools
