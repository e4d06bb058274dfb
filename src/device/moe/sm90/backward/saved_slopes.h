// What Sm90MoeSlopes makes, from sums of the first product that the forward pass has saved: rows pass by memory once, a
// warp has one at a time, and a lane 16 bytes of gates, ups and the gradient of values.
#pragma once

#include "device/moe/sm90/backward/config.h"
#include "device/moe/sm90/backward/params.h"
#include "device/sm90/contract.h"
#include "device/sm90/grouped_rows.h"
#include "device/tile/activation_slope.h"
#include "device/tile/number.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeSavedSlopesConfig C>
class Sm90MoeSavedSlopes {
  using Machine = typename Ops::Machine;
  static constexpr bool kGated = C.gated != 0;
  static constexpr int kUp = kGated ? 1 : 0;  // which of a row's parts ups are
  static constexpr int kAtOnce = 2;           // pieces of each matrix that a lane holds
  static constexpr int32_t kApart = 32 * 8;   // values between a lane's pieces

 public:
  using Params = MoeSavedSlopesParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const MoeSavedSlopesParams& p, Shared&) {
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    const int32_t end = Machine::load_global(p.offsets + p.shape.num_experts), step = Machine::blocks() * C.warps;
    TILEWISE_NO_UNROLL
    for (int32_t row = Machine::block() * C.warps + Machine::wave(); row < end; row += step) finish_row(p, row);
  }

 private:
  /// Eight values of each.
  struct Pieces {
    Chunk dh, gate, up;
  };
  /// A row, its expert and the factors that its weight is.
  struct Row {
    int32_t number, expert;
    float on_input, on_output;
  };

  TILEWISE_INLINE static void finish_row(const MoeSavedSlopesParams& p, int32_t number) {
    const float weight = Machine::load_global(p.row_weights + number);
    const Row row{number, C.biases ? expert_of(p, number) : 0, C.weight_on_input ? weight : 1.0f,
                  C.weight_on_input ? 1.0f : weight};
    float term = 0.0f;
    TILEWISE_NO_UNROLL
    for (int32_t first = 8 * Machine::lane(); first < p.shape.intermediate; first += kAtOnce * kApart) {
      Pieces held[kAtOnce];
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t value = first + i * kApart;
        if (value >= p.shape.intermediate) continue;
        held[i].dh = Machine::load_global(at(p.h, number, value));
        held[i].up = Machine::load_global(at(p.sums, number, kUp * p.shape.intermediate + value));
        if constexpr (kGated) held[i].gate = Machine::load_global(at(p.sums, number, value));
      }
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int32_t value = first + i * kApart;
        if (value < p.shape.intermediate) term += finish_pieces(p, row, value, held[i]);
      }
    }
    TILEWISE_UNROLL
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) term += Machine::shuffle_xor(term, bit);
    if (Machine::lane() == 0) Machine::store_global(p.terms + number, term);
  }

  /// As many experts end at a row or before it as stand before its own.
  TILEWISE_INLINE static int32_t expert_of(const MoeSavedSlopesParams& p, int32_t row) {
    int32_t before = 0;
    for (int32_t e = Machine::lane(); e < p.shape.num_experts; e += Machine::kLanes)
      before += Machine::load_global(p.offsets + e + 1) <= row ? 1 : 0;
    return sum_of_wave<Machine>(before);
  }

  /// Sm90MoeSlopes says what the weight multiplies; the sum of its gradient's terms.
  TILEWISE_INLINE static float finish_pieces(const MoeSavedSlopesParams& p, const Row& row, int32_t value,
                                             const Pieces& from) {
    Pieces to;  // of h, and of gradients of gates and of ups
    float term = 0.0f;
    TILEWISE_UNROLL
    for (int pair = 0; pair < 4; ++pair) {
      float h[2], gate[2], up[2];
      TILEWISE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int i = 2 * pair + e;
        const float gate_sum = kGated ? number_of(from.gate, i) : 0.0f, up_sum = number_of(from.up, i),
                    dvalue = number_of(from.dh, i);
        const ValueSlopes slopes = value_slopes<Machine, C.kind(), C.clamps(), kGated>(
            gate_sum * row.on_input + (kGated ? bias(p, row.expert, 0, value + i) : 0.0f),
            up_sum * row.on_input + bias(p, row.expert, kUp, value + i), dvalue * row.on_output, p.numbers);
        h[e] = slopes.value * row.on_output, gate[e] = slopes.dgate * row.on_input, up[e] = slopes.dup * row.on_input;
        term += C.weight_on_input ? slopes.dgate * gate_sum + slopes.dup * up_sum : dvalue * slopes.value;
      }
      to.dh.word[pair] = Machine::template pack<C.type>(h[0], h[1]);
      // Of gates and ups that take turns a pair is one value's.
      constexpr bool kTurns = kGated && C.interleaved != 0;
      to.gate.word[pair] = Machine::template pack<C.type>(gate[0], kTurns ? up[0] : gate[1]);
      to.up.word[pair] = Machine::template pack<C.type>(kTurns ? gate[1] : up[0], up[1]);
    }
    Machine::store_global(at(p.h, row.number, value), to.dh);
    store_products(p, row.number, value, to);
    return term;
  }

  TILEWISE_INLINE static void store_products(const MoeSavedSlopesParams& p, int32_t row, int32_t value,
                                             const Pieces& from) {
    const uint32_t (&gate)[4] = from.gate.word;
    const uint32_t (&up)[4] = from.up.word;
    if constexpr (kGated && C.interleaved) {
      Machine::store_global(at(p.products, row, 2 * value), Chunk{{gate[0], up[0], gate[1], up[1]}});
      Machine::store_global(at(p.products, row, 2 * value + 8), Chunk{{gate[2], up[2], gate[3], up[3]}});
    } else {
      if constexpr (kGated) Machine::store_global(at(p.products, row, value), from.gate);
      Machine::store_global(at(p.products, row, kUp * p.shape.intermediate + value), from.up);
    }
  }

  TILEWISE_INLINE static Chunk* at(const RowTensor& of, int32_t row, int32_t column) {
    return reinterpret_cast<Chunk*>(static_cast<uint16_t*>(of.data) + row * of.row_stride + column);
  }
  TILEWISE_INLINE static float number_of(const Chunk& of, int i) { return element_to_float<C.type>(of.element(i)); }
  TILEWISE_INLINE static float bias(const MoeSavedSlopesParams& p, int32_t expert, int32_t gate, int32_t value) {
    if constexpr (!C.biases) return 0.0f;
    const ExpertBias& b = p.gate_up_bias;
    if (b.data == nullptr) return 0.0f;
    return load_number<Machine>(b.data, expert * b.expert_stride + gate * b.gate_stride + value * b.stride, b.type);
  }
};

}  // namespace tilewise::device
