// Random expressions over every operator, and what they are evaluated on.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "expression/builder.hpp"
#include "expression/evaluate.hpp"
#include "expression/operators.hpp"
#include "tilewise/error.hpp"

namespace tilewise::expression {

inline Signature score_signature() {
  return {{{"score", Type::real},
           {"b", Type::integer},
           {"h", Type::integer},
           {"q_idx", Type::integer},
           {"kv_idx", Type::integer}},
          {{Type::real, 2}, {Type::integer, 1}, {Type::boolean, 1}}};
}

/// Tables of that signature.
struct Tables {
  std::array<float, 6> bias{0.5F, -1.25F, 2.0F, 0.0F, 3.5F, -0.75F};
  std::array<std::int32_t, 4> ids{0, 3, -2, 7};
  std::array<std::uint8_t, 3> flags{1, 0, 1};
  std::vector<TensorView> views{TensorView(bias.data(), DType::f32, {2, 3}), TensorView(ids.data(), DType::i32, {4}),
                                TensorView(flags.data(), DType::boolean, {3})};
};

class RandomExpression {
 public:
  explicit RandomExpression(std::uint32_t seed) : random_(seed) {}

  /// One of about `size` terms. Constants that overflow, or divide by 0, are drawn anew.
  Expression draw(Type type, int size) {
    while (true) {
      Builder build(score_signature(), "drawn");
      try {
        return build.finish(term(build, type, size), type);
      } catch (const Error&) {
        continue;
      }
    }
  }

  int below(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }

 private:
  Term leaf(Builder& build, Type type) {
    constexpr std::array<const char*, 4> kIntegers{"b", "h", "q_idx", "kv_idx"};
    if (type == Type::boolean) return build.boolean(below(2) == 0);
    if (type == Type::integer) {
      return below(4) == 0 ? build.integer(below(9) - 3)
                           : build.variable(kIntegers[static_cast<std::size_t>(below(4))]);
    }
    return below(3) == 0 ? build.real(0.25 * (below(17) - 8)) : build.variable("score");
  }

  Term looked_up(Builder& build, Type type, int size) {
    const std::size_t table = type == Type::real ? 0 : (type == Type::integer ? 1 : 2);
    std::vector<Term> indices;
    for (int i = 0; i < build.signature().tables[table].rank; ++i) {
      indices.push_back(term(build, Type::integer, size / 2));
    }
    return build.lookup(table, indices);
  }

  /// A number of any type that may stand for one of `type`.
  Term operand(Builder& build, Type type, int size) {
    return term(build, type == Type::real && below(4) == 0 ? Type::integer : type, size);
  }

  Term term(Builder& build, Type type, int size) {
    if (size <= 1) return leaf(build, type);
    if (below(8) == 0) return looked_up(build, type, size - 1);
    const int half = size / 2;
    if (below(6) == 0) {
      return build.apply(
          Op::select, {term(build, Type::boolean, size / 3), term(build, type, size / 3), term(build, type, size / 3)});
    }
    if (type == Type::boolean) {
      constexpr std::array kOps{Op::less, Op::less_equal, Op::equal, Op::not_equal};
      if (below(3) == 0) return build.apply(Op::logical_not, {term(build, type, size - 1)});
      if (below(3) == 0) {
        const Op op = below(2) == 0 ? Op::logical_and : Op::logical_or;
        return build.apply(op, {term(build, type, half), term(build, type, half)});
      }
      const Type of = below(2) == 0 ? Type::real : Type::integer;
      return build.apply(kOps[static_cast<std::size_t>(below(4))],
                         {operand(build, of, half), operand(build, of, half)});
    }
    if (below(4) == 0) {
      constexpr std::array kOps{Op::negate, Op::absolute, Op::tanh, Op::exp, Op::exp2, Op::log};
      const Op op = kOps[static_cast<std::size_t>(below(type == Type::real ? 6 : 2))];
      return build.apply(op, {operand(build, type, size - 1)});
    }
    constexpr std::array kOps{Op::add,       Op::subtract, Op::multiply, Op::floor_divide,
                              Op::remainder, Op::minimum,  Op::maximum,  Op::divide};
    const Op op = kOps[static_cast<std::size_t>(below(type == Type::real ? 8 : 7))];
    return build.apply(op, {operand(build, type, half), operand(build, type, half)});
  }

  std::mt19937 random_;
};

/// Places that expressions are evaluated at: values of each variable, lane by lane.
struct Places {
  std::vector<double> score;
  std::vector<std::int64_t> b, h, q_idx, kv_idx;

  Places(std::uint32_t seed, int count) {
    std::mt19937 random(seed);
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    for (int i = 0; i < count; ++i) {
      score.push_back(std::uniform_real_distribution<double>(-4, 4)(random));
      b.push_back(draw(0, 2));
      h.push_back(draw(0, 3));
      q_idx.push_back(draw(0, 9));
      kv_idx.push_back(draw(0, 9));
    }
  }
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(score.size()); }
  [[nodiscard]] std::vector<Input<double>> inputs() const {
    return {{.reals = score.data()},
            {.integers = b.data()},
            {.integers = h.data()},
            {.integers = q_idx.data()},
            {.integers = kv_idx.data()}};
  }
};

template <typename Result = double>
std::vector<Result> evaluated(const Expression& expression, const Tables& tables, const Places& places) {
  Evaluator<double> evaluate(expression, tables.views);
  std::vector<Result> results(static_cast<std::size_t>(places.count()));
  evaluate(places.inputs(), places.count(), results.data());
  return results;
}

}  // namespace tilewise::expression
