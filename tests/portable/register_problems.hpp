// The problems whose kernels must keep to their registers: every head_dim, every option alone, pairs of them on AMD,
// and the few of them that each test run compiles.
#pragma once

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "core/message.hpp"
#include "option_pairs.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {

/// One of each family, and what differs within: registers, instructions, shared memory (which decides schedules).
inline constexpr std::string_view kSweptArchitectures[] = {"sm_80",   "sm_89",   "sm_90a", "sm_100",  "sm_120",
                                                           "gfx90a",  "gfx942",  "gfx950", "gfx1100", "gfx1102",
                                                           "gfx1151", "gfx1201", "gfx1250"};

/// What every test run compiles for.
inline constexpr std::string_view kSampledArchitectures[] = {"sm_80",   "sm_90a",  "gfx90a",  "gfx942", "gfx950",
                                                             "gfx1100", "gfx1102", "gfx1201", "gfx1250"};

enum class Pass { forward, backward, decode };
inline constexpr Pass kPasses[] = {Pass::forward, Pass::backward, Pass::decode};

/// As problem text. Decoding is forward with one query.
inline std::string register_problem(Pass pass, int head_dim, std::string_view options = "") {
  const bool packed = options.find("layout=thd") != options.npos;
  const std::string_view prefix = packed ? " max_" : " ", q = pass == Pass::decode ? "1" : "4096";
  return core::concat(pass == Pass::backward ? "attention_backward" : "attention_forward", prefix, "seqlen_q=", q,
                      prefix, "seqlen_k=4096 num_heads_q=32 head_dim=", head_dim,
                      options.find("dtype=") == options.npos ? " dtype=bf16" : "", options.empty() ? "" : " ", options);
}

inline constexpr std::string_view kBothFunctions =
    "score_mod=score-table0[h]*abs(q_idx-kv_idx) mask_mod=(table1[b,q_idx]==table1[b,kv_idx])&(kv_idx<=q_idx) "
    "tables=f32[32],i32[1,4096]";
/// Of tables whose elements many scores look up, and one for each of them.
inline constexpr std::string_view kTableGradients =
    "dq=0 dk=0 dv=0 score_mod=score*table1[b]+table0[h,clamp(q_idx-kv_idx,-128,128)+128]+table2[b,h,q_idx,kv_idx] "
    "tables=f32[32,257],bf16[1],f16[1,32,4096,4096] dtables=7";
inline constexpr std::string_view kScoreFunctions[] = {"score_mod=20.0*tanh(score/20.0)", kScoreMod, kMaskMod};

inline constexpr std::string_view kEveryOption =
    "layout=thd batch_size=2 mask=causal window_left=256 softcap=30 alibi_slopes=[h] bias=query[b,h,q,k] sink=query "
    "dropout_p=0.1 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1";
inline constexpr std::string_view kEveryGradient = " dlse=1 dsink=1 dbias=1";

/// Few kernels, which take few registers: they are in the sample of one architecture of each machine.
inline constexpr std::string_view kMergeProblems[] = {
    "merge dtype=bf16 parts=20 head_dim_v=128 sink=f32 seqlen_q=64", "merge parts=3 head_dim_v=512 seqlen_q=64",
    "merge_backward dtype=f16 parts_dtype=mixed parts=20 head_dim_v=39 sink=query dsink=1 seqlen_q=64",
    "merge_backward dtype=bf16 stacked=1 head_dim_v=512 seqlen_q=64"};

/// Likewise.
inline constexpr std::string_view kRouteProblems[] = {
    "route dtype=bf16 tokens=512 num_experts=256 top_k=8 score=sigmoid bias=f32 n_group=8 topk_group=4 "
    "group_value=sum_of_two normalise=sum_plus_epsilon",
    "route tokens=512 num_experts=1024 top_k=100 scale_of_expert=bf16",
    "route_backward dtype=f16 tokens=512 num_experts=256 top_k=8 normalise=sum_plus_epsilon",
    "route_backward tokens=512 num_experts=256 top_k=8 score=sqrt_softplus"};

/// Likewise: every way that a scale is found, and back.
inline constexpr std::string_view kQuantizeProblems[] = {
    "quantize format=fp8_tensor dtype=bf16 rows=512 columns=4096",
    "quantize format=fp8_row dtype=bf16 power_of_two=1 rows=512 columns=4096",
    "quantize format=fp8_128x128 dtype=f16 rows=512 columns=4095",
    "quantize format=mxfp8 rows=512 columns=4096",
    "quantize format=mxfp4 dtype=bf16 rows=512 columns=4096",
    "quantize format=nvfp4 dtype=bf16 rows=512 columns=4095",
    "dequantize format=fp8_128x128_e8m0 rows=512 columns=4096",
    "dequantize format=nvfp4 dtype=bf16 rows=512 columns=4095"};

/// Likewise: tiles of few rows and of many, every way that elements are widened and scaled, and gradients.
inline constexpr std::string_view kLinearProblems[] = {
    "linear dtype=bf16 tokens=4096 n=4096 k=4096 bias=bf16 activation=gelu",
    "linear dtype=bf16 tokens=4 n=4096 k=4096",
    "linear tokens=4096 n=4096 k=4096",
    "linear x_format=fp8_1x128 w_format=fp8_128x128 tokens=4096 n=4096 k=4096",
    "linear w_format=mxfp4 dtype=bf16 tokens=64 n=4096 k=4096 groups=offsets_i32 num_experts=8",
    "linear w_format=mxfp4 dtype=f16 tokens=4096 n=4096 k=4095",
    "linear_backward dtype=bf16 tokens=4096 n=4096 k=4096 bias=f32 dbias=1 activation=silu groups=counts_i64 "
    "num_experts=8"};

/// Likewise: each layout of gates, few rows and many, formats, and gradients.
inline constexpr std::string_view kExpertProblems[] = {
    "moe dtype=bf16 tokens=4096 hidden=2048 intermediate=768 num_experts=128 top_k=8",
    "moe dtype=bf16 tokens=1 hidden=2048 intermediate=768 num_experts=128 top_k=8",
    "moe w_format=mxfp4 dtype=bf16 tokens=64 hidden=2880 intermediate=2880 num_experts=32 top_k=4 gate=interleaved "
    "activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=bf16",
    "moe x_format=fp8_1x128 w_format=fp8_128x128 h_format=fp8_1x128 tokens=4096 hidden=7168 intermediate=2048 "
    "num_experts=256 top_k=8",
    "moe tokens=512 hidden=256 intermediate=256 num_experts=8 top_k=2 activation=gelu norm=f32",
    "moe_backward dtype=bf16 tokens=4096 hidden=4096 intermediate=14336 num_experts=8 top_k=2 gate_up_bias=bf16 "
    "dgate_up_bias=1",
    "moe_backward tokens=512 hidden=256 intermediate=256 num_experts=8 top_k=2 gate=none activation=gelu_tanh "
    "weight_on_input=1"};

/// Of powers of two that gfx950's matrix unit takes as scales; others widen.
inline constexpr std::string_view kMicroscaledProblems[] = {
    "linear x_format=mxfp8 w_format=mxfp4 tokens=4096 n=4096 k=4096",
    "linear x_format=mxfp8 w_format=mxfp8 tokens=64 n=4096 k=4096",
    "moe x_format=fp8_row h_format=fp8_row w_format=mxfp4 tokens=4096 hidden=2880 intermediate=2880 num_experts=32 "
    "top_k=4"};

/// Likewise; the sweep alone has the wider ones.
inline constexpr std::string_view kKvCacheProblems[] = {
    "kv_cache_attention dtype=bf16 batch_size=64 seqlen_q=1 num_heads_q=32 num_heads_k=8 head_dim=128 page_size=16 "
    "num_pages=32768 max_pages_per_seq=512 cache_seqlens=1",
    "kv_cache_attention dtype=f16 cache_dtype=fp8_e4m3 scales=token seqlen_q=64 num_heads_q=32 num_heads_k=8 "
    "head_dim=128 page_size=16 num_pages=32768 max_pages_per_seq=512 append=1 seqlen_k_new=64 cache_seqlens=1 "
    "rotary=f32 rotary_dim=64 mask=causal",
    "kv_cache_attention dtype=bf16 cache_dtype=fp8_e4m3 scales=head batch_size=64 seqlen_q=1 num_heads_q=32 "
    "num_heads_k=8 head_dim=128 page_size=64 num_pages=8192 max_pages_per_seq=256 cache_seqlens=1",
    "kv_cache_attention dtype=bf16 mla=1 batch_size=64 seqlen_q=1 num_heads_q=16 num_heads_k=1 head_dim=576 "
    "head_dim_v=512 page_size=64 num_pages=8192 max_pages_per_seq=128 cache_seqlens=1"};

/// Of keys that are selected: plain, with every option, and values within the keys. Likewise.
inline constexpr std::string_view kSelectedProblems[] = {
    "attention_forward dtype=bf16 seqlen_q=4096 seqlen_k=32768 num_heads_q=128 num_heads_k=1 head_dim=128 top_k=2048",
    "attention_forward dtype=bf16 layout=thd batch_size=2 max_seqlen_q=4096 max_seqlen_k=32768 num_heads_q=32 "
    "num_heads_k=8 head_dim=64 top_k=2048 mask=causal window_left=256 softcap=30 alibi_slopes=[h] bias=query[b,h,q,k] "
    "sink=query dropout_p=0.1 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1",
    "attention_backward dtype=bf16 seqlen_q=4096 seqlen_k=32768 num_heads_q=128 num_heads_k=1 head_dim=192 "
    "head_dim_v=128 top_k=2048",
    "attention_backward dtype=bf16 layout=thd batch_size=2 max_seqlen_q=4096 max_seqlen_k=32768 num_heads_q=32 "
    "num_heads_k=8 head_dim=128 top_k=2048 mask=causal window_left=256 softcap=30 alibi_slopes=[h] bias=query[b,h,q,k] "
    "sink=query dropout_p=0.1 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1",
    "kv_cache_attention dtype=bf16 mla=1 batch_size=64 seqlen_q=1 num_heads_q=128 num_heads_k=1 head_dim=576 "
    "head_dim_v=512 page_size=64 num_pages=8192 max_pages_per_seq=512 cache_seqlens=1 top_k=2048",
    "kv_cache_attention dtype=bf16 cache_dtype=fp8_e4m3 scales=token batch_size=64 seqlen_q=1 num_heads_q=32 "
    "num_heads_k=8 head_dim=128 page_size=64 num_pages=8192 max_pages_per_seq=512 cache_seqlens=1 top_k=2048"};
inline constexpr std::string_view kSweptKvCacheOptions[] = {
    "capacity=16384", "page_size=16 num_pages=4096 max_pages_per_seq=1024",
    "page_size=1 num_pages=4096 max_pages_per_seq=4096",
    "page_size=16 num_pages=4096 max_pages_per_seq=512 cache_dtype=fp8_e4m3 scales=head",
    "page_size=16 num_pages=4096 max_pages_per_seq=512 cache_dtype=fp8_e4m3 scales=token softcap=30 alibi_slopes=[h] "
    "sink=1 mask=causal window_left=256"};

/// Of it every test run compiles a part. Each machine has every kernel there, head_dim 64, 128 and 256, both dtypes,
/// plain, causal and with every option, and what has spilled before; what one architecture of a machine has, the others
/// need not repeat. Compilers take 0.5 to 4 s a kernel, 13 s for the largest.
inline std::vector<std::string> sampled_attention(std::string_view architecture) {
  using enum Pass;
  const auto every = [](std::string_view gradients = "") { return core::concat(kEveryOption, gradients); };
  const auto every_f16 = [](std::string_view gradients = "") {
    return core::concat(kEveryOption, gradients, " dtype=f16");
  };
  constexpr std::string_view kCausal = "mask=causal", kF16 = "dtype=f16", kCausalF16 = "dtype=f16 mask=causal";
  if (architecture == "sm_80") {
    return {register_problem(forward, 64, kF16), register_problem(backward, 64, kF16),
            register_problem(forward, 256, every()), register_problem(backward, 256, every(" dlse=1 dsink=1"))};
  }
  if (architecture == "sm_90a") {
    return {register_problem(forward, 128, kCausal),
            register_problem(forward, 256),
            register_problem(backward, 64, kCausal),
            register_problem(backward, 128, kCausal),
            register_problem(backward, 256, "deterministic=1"),
            register_problem(backward, 128, "dropout_p=0.1"),
            register_problem(forward, 128, kBothFunctions),
            register_problem(backward, 128, kBothFunctions),
            register_problem(forward, 64, every()),
            register_problem(backward, 64, every(kEveryGradient)),
            register_problem(backward, 128, every(" dbias=1"))};
  }
  if (architecture == "gfx90a") {
    return {register_problem(forward, 128, kCausalF16), register_problem(forward, 64, every_f16()),
            register_problem(backward, 128, kCausalF16),
            register_problem(backward, 80, "layout=thd batch_size=2 mask=causal")};
  }
  if (architecture == "gfx942") {
    return {register_problem(forward, 64),
            register_problem(forward, 128, kCausal),
            register_problem(forward, 256),
            register_problem(backward, 64),
            register_problem(backward, 128, kCausal),
            register_problem(backward, 64, every(kEveryGradient)),
            register_problem(backward, 128, every(" dbias=1")),
            register_problem(forward, 64, every()),
            register_problem(forward, 128, "mask=causal softcap=30"),
            register_problem(forward, 128, kBothFunctions),
            register_problem(backward, 128, kBothFunctions),
            register_problem(backward, 128, kTableGradients)};
  }
  if (architecture == "gfx950") {
    return {register_problem(forward, 128, kCausal), register_problem(forward, 128, every()),
            register_problem(backward, 256), register_problem(forward, 64, kScoreMod)};
  }
  if (architecture == "gfx1100") {
    return {register_problem(forward, 64, kF16),
            register_problem(decode, 80),
            register_problem(backward, 64, kCausalF16),
            register_problem(forward, 64, every()),
            register_problem(backward, 64, every(" dbias=1")),
            register_problem(backward, 256, every(" dbias=1")),
            register_problem(forward, 64, kBothFunctions),
            register_problem(backward, 64, kBothFunctions),
            register_problem(backward, 128, kTableGradients)};
  }
  if (architecture == "gfx1102") {
    return {register_problem(forward, 64), register_problem(forward, 128, kCausal), register_problem(forward, 256),
            register_problem(backward, 64), register_problem(backward, 128, kCausal)};
  }
  if (architecture == "gfx1201" || architecture == "gfx1250") {
    return {register_problem(forward, 128, kCausal), register_problem(backward, 128, kCausal)};
  }
  return {};
}

inline constexpr int kPairedHeadDims[] = {64, 80, 128, 192, 256};

/// Of attention's options, passes and head dims any two; where there are `sparse` levels, each of them beside any one.
inline std::vector<std::string> paired_attention(const std::vector<Pass>& passes, std::vector<Levels> factors,
                                                 const Levels& sparse = {}) {
  const std::size_t options = factors.size();
  factors.push_back(Levels(std::size(kPairedHeadDims)));
  factors.push_back(Levels(passes.size()));
  const std::size_t had = sparse.empty() ? 0 : factors.size();
  if (!sparse.empty()) factors.push_back(sparse);
  std::vector<std::string> problems;
  for (const std::vector<std::size_t>& row : CoveringRows(factors, kPairSeed, had).draw()) {
    problems.push_back(
        register_problem(passes[row[options + 1]], kPairedHeadDims[row[options]], text_of(factors, row)));
  }
  return problems;
}

inline std::vector<std::string> paired_forward() {
  return paired_attention({Pass::forward, Pass::decode}, forward_factors());
}
inline std::vector<std::string> paired_backward() { return paired_attention({Pass::backward}, backward_factors()); }
inline std::vector<std::string> paired_kv_cache(const Levels& sparse = {}) {
  std::vector<Levels> factors = kv_cache_factors();
  const std::size_t had = sparse.empty() ? 0 : factors.size();
  if (!sparse.empty()) factors.push_back(sparse);
  std::vector<std::string> problems;
  for (const std::vector<std::size_t>& row : CoveringRows(factors, kPairSeed, had).draw()) {
    problems.push_back(core::concat("kv_cache_attention num_heads_q=32 ", text_of(factors, row)));
  }
  return problems;
}

inline std::vector<std::string> sparse_forward() {
  return paired_attention({Pass::forward, Pass::decode}, forward_factors(), sparse_levels());
}
inline std::vector<std::string> sparse_backward() {
  const auto selects = [](std::string_view level) { return level.starts_with("top_k="); };
  Levels selected = sparse_levels(), others = sparse_levels();
  std::erase_if(selected, std::not_fn(selects));
  std::erase_if(others, selects);
  std::vector<std::string> problems = paired_attention({Pass::backward}, backward_factors(), others);
  for (std::string& problem : paired_attention({Pass::backward}, selected_backward_factors(), selected)) {
    problems.push_back(std::move(problem));
  }
  return problems;
}
inline std::vector<std::string> sparse_kv_cache() { return paired_kv_cache(sparse_levels()); }

/// On AMD, where registers that run out cost most.
inline bool has_pairs(std::string_view architecture) { return architecture.starts_with("gfx"); }

/// Every so many of them, others for each architecture.
inline std::vector<std::string> sampled_pairs(std::string_view architecture) {
  constexpr std::size_t kEvery = 48;
  std::size_t first = 0;
  for (const char letter : architecture) first = (31 * first + static_cast<unsigned char>(letter)) % kEvery;
  std::vector<std::string> problems;
  if (!has_pairs(architecture)) return problems;
  std::size_t number = 0;
  for (const auto& drawn : {paired_forward(), paired_backward(), paired_kv_cache(), sparse_forward(), sparse_backward(),
                            sparse_kv_cache()}) {
    for (const std::string& problem : drawn) {
      if (number++ % kEvery == first) problems.push_back(problem);
    }
  }
  return problems;
}

inline std::vector<std::string> sampled_problems(std::string_view architecture) {
  std::vector<std::string> problems = sampled_attention(architecture);
  for (std::string& problem : sampled_pairs(architecture)) problems.push_back(std::move(problem));
  problems.push_back(std::string(kLinearProblems[0]));
  if (architecture == "gfx950")
    problems.insert(problems.end(), std::begin(kMicroscaledProblems), std::end(kMicroscaledProblems));
  if (std::ranges::find(kMachines, architecture) != std::end(kMachines)) {
    problems.insert(problems.end(), std::begin(kLinearProblems) + 1, std::end(kLinearProblems));
    problems.insert(problems.end(), std::begin(kMergeProblems), std::end(kMergeProblems));
    problems.insert(problems.end(), std::begin(kExpertProblems), std::end(kExpertProblems));
    problems.insert(problems.end(), std::begin(kRouteProblems), std::end(kRouteProblems));
    problems.insert(problems.end(), std::begin(kQuantizeProblems), std::end(kQuantizeProblems));
    problems.insert(problems.end(), std::begin(kKvCacheProblems), std::end(kKvCacheProblems));
    problems.insert(problems.end(), std::begin(kSelectedProblems), std::end(kSelectedProblems));
  }
  return problems;
}

/// Plain at every head_dim that is a multiple of 8, every option at two of them (one that is padded), and the sample.
inline std::vector<std::string> swept_problems(std::string_view architecture) {
  std::vector<std::string> problems;
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (const Pass pass : kPasses) problems.push_back(register_problem(pass, head_dim));
    problems.push_back(register_problem(Pass::decode, head_dim, "batch_size=64"));  // tiles where blocks are many
  }
  for (const int head_dim : {80, 128}) {
    for (const Pass pass : kPasses) {
      for (const std::string& options : each_alone(pass == Pass::backward ? backward_factors() : forward_factors())) {
        problems.push_back(register_problem(pass, head_dim, options));
      }
      for (const std::string_view function : kScoreFunctions) {
        problems.push_back(register_problem(pass, head_dim, function));
      }
      problems.push_back(register_problem(pass, head_dim, "layout=thd batch_size=2 mask=causal"));
    }
    problems.push_back(register_problem(Pass::backward, head_dim, kTableGradients));
  }
  for (std::string& problem : sampled_attention(architecture)) problems.push_back(std::move(problem));
  problems.insert(problems.end(), std::begin(kLinearProblems), std::end(kLinearProblems));
  problems.insert(problems.end(), std::begin(kMergeProblems), std::end(kMergeProblems));
  problems.insert(problems.end(), std::begin(kExpertProblems), std::end(kExpertProblems));
  problems.insert(problems.end(), std::begin(kMicroscaledProblems), std::end(kMicroscaledProblems));
  problems.insert(problems.end(), std::begin(kRouteProblems), std::end(kRouteProblems));
  problems.insert(problems.end(), std::begin(kQuantizeProblems), std::end(kQuantizeProblems));
  problems.insert(problems.end(), std::begin(kKvCacheProblems), std::end(kKvCacheProblems));
  problems.insert(problems.end(), std::begin(kSelectedProblems), std::end(kSelectedProblems));
  for (const int head_dim : {64, 80, 96, 128, 192, 256, 576}) {
    for (const std::string_view queries : {"batch_size=64 seqlen_q=1", "seqlen_q=1", "seqlen_q=64"}) {
      for (const std::string_view options : kSweptKvCacheOptions) {
        problems.push_back(core::concat("kv_cache_attention dtype=bf16 num_heads_q=32 num_heads_k=8 cache_seqlens=1 ",
                                        "head_dim=", head_dim, " head_dim_v=", std::min(head_dim, 512), " ", queries,
                                        " ", options));
      }
    }
  }
  return problems;
}

}  // namespace tilewise::backends::portable
