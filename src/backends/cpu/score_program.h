// score_mod and mask_mod as CPU kernels run them: a list of instructions, each of which is done to a run of keys before
// the next one. Plain data, made by the host (score_functions.hpp) and run by isa/score_functions.h.
#pragma once

#include <stdint.h>

#include "expression/operator_names.hpp"

namespace tilewise::operations::attention {
class ScoreBlocks;
}

namespace tilewise::backends::cpu {

/// What a register holds for each key. A word is an int as wide as a Real: of 32 bits beside fp32, where no value of a
/// call can leave them. A truth is a word of -1 or 0.
enum class Lane : uint8_t { truth, word, wide, real };
[[nodiscard]] constexpr int64_t lane_bytes(Lane lane, int64_t real_bytes) {
  return lane == Lane::wide ? 8 : real_bytes;
}

/// A register: as many lanes as a run has keys, or one vector where all keys have the same.
struct Register {
  uint32_t at;  // bytes into the program's memory
  Lane lane;
  bool varies;
};
/// Memory of a register that does not vary, in bytes: no vector has more than 16 lanes of 64 bits.
inline constexpr int64_t kUniformBytes = 128;

/// An operation that has no vectors, on one lane: the second operand of a unary one means nothing.
union OneLane {
  float (*single)(float, float);
  double (*real)(double, double);
  int64_t (*integer)(int64_t, int64_t);
};

enum class Action : uint8_t {
  operate,       // op on registers of one lane type
  lane_by_lane,  // likewise by one_lane
  convert,       // between word and wide
  look_up        // in a table, at words or wide ints
};

struct Instruction {
  Action action;
  expression::Op op;
  uint8_t operand_count;
  uint32_t table;
  Register to, operands[expression::kTableRank];
  OneLane one_lane;
};

struct Constant {
  Register to;
  uint64_t bits;  // of an int64 or a double; of a truth 0 or 1
};

enum class TableElement : uint8_t { f32, bf16, f16, f64, e4m3, e5m2, u8, i32, i64, boolean };

/// A call's captured tensor.
struct CapturedTable {
  const void* data;
  int64_t shape[expression::kTableRank], strides[expression::kTableRank];
  TableElement element;
  bool in_words;                                    // every offset fits 32 bits
  double (*load)(const void* data, int64_t index);  // an element, for kernels that have no vectors of its type
};

/// Where a variable is, or that no instruction reads it.
struct VariableRegister {
  Register at;
  bool used;
};

/// Of one function. Rows' instructions depend on no key: they are run once for each row of a block of keys.
struct ScoreProgram {
  const Constant* constants;
  const Instruction *row, *keys;
  int32_t constant_count, row_count, key_count;
  VariableRegister score, b, h, query, key;
  Register result, slope;  // slope: of score_mod where gradients are wanted
  int64_t run;             // keys of a run, at most: a multiple of 16
  int64_t memory;          // bytes
};

/// What a call's rows are given.
struct ScoreFunctions {
  const ScoreProgram *score_mod, *mask_mod;  // null: none
  const CapturedTable* tables;
  int64_t num_heads_q;
  int64_t first_key;                                 // of the sequence: a tile's keys are counted from it
  void* memory;                                      // of the thread: score_mod's, and then mask_mod's
  const operations::attention::ScoreBlocks* blocks;  // of the host; null: nothing is known of them
};

}  // namespace tilewise::backends::cpu
