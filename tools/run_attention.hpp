// `tilewise run` for attention, with --dout its backward pass too: what it reads and writes, and the call itself.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor_checks.hpp"
#include "operations/attention/schema.hpp"
#include "operations/derived/call.hpp"
#include "run_block_mask.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::tools {

/// The tensors of a call by their places in the schema: those that it sums up for users are files.
struct AttentionFiles {
  using Role = operations::schema::Role<operations::attention::kSchema>;
  static constexpr const auto& kTensors = operations::schema::kTensors<operations::attention::kSchema>;
  static constexpr std::size_t kCount = kTensors.size();

  [[nodiscard]] static constexpr bool is_file(std::size_t place) { return !kTensors[place].summary.empty(); }
  [[nodiscard]] static constexpr bool is_output(std::size_t place) {
    return kTensors[place].access == core::Access::write;
  }
  /// Whether the backward pass alone has it.
  [[nodiscard]] static constexpr bool is_backward(std::size_t place) {
    return !operations::schema::kRoles<operations::attention::kSchema>[0][place];
  }
  /// "--seqused-q"
  [[nodiscard]] static std::string flag(std::size_t place) {
    const auto& tensor = kTensors[place];
    return flag_of(tensor.flag.empty() ? tensor.name : tensor.flag);
  }
  [[nodiscard]] static std::string flag(Role role) { return flag(role.place); }

  std::array<std::string, kCount> names;  ///< empty where not given

  [[nodiscard]] const std::string& operator[](Role role) const { return names[role.place]; }
};

/// short for --mask causal --alignment top_left
inline constexpr const char* kCausalTopLeft = "causal_top_left";

/// The files are empty where they are not given; words of a problem exclude layout, mask, alignment and options.
struct AttentionRun {
  AttentionFiles files;
  std::vector<std::string> tables;  ///< what score_mod and mask_mod look up, table0 and on
  BlockMaskFiles block_mask;
  std::vector<std::string> problem_words;
  std::string layout = "bshd", mask = "none", alignment;
  AttentionOptions options;
  std::string implementation;
  int threads = 0;
};

/// Reads, computes, writes, and says which plans ran. Throws Error.
void run_attention(const AttentionRun& given);

}  // namespace tilewise::tools
