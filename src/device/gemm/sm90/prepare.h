// What comes before a product. Experts' first rows: offsets or counts, whatever numbers they are, as rising offsets
// within the rows there are. Scales: those of x turned, so that TMA loads a column of them, those of w in whole runs of
// four; both in fp32.
#pragma once

#include "device/common/float8_e8m0.h"
#include "device/gemm/sm90/config.h"
#include "device/gemm/sm90/params.h"
#include "device/sm90/contract.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

template <Sm90TileOps Ops, GemmPrepareConfig C>
class Sm90GemmPrepare {
  using Machine = typename Ops::Machine;

 public:
  using Params = GemmPrepareParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const GemmPrepareParams& p, Shared&) {
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    if constexpr (C.grouped) {
      if (Machine::block() == 0 && Machine::wave() == 0) write_offsets(p);
    }
    if constexpr (C.scaled) write_scales(p);
  }

 private:
  /// As operations/linear/groups.hpp has it. Lane l of a warp takes every 32nd expert's end.
  TILEWISE_INLINE static void write_offsets(const GemmPrepareParams& p) {
    int32_t before = p.groups.counted ? 0 : number(p, 0);
    if (Machine::lane() == 0) Machine::store_global(p.offsets, before);
    for (int32_t first = 0; first < p.num_experts; first += 32) {
      const int32_t expert = first + Machine::lane();
      int32_t end = 0;
      if (expert < p.num_experts) end = number(p, p.groups.counted ? expert : expert + 1);
      TILEWISE_UNROLL
      for (int distance = 1; distance < 32; distance *= 2) {
        const int32_t other = Machine::shuffle(end, maximum(Machine::lane() - distance, 0));
        if (Machine::lane() >= distance) end = joined(p, other, end);
      }
      end = joined(p, before, end);
      if (expert < p.num_experts) Machine::store_global(p.offsets + expert + 1, end);
      before = Machine::shuffle(end, 31);
    }
  }
  /// Ends add up to the rows there are at most; offsets never fall. Either may be joined in any order.
  TILEWISE_INLINE static int32_t joined(const GemmPrepareParams& p, int32_t a, int32_t b) {
    return p.groups.counted ? (b > p.m - a ? p.m : a + b) : maximum(a, b);
  }
  /// Between 0 and m.
  TILEWISE_INLINE static int32_t number(const GemmPrepareParams& p, int32_t index) {
    const int64_t at = index * p.groups.stride;
    int64_t value;
    if (p.groups.bytes == 8) {
      value = Machine::load_global(static_cast<const int64_t*>(p.groups.data) + at);
    } else {
      value = Machine::load_global(static_cast<const int32_t*>(p.groups.data) + at);
    }
    return static_cast<int32_t>(value < 0 ? 0 : value > p.m ? p.m : value);
  }

  TILEWISE_INLINE static void write_scales(const GemmPrepareParams& p) {
    const int64_t first = Machine::block() * int64_t{C.threads()} + Machine::thread(),
                  step = Machine::blocks() * int64_t{C.threads()};
    for (int64_t i = first; i < int64_t{p.k_blocks} * p.m_padded; i += step) {
      const int64_t row = i % p.m_padded, block = i / p.m_padded;
      Machine::store_global(p.x_scales + i, row < p.m ? scale(p.x_scale, 0, row, block) : 0.0f);
    }
    const int64_t of_expert = int64_t{p.n_blocks} * p.w_stride;
    for (int64_t i = first; i < p.num_experts * of_expert; i += step) {
      const int64_t expert = i / of_expert, rest = i % of_expert, row = rest / p.w_stride, block = rest % p.w_stride;
      Machine::store_global(p.w_scales + i, block < p.k_blocks ? scale(p.w_scale, expert, row, block) : 0.0f);
    }
  }
  TILEWISE_INLINE static float scale(const GemmScales& of, int64_t expert, int64_t row, int64_t column) {
    const int64_t at = expert * of.expert_stride + row * of.row_stride + column * of.column_stride;
    if (of.e8m0) return e8m0_to_float(Machine::load_global(static_cast<const uint8_t*>(of.data) + at));
    return Machine::load_global(static_cast<const float*>(of.data) + at);
  }
};

}  // namespace tilewise::device
