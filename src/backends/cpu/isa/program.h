// Runs a program of score_program.h: an instruction is a loop over a run of keys, in the compiler's own vectors, which
// every instruction set has. Operands that no key changes are one vector, read again and again.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/lookup.h"
#include "backends/cpu/isa/math.h"
#include "backends/cpu/score_program.h"

namespace tilewise::backends::cpu {

template <class V>
class Program {
  using Real = typename V::Real;
  using Types = LaneTypes<V>;
  using I = typename Types::I;
  using L = typename Types::L;
  using R = typename Types::R;
  using Word = typename LaneVector<V, Lane::word>::Scalar;
  using Op = expression::Op;
  template <Lane kLane>
  using LanesOf = Lanes<V, kLane>;

 public:
  static void start(const ScoreProgram& p, char* memory) {
    for (int32_t i = 0; i < p.constant_count; ++i) {
      const Constant& c = p.constants[i];
      if (c.to.lane == Lane::real) {
        LanesOf<Lane::real>(memory, c.to).set(0, V::set1(static_cast<Real>(__builtin_bit_cast(double, c.bits))));
      } else {
        const auto value = static_cast<int64_t>(c.bits);
        set_integer(memory, c.to, c.to.lane == Lane::truth ? -value : value);
      }
    }
  }

  /// What only the row changes.
  static void start_row(const ScoreProgram& p, const CapturedTable* tables, char* memory, int64_t b, int64_t h,
                        int64_t query) {
    if (p.b.used) set_integer(memory, p.b.at, b);
    if (p.h.used) set_integer(memory, p.h.at, h);
    if (p.query.used) set_integer(memory, p.query.at, query);
    for (int32_t i = 0; i < p.row_count; ++i) run(p.row[i], tables, memory, 1);
  }

  /// Of a run the first key, and those after it: side by side, or at `places` where these are not null, of which
  /// `valid` exist.
  struct Keys {
    int64_t first;
    const int32_t* places;
    int64_t valid;
  };

  /// One run of `count` keys, whole vectors; `scores` may be null where no score is asked for.
  static void run_keys(const ScoreProgram& p, const CapturedTable* tables, char* memory, const Keys& keys,
                       int64_t count, const Real* scores) {
    const int64_t vectors = count / V::kLanes;
    if (p.score.used) {
      const LanesOf<Lane::real> to(memory, p.score.at);
      for (int64_t n = 0; n < vectors; ++n) to.set(n, V::load(scores + n * V::kLanes));
    }
    if (p.key.used && keys.places)
      set_places(p.key.at, memory, keys, vectors);
    else if (p.key.used)
      set_run(p.key.at, memory, keys.first, vectors);
    for (int32_t i = 0; i < p.key_count; ++i) run(p.keys[i], tables, memory, vectors);
  }

 private:
  static void set_run(const Register& at, char* memory, int64_t key, int64_t vectors) {
    if (at.lane == Lane::word) {
      const LanesOf<Lane::word> to(memory, at);
      for (int64_t n = 0; n < vectors; ++n) to.set(n, Types::iota() + static_cast<Word>(key + n * V::kLanes));
    } else {
      const LanesOf<Lane::wide> to(memory, at);
      for (int64_t n = 0; n < vectors; ++n)
        to.set(n, __builtin_convertvector(Types::iota(), L) + (key + n * V::kLanes));
    }
  }

  static void set_places(const Register& at, char* memory, const Keys& keys, int64_t vectors) {
    for (int64_t n = 0; n < vectors; ++n) {
      L key{};
      for (int64_t i = 0; i < V::kLanes && n * V::kLanes + i < keys.valid; ++i) key[i] = keys.places[n * V::kLanes + i];
      if (at.lane == Lane::word)
        LanesOf<Lane::word>(memory, at).set(n, __builtin_convertvector(key, I));
      else
        LanesOf<Lane::wide>(memory, at).set(n, key);
    }
  }

  static void set_integer(char* memory, const Register& to, int64_t value) {
    if (to.lane == Lane::wide) {
      LanesOf<Lane::wide>(memory, to).set(0, L{} + value);
    } else {
      LanesOf<Lane::word>(memory, to).set(0, I{} + static_cast<Word>(value));
    }
  }

  [[gnu::noinline]] static void run(const Instruction& n, const CapturedTable* tables, char* memory, int64_t vectors) {
    switch (n.action) {
      case Action::look_up:
        return Lookup<V>::run(n, tables[n.table], memory, vectors);
      case Action::convert:
        return n.to.lane == Lane::wide ? each<Lane::wide, Lane::word>(n, memory, vectors, widened)
                                       : each<Lane::word, Lane::wide>(n, memory, vectors, narrowed);
      case Action::lane_by_lane:
        return n.to.lane == Lane::real   ? lane_by_lane<Lane::real>(n, memory, vectors)
               : n.to.lane == Lane::word ? lane_by_lane<Lane::word>(n, memory, vectors)
                                         : lane_by_lane<Lane::wide>(n, memory, vectors);
      default:
        return operate(n, memory, vectors);
    }
  }

  /// By the lane type of the operands but a choice's condition.
  static void operate(const Instruction& n, char* memory, int64_t vectors) {
    if (n.op == Op::to_real) {
      const auto to_real = [](auto a) { return __builtin_convertvector(a, R); };
      return n.operands[0].lane == Lane::wide ? each<Lane::real, Lane::wide>(n, memory, vectors, to_real)
                                              : each<Lane::real, Lane::word>(n, memory, vectors, to_real);
    }
    switch (n.operands[n.operand_count - 1].lane) {
      case Lane::real:
        return n.operand_count == 1 ? unary_real(n, memory, vectors) : binary<Lane::real>(n, memory, vectors);
      case Lane::word:
        return n.operand_count == 1 ? unary_integer<Lane::word>(n, memory, vectors)
                                    : binary<Lane::word>(n, memory, vectors);
      case Lane::wide:
        return n.operand_count == 1 ? unary_integer<Lane::wide>(n, memory, vectors)
                                    : binary<Lane::wide>(n, memory, vectors);
      case Lane::truth:
        return logic(n, memory, vectors);
    }
  }

  static constexpr auto widened = [](I a) { return __builtin_convertvector(a, L); };
  static constexpr auto narrowed = [](L a) { return __builtin_convertvector(a, I); };
  /// Of a comparison's result.
  template <class M>
  TILEWISE_INLINE static I truth(M compared) {
    return __builtin_convertvector(compared, I);
  }

  template <Lane kTo, Lane kOf, class Do>
  TILEWISE_INLINE static void each(const Instruction& n, char* memory, int64_t vectors, const Do& f) {
    const LanesOf<kTo> to(memory, n.to);
    const LanesOf<kOf> a(memory, n.operands[0]);
    for (int64_t i = 0; i < vectors; ++i) to.set(i, f(a[i]));
  }
  template <Lane kTo, Lane kOf, class Do>
  TILEWISE_INLINE static void each_two(const Instruction& n, char* memory, int64_t vectors, const Do& f) {
    const LanesOf<kTo> to(memory, n.to);
    const LanesOf<kOf> a(memory, n.operands[0]), b(memory, n.operands[1]);
    for (int64_t i = 0; i < vectors; ++i) to.set(i, f(a[i], b[i]));
  }

  static void unary_real(const Instruction& n, char* memory, int64_t vectors) {
    const auto each_real = [&](const auto& f) {
      each<Lane::real, Lane::real>(n, memory, vectors, [&f](R a) { return R(f(a)); });
    };
    switch (n.op) {
      case Op::negate:
        return each_real([](R a) { return -a; });
      case Op::absolute:
        return each_real([](R a) { return V::abs(a); });
      case Op::exp:
        return each_real([](R a) { return exact_exp<false, V>(a); });
      case Op::exp2:
        return each_real([](R a) { return exact_exp<true, V>(a); });
      default:
        return each_real([](R a) { return tanh<V>(a); });
    }
  }

  template <Lane kLane>
  static void unary_integer(const Instruction& n, char* memory, int64_t vectors) {
    using X = typename LaneVector<V, kLane>::Type;
    using U = typename LaneVector<V, kLane>::Wrapping;
    if (n.op == Op::negate) return each<kLane, kLane>(n, memory, vectors, [](X a) { return (X)(-(U)a); });
    each<kLane, kLane>(n, memory, vectors, [](X a) { return a < X{} ? (X)(-(U)a) : a; });
  }

  static void logic(const Instruction& n, char* memory, int64_t vectors) {
    constexpr Lane kTruth = Lane::truth;
    switch (n.op) {
      case Op::logical_not:
        return each<kTruth, kTruth>(n, memory, vectors, [](I a) { return ~a; });
      case Op::logical_and:
        return each_two<kTruth, kTruth>(n, memory, vectors, [](I a, I b) { return a & b; });
      case Op::logical_or:
        return each_two<kTruth, kTruth>(n, memory, vectors, [](I a, I b) { return a | b; });
      case Op::equal:
        return each_two<kTruth, kTruth>(n, memory, vectors, [](I a, I b) { return ~(a ^ b); });
      case Op::not_equal:
        return each_two<kTruth, kTruth>(n, memory, vectors, [](I a, I b) { return a ^ b; });
      default:
        return choose<kTruth>(n, memory, vectors);
    }
  }

  template <Lane kLane>
  static void choose(const Instruction& n, char* memory, int64_t vectors) {
    const LanesOf<kLane> to(memory, n.to), a(memory, n.operands[1]), b(memory, n.operands[2]);
    const LanesOf<Lane::truth> condition(memory, n.operands[0]);
    for (int64_t i = 0; i < vectors; ++i) to.set(i, Types::template select<kLane>(condition[i], a[i], b[i]));
  }

  template <Lane kLane>
  static void binary(const Instruction& n, char* memory, int64_t vectors) {
    using X = typename LaneVector<V, kLane>::Type;
    using U = typename LaneVector<V, kLane>::Wrapping;
    const auto numbers = [&](const auto& f) { each_two<kLane, kLane>(n, memory, vectors, f); };
    const auto compare = [&](const auto& f) {
      each_two<Lane::truth, kLane>(n, memory, vectors, [&f](X a, X b) { return truth(f(a, b)); });
    };
    switch (n.op) {
      case Op::add:
        return numbers([](X a, X b) { return (X)((U)a + (U)b); });
      case Op::subtract:
        return numbers([](X a, X b) { return (X)((U)a - (U)b); });
      case Op::multiply:
        return numbers([](X a, X b) { return (X)((U)a * (U)b); });
      case Op::minimum:  // the first where it is a NaN, and the second where that is one
        return numbers([](X a, X b) { return ((a < b) | (a != a)) ? a : b; });
      case Op::maximum:
        return numbers([](X a, X b) { return ((a > b) | (a != a)) ? a : b; });
      case Op::less:
        return compare([](X a, X b) { return a < b; });
      case Op::less_equal:
        return compare([](X a, X b) { return a <= b; });
      case Op::equal:
        return compare([](X a, X b) { return a == b; });
      case Op::not_equal:
        return compare([](X a, X b) { return a != b; });
      case Op::select:
        return choose<kLane>(n, memory, vectors);
      default:
        if constexpr (kLane == Lane::real) {
          numbers([](X a, X b) { return a / b; });
        } else if constexpr (kLane == Lane::word && Types::kSingle) {
          const bool quotient = n.op == Op::floor_divide;
          numbers([quotient](X a, X b) { return divided(a, b, quotient); });
        }
    }
  }

  /// Rounded down, and what is left. A quotient in double is no nearer to an integer that it does not reach than 2^-31
  /// of itself, so it is never rounded to one. By 0: 0, and a is left.
  TILEWISE_INLINE static I divided(I a, I b, bool quotient) {
    typedef double D __attribute__((vector_size(sizeof(double) * V::kLanes)));
    const I divisor = b == I{} ? I{} + 1 : b;
    const D exact = __builtin_convertvector(a, D) / __builtin_convertvector(divisor, D);
    I q = __builtin_convertvector(exact, I), rest = a - q * divisor;
    const I down = (rest != I{}) & ((rest ^ divisor) < I{});
    q += down;
    rest += down & divisor;
    return b == I{} ? (quotient ? I{} : a) : (quotient ? q : rest);
  }

  template <Lane kLane>
  static void lane_by_lane(const Instruction& n, char* memory, int64_t vectors) {
    using Scalar = typename LaneVector<V, kLane>::Scalar;
    const LanesOf<kLane> to(memory, n.to), a(memory, n.operands[0]), b(memory, n.operands[n.operand_count - 1]);
    const OneLane f = n.one_lane;
    for (int64_t i = 0; i < vectors; ++i) {
      const auto x = a[i], y = b[i];
      auto results = x;
      for (int j = 0; j < V::kLanes; ++j) {
        if constexpr (kLane != Lane::real) {
          results[j] = static_cast<Scalar>(f.integer(x[j], y[j]));
        } else if constexpr (Types::kSingle) {
          results[j] = f.single(x[j], y[j]);
        } else {
          results[j] = f.real(x[j], y[j]);
        }
      }
      to.set(i, results);
    }
  }
};

}  // namespace tilewise::backends::cpu
