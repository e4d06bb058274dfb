// An expression as a program that the kernels of this backend run (score_program.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backends/cpu/score_program.h"
#include "expression/bounds.hpp"
#include "expression/expression.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::cpu {

/// What is known of a call when its functions are compiled: bounds of a signature's variables, of every key that a
/// kernel may ask for, and the tables' element types.
struct ProgramInputs {
  std::vector<expression::Interval> variables;
  std::span<const DType> tables;
  std::int64_t real_bytes;  // of what kernels compute in
};

/// Owns what its program points to.
class CompiledProgram {
 public:
  /// With its derivative by the score, where that is not null.
  CompiledProgram(const expression::Expression& function, const expression::Expression* slope,
                  const ProgramInputs& inputs);
  CompiledProgram(const CompiledProgram&) = delete;
  CompiledProgram& operator=(const CompiledProgram&) = delete;

  [[nodiscard]] const ScoreProgram& program() const { return program_; }

 private:
  std::vector<Constant> constants_;
  std::vector<Instruction> row_, keys_;
  ScoreProgram program_{};
};

}  // namespace tilewise::backends::cpu
