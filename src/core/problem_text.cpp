// Problem to one line and back. One list of fields serves both ways.
#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <vector>

#include "core/message.hpp"
#include "core/names.hpp"
#include "core/problem_rules.hpp"
#include "core/spelling.hpp"

namespace tilewise {
namespace core {
namespace {

/// Kind and dimensions of a bias are one word: none, or e.g. f32[b,1,q,k].
struct BiasWord {
  BiasKind kind = BiasKind::none;
  BiasDims dims{};
  friend bool operator==(const BiasWord&, const BiasWord&) = default;
};

std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

/// Calls visit(key, field, default) in the order of printing. Without a default the key is
/// required. A default may depend on the fields visited before it.
template <typename Visit>
void for_each_field(Problem& p, Visit&& visit) {
  constexpr std::optional<std::int64_t> kRequired;
  const Problem fresh;
  visit("device", p.device, fresh.device);
  visit("dtype", p.dtype, fresh.dtype);
  visit("layout", p.layout, fresh.layout);
  const bool packed = p.layout == Layout::thd;
  visit("batch_size", p.batch_size, fresh.batch_size);
  visit(packed ? "max_seqlen_q" : "seqlen_q", p.seqlen_q, kRequired);
  visit(packed ? "max_seqlen_k" : "seqlen_k", p.seqlen_k, p.seqlen_q);
  if (packed) visit("total_q", p.total_q, saturating_product(p.batch_size, p.seqlen_q));
  if (packed) visit("total_k", p.total_k, saturating_product(p.batch_size, p.seqlen_k));
  visit("num_heads_q", p.num_heads_q, fresh.num_heads_q);
  visit("num_heads_k", p.num_heads_k, p.num_heads_q);
  visit("head_dim", p.head_dim, kRequired);
  visit("head_dim_v", p.head_dim_v, p.head_dim);
  visit("mask", p.mask, fresh.mask);
  visit("alignment", p.alignment, fresh.alignment);
  visit("window_left", p.window_left, fresh.window_left);
  visit("window_right", p.window_right, fresh.window_right);
  visit("softmax_scale", p.softmax_scale, default_softmax_scale(p.head_dim));
  visit("softcap", p.softcap, fresh.softcap);
  BiasWord bias{p.bias, p.bias_dims};
  visit("bias", bias, BiasWord{});
  p.bias = bias.kind;
  p.bias_dims = bias.dims;
  visit("alibi_slopes", p.alibi_slopes, fresh.alibi_slopes);
  visit("sink", p.sink, fresh.sink);
  visit("dropout_p", p.dropout_p, fresh.dropout_p);
  visit("seed_tensor", p.seed_tensor, fresh.seed_tensor);
  visit("seqused_q", p.seqused_q, fresh.seqused_q);
  visit("seqused_k", p.seqused_k, fresh.seqused_k);
  visit("leftpad_k", p.leftpad_k, fresh.leftpad_k);
  visit("softmax_lse", p.softmax_lse, fresh.softmax_lse);
  visit("dlse", p.dlse, fresh.dlse);
  visit("dq", p.dq, fresh.dq);
  visit("dk", p.dk, fresh.dk);
  visit("dv", p.dv, fresh.dv);
  visit("dbias", p.dbias, fresh.dbias);
  visit("dsink", p.dsink, fresh.dsink);
  visit("deterministic", p.deterministic, fresh.deterministic);
  visit("batch_invariant", p.batch_invariant, fresh.batch_invariant);
  visit("unaligned", p.unaligned, fresh.unaligned);
}

void print(std::string& text, std::int64_t value) { append(text, value); }
void print(std::string& text, double value) { append(text, value); }
void print(std::string& text, bool value) { append(text, value ? '1' : '0'); }
template <typename Enum>
  requires std::is_enum_v<Enum>
void print(std::string& text, Enum value) {
  append(text, name_of(value));
}
void print(std::string& text, const BiasWord& bias) {
  const BiasDims& d = bias.dims;
  append(text, name_of(bias.kind));
  for (const char c :
       {'[', d.batch ? 'b' : '1', ',', d.head ? 'h' : '1', ',', d.query ? 'q' : '1', ',', d.key ? 'k' : '1', ']'}) {
    append(text, c);
  }
}

template <typename Number>
void read_number(std::string_view key, std::string_view word, std::string_view expected, Number& value) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size()) {
    invalid_argument(key, ": must be ", expected, " (got ", quoted(word), ")");
  }
}
void read(std::string_view key, std::string_view word, std::int64_t& value) {
  read_number(key, word, "an integer of 64 bits", value);
}
void read(std::string_view key, std::string_view word, double& value) { read_number(key, word, "a number", value); }
void read(std::string_view key, std::string_view word, bool& value) {
  if (word != "0" && word != "1") invalid_argument(key, ": must be 0 or 1 (got ", quoted(word), ")");
  value = word == "1";
}
template <typename Enum>
  requires std::is_enum_v<Enum>
void read(std::string_view key, std::string_view word, Enum& value) {
  value = value_of<Enum>(key, word);
}
void read(std::string_view key, std::string_view word, BiasWord& value) {
  value = {};
  if (word == name_of(BiasKind::none)) return;
  const std::size_t bracket = std::min(word.find('['), word.size());
  const std::string_view dims = word.substr(bracket);
  constexpr std::string_view kFull = "[b,h,q,k]";
  const auto fits = [&](std::size_t i) { return dims[i] == kFull[i] || (i % 2 == 1 && dims[i] == '1'); };
  bool good = dims.size() == kFull.size();
  for (std::size_t i = 0; good && i < kFull.size(); ++i) good = fits(i);
  if (!good) {
    invalid_argument(key,
                     ": must be none or f32, query or bool followed by [b,h,q,k], with 1 for a broadcast one (got ",
                     quoted(word), ")");
  }
  value = {value_of<BiasKind>(key, word.substr(0, bracket)),
           {dims[1] == 'b', dims[3] == 'h', dims[5] == 'q', dims[7] == 'k'}};
}

struct Word {
  std::string_view key, value;
};

/// The key=value words of a text; each is taken once.
class Words {
 public:
  explicit Words(std::string_view text) {
    for (std::string_view word = next(text); !word.empty(); word = next(text)) {
      const std::size_t equals = word.find('=');
      if (operation_.empty()) {
        operation_ = word;
      } else if (equals == std::string_view::npos || equals == 0) {
        invalid_argument("problem: must consist of key=value words after the operation (got ", quoted(word), ")");
      } else {
        add({word.substr(0, equals), word.substr(equals + 1)});
      }
    }
    expand_causal_top_left();
  }

  [[nodiscard]] std::string_view operation() const { return operation_; }

  [[nodiscard]] std::optional<std::string_view> take(std::string_view key) {
    for (auto word = words_.begin(); word != words_.end(); ++word) {
      if (word->key != key) continue;
      const std::string_view value = word->value;
      words_.erase(word);
      return value;
    }
    return std::nullopt;
  }

  /// The first key that nobody took, or "".
  [[nodiscard]] std::string_view left() const { return words_.empty() ? std::string_view() : words_.front().key; }

 private:
  static std::string_view next(std::string_view& text) {
    constexpr std::string_view kBlanks = " \t\r\n";
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
    text.remove_prefix(word.size());
    return word;
  }

  void add(Word word) {
    for (const Word& known : words_) {
      if (known.key == word.key) invalid_argument(quoted(word.key), ": must be given once (got it twice)");
    }
    constexpr std::size_t kMostWords = 64;  // more than there are keys
    if (words_.size() == kMostWords) invalid_argument("problem: must have <= ", kMostWords, " words (got more)");
    words_.push_back(word);
  }

  /// mask=causal_top_left is short for mask=causal alignment=top_left.
  void expand_causal_top_left() {
    for (Word& word : words_) {
      if (word.key != "mask" || word.value != "causal_top_left") continue;
      word.value = name_of(Mask::causal);
      const std::string_view top_left = name_of(Alignment::top_left);
      const std::optional<std::string_view> given = take("alignment");
      if (given && *given != top_left) {
        invalid_argument("alignment: must be top_left with mask=causal_top_left (got ", quoted(*given), ")");
      }
      return words_.push_back({"alignment", top_left});
    }
  }

  std::string_view operation_;
  std::vector<Word> words_;
};

/// The keys of problems with p's layout.
std::vector<std::string_view> keys_of(Problem p) {
  std::vector<std::string_view> keys;
  for_each_field(p, [&keys](std::string_view key, const auto&, const auto&) { keys.push_back(key); });
  return keys;
}

[[noreturn]] void refuse_key(std::string_view key, const Problem& problem) {
  Problem packed;
  packed.layout = Layout::thd;
  const std::vector<std::string_view> keys = keys_of(problem), packed_keys = keys_of(packed);
  if (std::ranges::find(packed_keys, key) != packed_keys.end()) {  // and not among `keys`
    invalid_argument(key, ": requires layout=thd (got layout=", name_of(problem.layout), ")");
  }
  const auto [meant, value, other] = meaning_of(key, keys);
  std::string advice = meant.empty() ? "" : concat("; did you mean ", meant);
  if (!value.empty()) advice += concat('=', value);
  if (!other.empty()) advice += concat(" and ", other);
  invalid_argument("problem: unknown key", advice, advice.empty() ? "" : "?", " (got ", quoted(key), ")");
}

}  // namespace
}  // namespace core

std::string to_string(const Problem& problem) {
  std::string text{core::name_of(problem.operation)};
  Problem copy = problem;  // the list of fields serves reading too and so wants to write
  core::for_each_field(copy, [&text](std::string_view key, const auto& field, const auto& by_default) {
    if (field == by_default) return;
    text += core::concat(" ", key, "=");
    core::print(text, field);
  });
  return text;
}

Problem parse_problem(std::string_view text) {
  core::Words words(text);
  Problem problem;
  problem.operation = core::value_of<Operation>("operation", words.operation());
  std::string_view missing;
  core::for_each_field(problem, [&](std::string_view key, auto& field, const auto& by_default) {
    if (const auto word = words.take(key)) return core::read(key, *word, field);
    if constexpr (std::is_assignable_v<decltype(field), decltype(by_default)>) {
      field = by_default;
    } else if (missing.empty()) {
      missing = key;
    }
  });
  // A key that is mistyped first: it may be the one that is missing.
  if (!words.left().empty()) core::refuse_key(words.left(), problem);
  if (!missing.empty()) core::invalid_argument(missing, ": must be given (got no such word)");
  validate(problem);
  return core::canonical(problem);
}

}  // namespace tilewise
