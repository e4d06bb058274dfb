// Reads the tensors of a KV cache step, runs it, and writes its results and what it changed.
#include "run_kv_cache.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "array.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "option_checks.hpp"
#include "run_files.hpp"

namespace tilewise::tools {
namespace {

using core::invalid_argument;

constexpr std::string_view kWith = "--k-cache";  // chooses the operation

Array read(std::string_view option, const std::string& file) {
  return file.empty() ? Array() : read_named(option, file, kWith);
}

/// fp8 is kept as uint8.
TensorView cache_view(const Array& array) {
  TensorView view = array.view();
  if (view.dtype == DType::u8) view.dtype = DType::fp8_e4m3;
  return view;
}

KvCacheOptions options_of(const KvCacheRun& run) {
  KvCacheOptions options = run.files.options;
  if (!run.problem_words.empty()) {
    options = operations::kv_cache::stated_options(parse_problem(single_problem(run.problem_words)));
    options.cache_seqlen = run.files.options.cache_seqlen;
    options.k_scale_value = run.files.options.k_scale_value;
    options.v_scale_value = run.files.options.v_scale_value;
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
  options.score_mod = attention.score_mod;
  options.mask_mod = attention.mask_mod;
  options.block_rows = attention.block_rows;
  options.block_keys = attention.block_keys;
  return options;
}

/// What a problem's text says of it, if there is one.
BlockMaskShape stated_block_mask(const KvCacheRun& run) {
  if (run.problem_words.empty()) return {};
  const KvCacheProblem stated = parse_problem(single_problem(run.problem_words));
  return stated.block_mask;
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
                                     {"--key-indices", run.key_indices},
                                     {"--cu-seqlens-q", run.cu_seqlens_q},
                                     {"--block-counts", run.block_mask[operations::kBlockCounts]},
                                     {"--table", run.tables.empty() ? std::string() : run.tables.front()}}) {
    if (!file.empty()) invalid_argument(option, ": needs --q (got none)");
  }
}

}  // namespace

void add_kv_cache_files(CLI::App& command, KvCacheFiles& files) {
  const auto keep = [&files](CLI::Option* option) {
    files.all.push_back(option->group(kKvCacheGroup));
    return option;
  };
  const auto add_file = [&](const std::string& name, std::string& target, const std::string& help) {
    keep(command.add_option(name, target, help))->type_name("FILE.npy");
  };
  add_file("--k-cache", files.k_cache,
           "attend over this cache of keys, and append --k and --v to it, instead of attention on --k; without --q "
           "append alone; fp8 e4m3 is kept as uint8");
  add_file("--v-cache", files.v_cache, "its values; without it they are the keys' first --head-dim-v columns");
  for (std::size_t place = 0; place < files.tensors.size(); ++place) {
    const auto& tensor = KvCacheFiles::kTensors[place];
    if (KvCacheFiles::is_own(place)) add_file(flag_of(tensor.name), files.tensors[place], std::string(tensor.summary));
  }
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
              indices = read("--key-indices", run.key_indices), starts = read("--cu-seqlens-q", run.cu_seqlens_q);
  std::array<Array, KvCacheFiles::kTensors.size()> tensors;
  KvCacheArguments arguments;
  KvCacheOptions& options = arguments.options = options_of(run);
  operations::schema::for_each_member<operations::kv_cache::kSchema>(arguments, [&](std::size_t place, auto& entries) {
    if constexpr (std::is_same_v<decltype(entries), TensorView&>) {
      if (!KvCacheFiles::is_own(place)) return;
      tensors[place] = read(flag_of(KvCacheFiles::kTensors[place].name), files.tensors[place]);
      entries = tensors[place].view();
    }
  });
  options.alibi_slopes = slopes.view();
  options.sink = sink.view();
  options.key_indices = indices.view();
  options.cu_seqlens_q = starts.view();
  std::vector<Array> tables;
  for (const std::string& file : run.tables)
    options.tables.push_back(tables.emplace_back(read("--table", file)).view());
  const std::vector<Array> block_mask = take_block_mask(run.block_mask, stated_block_mask(run), kWith, options);
  Results results(kWith);
  if (run.q.empty()) {
    run_arguments(run, AppendKvArguments{cache_view(k_cache), cache_view(v_cache), k.view(), v.view(), options},
                  results);
    return;
  }
  arguments.q = q.view();
  arguments.k_cache = cache_view(k_cache);
  arguments.v_cache = cache_view(v_cache);
  arguments.k = k.view();
  arguments.v = v.view();
  const Array out = make_out(arguments), lse = run.lse.empty() ? Array() : make_lse(q.view());
  arguments.out = out.view();
  arguments.softmax_lse = lse.view();
  results.add("--out", run.out, out.view());
  results.add("--lse", run.lse, lse.view());
  run_arguments(run, arguments, results);
}

}  // namespace tilewise::tools
