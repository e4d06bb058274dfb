// A parser by precedence, whose recursion is as deep as brackets are, and that is limited.
#include "expression/parse.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "core/spelling.hpp"
#include "expression/builder.hpp"
#include "expression/operators.hpp"
#include "expression/tokens.hpp"

namespace tilewise::expression {
namespace {

constexpr std::size_t kDeepestBrackets = Limits{}.depth + 8;  // what a builder takes is what its text may hold

/// Words that stand for an operator but are not how it is printed.
struct Synonym {
  std::string_view word;
  Op op;
  int precedence;
};
constexpr std::array<Synonym, 2> kWords{
    {{"or", Op::logical_or, kOrPrecedence}, {"and", Op::logical_and, kAndPrecedence}}};

struct Infix {
  Op op = Op::count_;
  int precedence = 0;
  bool swapped = false;  ///< a > b is b < a
};

std::optional<Infix> infix_of(std::string_view token) {
  if (token == ">") return Infix{Op::less, kComparison, true};
  if (token == ">=") return Infix{Op::less_equal, kComparison, true};
  for (const Synonym& word : kWords) {
    if (word.word == token) return Infix{word.op, word.precedence};
  }
  for (std::size_t i = 0; i < kOperators.size(); ++i) {
    if (kOperators[i].spelling == Spelling::infix && kOperators[i].word == token) {
      return Infix{static_cast<Op>(i), kOperators[i].precedence};
    }
  }
  return std::nullopt;
}

std::optional<Op> function_of(std::string_view word) {
  if (word == "where") return Op::select;
  for (std::size_t i = 0; i < kOperators.size(); ++i) {
    if (kOperators[i].spelling == Spelling::function && kOperators[i].word == word) return static_cast<Op>(i);
  }
  return std::nullopt;
}

class Parser {
 public:
  Parser(std::string_view text, const Signature& signature, std::string argument)
      : build_(signature, std::move(argument)), tokens_(text, build_.argument()) {}

  Expression parse(Type type) {
    while (!tokens_.current().empty() && Tokens::begins_name(tokens_.current()[0]) && tokens_.next() == "=") bind();
    const Term term = parse_binary(kLoosest);
    if (!tokens_.current().empty()) tokens_.refuse("an operator or the end");
    const bool widens = type == Type::real && build_.type(term) == Type::integer;
    return build_.finish(widens ? build_.number(Type::real, term) : term, type);
  }

 private:
  void bind() {
    const std::string_view name = tokens_.current();
    const auto& variables = build_.signature().variables;
    const bool taken = function_of(name) || infix_of(name) || constant_of(name) || table_of(name) || name == "clamp" ||
                       name == "not" || std::ranges::find(variables, name, &Variable::name) != variables.end();
    if (taken || bound_.contains(name)) tokens_.refuse("a name that means nothing yet");
    tokens_.advance();
    tokens_.expect("=");
    const Term term = parse_binary(kLoosest);
    tokens_.expect(";");
    bound_.emplace(name, term);
  }

  Term parse_binary(int loosest) {
    Term left = parse_unary(loosest);
    bool compared = false;
    for (auto infix = infix_of(tokens_.current()); infix && infix->precedence >= loosest;
         infix = infix_of(tokens_.current())) {
      const bool compares = infix->precedence == kComparison;
      if (compares && compared) tokens_.refuse("brackets or '&' between comparisons");
      compared = compares;
      tokens_.advance();
      const Term right = parse_binary(infix->precedence + 1);
      left = infix->swapped ? build_.apply(infix->op, {right, left}) : build_.apply(infix->op, {left, right});
    }
    return left;
  }

  Term parse_unary(int loosest) {
    if (++depth_ > kDeepestBrackets) {
      core::invalid_argument(build_.argument(), ": brackets must be <= ", kDeepestBrackets, " deep (got more)");
    }
    const Term term = parse_signed(loosest);
    --depth_;
    return term;
  }

  Term parse_signed(int loosest) {
    if (tokens_.current() == "not" && loosest <= kNotPrecedence) {
      tokens_.advance();
      return build_.apply(Op::logical_not, {parse_binary(kNotPrecedence)});
    }
    if (tokens_.take("~")) return build_.apply(Op::logical_not, {parse_unary(kUnary)});
    if (tokens_.take("+")) return parse_unary(kUnary);
    if (!tokens_.take("-")) return parse_primary();
    const std::string_view token = tokens_.current();
    // The lowest integer is no negated one.
    if (!token.empty() && (Tokens::is_digit(token[0]) || token[0] == '.')) return parse_number("-");
    return build_.apply(Op::negate, {parse_unary(kUnary)});
  }

  Term parse_number(std::string_view sign) {
    const std::string text = core::concat(sign, tokens_.current());
    const char *begin = text.data(), *end = begin + text.size();
    const bool whole = text.find_first_not_of("-0123456789") == std::string::npos;
    std::int64_t integer = 0;
    double real = 0;
    const auto [stop, error] = whole ? std::from_chars(begin, end, integer) : std::from_chars(begin, end, real);
    if (error == std::errc::result_out_of_range) {
      core::invalid_argument(build_.argument(), ": a constant must fit in 64 bits (got ", core::quoted(text), ")");
    }
    if (error != std::errc{} || stop != end) tokens_.refuse("a number");
    tokens_.advance();
    return whole ? build_.integer(integer) : build_.real(real);
  }

  [[nodiscard]] static std::optional<Node> constant_of(std::string_view word) {
    const auto real = [](double value) {
      return Node{.type = Type::real, .bits = std::bit_cast<std::uint64_t>(value)};
    };
    if (word == "True" || word == "true") return Node{.type = Type::boolean, .bits = 1};
    if (word == "False" || word == "false") return Node{.type = Type::boolean, .bits = 0};
    if (word == "inf") return real(std::numeric_limits<double>::infinity());
    if (word == "nan") return real(std::numeric_limits<double>::quiet_NaN());
    return std::nullopt;
  }

  /// The number of "table0".
  [[nodiscard]] static std::optional<std::size_t> table_of(std::string_view word) {
    constexpr std::string_view kTable = "table";
    if (!word.starts_with(kTable)) return std::nullopt;
    const std::string_view digits = word.substr(kTable.size());
    std::size_t index = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), index);
    const bool whole = error == std::errc{} && end == digits.data() + digits.size();
    return whole && (digits == "0" || digits[0] != '0') ? std::optional(index) : std::nullopt;
  }

  Term parse_primary() {
    const std::string_view token = tokens_.current();
    if (token.empty()) tokens_.refuse("a value");
    if (tokens_.take("(")) {
      const Term term = parse_binary(kLoosest);
      tokens_.expect(")");
      return term;
    }
    if (Tokens::is_digit(token[0]) || token[0] == '.') return parse_number("");
    if (!Tokens::begins_name(token[0])) tokens_.refuse("a value");
    return parse_name(token);
  }

  Term parse_name(std::string_view name) {
    if (const auto bound = bound_.find(name); bound != bound_.end()) {
      tokens_.advance();
      return bound->second;
    }
    if (const auto constant = constant_of(name)) {
      tokens_.advance();
      return constant->type == Type::real ? build_.real(constant->real()) : build_.boolean(constant->bits != 0);
    }
    if (tokens_.next() == "(") return parse_call(name);
    if (const auto table = table_of(name)) {
      tokens_.advance();
      tokens_.expect("[");
      return build_.lookup(*table, parse_list("]"));
    }
    const Term term = build_.variable(name);
    tokens_.advance();
    return term;
  }

  std::vector<Term> parse_list(std::string_view closing) {
    std::vector<Term> terms;
    do {
      terms.push_back(parse_binary(kLoosest));
    } while (tokens_.take(","));
    tokens_.expect(closing);
    return terms;
  }

  Term parse_call(std::string_view name) {
    const auto op = function_of(name);
    if (!op && name != "clamp") {
      std::vector<std::string_view> known{"clamp"};
      for (const Operator& facts : kOperators) {
        if (facts.spelling == Spelling::function) known.push_back(facts.word);
      }
      core::invalid_argument(build_.argument(), ": functions are ", core::listed(known),
                             core::did_you_mean(name, known), " (got ", core::quoted(name), ")");
    }
    tokens_.advance();
    tokens_.expect("(");
    const std::vector<Term> terms = parse_list(")");
    if (!op) {
      if (terms.size() != 3) {
        core::invalid_argument(build_.argument(), ": 'clamp' takes 3 operands (got ", terms.size(), ")");
      }
      return build_.apply(Op::minimum, {build_.apply(Op::maximum, {terms[0], terms[1]}), terms[2]});
    }
    // min and max of any number, from two on.
    if (operator_of(*op).operand_count != 2 || terms.size() < 2) return build_.apply(*op, terms);
    Term term = terms[0];
    for (std::size_t i = 1; i < terms.size(); ++i) term = build_.apply(*op, {term, terms[i]});
    return term;
  }

  Builder build_;
  Tokens tokens_;
  std::map<std::string_view, Term> bound_;
  std::size_t depth_ = 0;
};

}  // namespace

Expression parse(std::string_view text, const Signature& signature, Type type, std::string argument) {
  if (text.size() > kLongestText) {
    core::invalid_argument(argument, ": must have <= ", kLongestText, " bytes (got ", text.size(), ")");
  }
  return Parser(text, signature, std::move(argument)).parse(type);
}

}  // namespace tilewise::expression
