// `tilewise run` for attention, with --dout its backward pass too: what it reads and writes, and the call itself.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/attention.hpp"

namespace tilewise::tools {

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
inline constexpr std::array<FileOption, kInputCount> kInputs = {{
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
inline constexpr std::array<FileOption, kOutputCount> kOutputs = {{
    {"--out", "the result"},
    {"--lse", "log-sum-exp of each row"},
    {"--dq", "gradient of q; needs --dout"},
    {"--dk", "gradient of k; needs --dout"},
    {"--dv", "gradient of v; needs --dout"},
    {"--dbias", "gradient of bias; needs --dout"},
    {"--dsink", "gradient of sink; needs --dout"},
}};

/// short for --mask causal --alignment top_left
inline constexpr const char* kCausalTopLeft = "causal_top_left";

/// The files are empty where they are not given; words of a problem exclude layout, mask, alignment and options.
struct AttentionRun {
  std::array<std::string, kInputCount> inputs;
  std::array<std::string, kOutputCount> outputs;
  std::vector<std::string> tables;  ///< what score_mod and mask_mod look up, table0 and on
  std::vector<std::string> problem_words;
  std::string layout = "bshd", mask = "none", alignment;
  AttentionOptions options;
  std::string implementation;
  int threads = 0;
};

/// Reads, computes, writes, and says which plans ran. Throws Error.
void run_attention(const AttentionRun& given);

}  // namespace tilewise::tools
