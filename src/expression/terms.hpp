// Terms as C++ writes arithmetic, for whoever builds an expression by hand: score * 2.0 + table(0, {h}).
#pragma once

#include "expression/builder.hpp"

namespace tilewise::expression {

inline Term operator-(Term a) { return a.builder->apply(Op::negate, {a}); }
inline Term operator~(Term a) { return a.builder->apply(Op::logical_not, {a}); }
inline Term operator+(Term a, Term b) { return a.builder->apply(Op::add, {a, b}); }
inline Term operator-(Term a, Term b) { return a.builder->apply(Op::subtract, {a, b}); }
inline Term operator*(Term a, Term b) { return a.builder->apply(Op::multiply, {a, b}); }
inline Term operator/(Term a, Term b) { return a.builder->apply(Op::divide, {a, b}); }
inline Term operator%(Term a, Term b) { return a.builder->apply(Op::remainder, {a, b}); }
inline Term operator<(Term a, Term b) { return a.builder->apply(Op::less, {a, b}); }
inline Term operator<=(Term a, Term b) { return a.builder->apply(Op::less_equal, {a, b}); }
inline Term operator>(Term a, Term b) { return b < a; }
inline Term operator>=(Term a, Term b) { return b <= a; }
inline Term operator&(Term a, Term b) { return a.builder->apply(Op::logical_and, {a, b}); }
inline Term operator|(Term a, Term b) { return a.builder->apply(Op::logical_or, {a, b}); }
inline Term floor_divide(Term a, Term b) { return a.builder->apply(Op::floor_divide, {a, b}); }
inline Term select(Term condition, Term a, Term b) { return a.builder->apply(Op::select, {condition, a, b}); }

}  // namespace tilewise::expression
