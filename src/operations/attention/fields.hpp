// What an attention problem's text says that is no plain field: the word of a bias, a short form, and advice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem_text.hpp"
#include "operations/attention/names.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

/// Kind and dimensions of a bias are one word: none, or e.g. f32[b,1,q,k].
struct BiasWord {
  BiasKind kind = BiasKind::none;
  BiasDims dims{};
  friend bool operator==(const BiasWord&, const BiasWord&) = default;
};

inline void print_value(std::string& text, const BiasWord& bias) {
  const BiasDims& d = bias.dims;
  core::append(text, core::name_of(bias.kind));
  for (const char c :
       {'[', d.batch ? 'b' : '1', ',', d.head ? 'h' : '1', ',', d.query ? 'q' : '1', ',', d.key ? 'k' : '1', ']'}) {
    core::append(text, c);
  }
}

inline void read_word(std::string_view key, std::string_view word, BiasWord& value) {
  value = {};
  if (word == core::name_of(BiasKind::none)) return;
  const std::size_t bracket = std::min(word.find('['), word.size());
  const std::string_view dims = word.substr(bracket);
  constexpr std::string_view kFull = "[b,h,q,k]";
  const auto fits = [&](std::size_t i) { return dims[i] == kFull[i] || (i % 2 == 1 && dims[i] == '1'); };
  bool good = dims.size() == kFull.size();
  for (std::size_t i = 0; good && i < kFull.size(); ++i) good = fits(i);
  if (!good) {
    core::invalid_argument(
        key, ": must be none or f32, query or bool followed by [b,h,q,k], with 1 for a broadcast one (got ",
        core::quoted(word), ")");
  }
  value = {core::value_of<BiasKind>(key, word.substr(0, bracket)),
           {dims[1] == 'b', dims[3] == 'h', dims[5] == 'q', dims[7] == 'k'}};
}

inline void add_to(core::Hasher& hasher, const BiasWord& bias) {
  hasher.add(bias.kind);
  for (const bool dim : {bias.dims.batch, bias.dims.head, bias.dims.query, bias.dims.key}) hasher.add(dim);
}

[[nodiscard]] inline std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

/// mask=causal_top_left is short for mask=causal alignment=top_left.
inline void expand(core::Words& words) {
  std::string_view* mask = words.find("mask");
  if (mask == nullptr || *mask != "causal_top_left") return;
  *mask = core::name_of(Mask::causal);
  const std::string_view top_left = core::name_of(Alignment::top_left);
  const auto given = words.take("alignment");
  if (given && *given != top_left) {
    core::invalid_argument("alignment: must be top_left with mask=causal_top_left (got ", core::quoted(*given), ")");
  }
  words.add("alignment", top_left);
}

/// Throws for a word that is no key of problems like `problem`, with what was probably meant.
[[noreturn]] void refuse_key(std::string_view key, const AttentionProblem& problem);

}  // namespace tilewise::operations::attention
