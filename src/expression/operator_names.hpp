// What expressions are made of, by name: all that their evaluators on every instruction set need of them.
#pragma once

#include <stdint.h>

namespace tilewise::expression {

/// bool; int: 64 bits, wrapping around; float: fp32 or fp64, whichever the evaluator computes in.
enum class Type : uint8_t { boolean, integer, real };

/// docs/expressions.md says what each means.
enum class Op : uint8_t {
  constant,
  variable,
  lookup,
  to_real,
  negate,
  absolute,
  logical_not,
  exp,
  exp2,
  log,
  tanh,
  add,
  subtract,
  multiply,
  divide,
  floor_divide,
  remainder,
  minimum,
  maximum,
  less,
  less_equal,
  equal,
  not_equal,
  logical_and,
  logical_or,
  select,
  count_
};

/// Dimensions of a captured tensor, at most.
inline constexpr int kTableRank = 4;

}  // namespace tilewise::expression
