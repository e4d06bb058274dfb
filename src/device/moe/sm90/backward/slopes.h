// The first product of an expert layer once more, in its backward pass: rows of x times gate_up, from whose sums and
// h's gradient come intermediate values, the product's own gradient and the terms of topk_weights'. A tile's gates and
// ups are octets of its columns in turn, so that a lane has both of a value.
#pragma once

#include "device/gemm/sm90/mainloop.h"
#include "device/moe/sm90/backward/config.h"
#include "device/moe/sm90/backward/params.h"
#include "device/sm90/contract.h"
#include "device/sm90/roles.h"
#include "device/tile/activation_slope.h"
#include "device/tile/number.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeSlopesConfig C>
class Sm90MoeSlopes {
  using Machine = typename Ops::Machine;
  static constexpr GemmConfig kGemm = C.gemm();
  using Stage = GemmStage<kGemm>;
  using Pipe = Pipeline<Machine, C.stages, C.cluster>;
  using Sums = Fragment<Ops, 16, kGemm.block_n>;
  using Tiles = GemmTiles<Machine, kGemm>;
  static constexpr bool kGated = C.gated != 0;
  static constexpr int kConsumers = GemmConfig::kConsumers, kGates = kGated ? 2 : 1;
  static constexpr int kFours = C.values() / 32;  // of octets of values: lanes of a row hold 16 bytes of each
  static_assert(kGemm.row_blocks() == 1);

 public:
  using Params = MoeSlopesParams;
  struct Shared {
    Stage stage[C.stages];
    Pipe pipe;
  };

  TILEWISE_INLINE static void run(const MoeSlopesParams& p, Shared& shared) {
    run_kernel<Machine, kConsumers, C.cluster>(
        [&]() TILEWISE_INLINE_LAMBDA {
          shared.pipe.init(4 * kConsumers);
          prefetch_maps<Machine>(p.gemm.x_map, p.gemm.w_map);
        },
        [&](int) TILEWISE_INLINE_LAMBDA {
          if (Machine::thread() == 0) load(p, shared);
        },
        [&](int32_t warpgroup) TILEWISE_INLINE_LAMBDA { consume(p, shared, warpgroup); });
  }

 private:
  TILEWISE_INLINE static void load(const MoeSlopesParams& p, Shared& shared) {
    ProducerPlace<Pipe> place(shared.pipe);
    for (Tiles tiles(p.gemm); tiles.has_tile(); tiles.advance()) {
      const GemmTile tile = tiles.tile();
      TILEWISE_NO_UNROLL
      for (int32_t step = 0; step < p.gemm.steps; ++step, place.advance()) {
        Barrier<Machine>& full = place.begin(Stage::kBytes);
        const int32_t k = step * kGemm.block_k();
        load_share<C.cluster>(shared.stage[place.stage()].x, p.gemm.x_map, full, k, tile.row);
        load_tile(shared.stage[place.stage()].w, p.gemm.w_map, full, k, 0, 0, tile.col / (8 * kGates), tile.expert);
      }
    }
  }

  TILEWISE_INLINE static void consume(const MoeSlopesParams& p, Shared& shared, int32_t warpgroup) {
    ConsumerPlace<Pipe> place(shared.pipe);
    Sums sums[1];
    for (Tiles tiles(p.gemm); tiles.has_tile(); tiles.advance()) {
      multiply_tile<Machine, kGemm>(sums, shared.stage, place, warpgroup * 64, p.gemm.steps);
      const GemmTile tile = tiles.tile();
      const int32_t row = tile.row + warpgroup * 64 + warp_row<Machine>() + Machine::lane() / 4;
      TILEWISE_UNROLL
      for (int slot = 0; slot < 2; ++slot) finish_row(p, sums[0], tile, row + 8 * slot, slot);
    }
  }

  /// A lane's row, of which four lanes have every fourth pair of values. All lanes take part.
  TILEWISE_INLINE static void finish_row(const MoeSlopesParams& p, const Sums& sums, const GemmTile& tile, int32_t row,
                                         int slot) {
    const bool there = row < tile.end;
    const int32_t first = tile.col / kGates, quarter = Machine::lane() % 4;
    const float weight = there ? Machine::load_global(p.row_weights + row) : 0.0f;
    uint16_t* const h = static_cast<uint16_t*>(p.h.data) + row * p.h.row_stride;
    // They come together, while nothing has to wait for one.
    Chunk dh[kFours];
    TILEWISE_UNROLL
    for (int four = 0; four < kFours; ++four) {
      const int32_t value = first + 32 * four + 8 * quarter;
      dh[four] =
          there && value < p.intermediate ? Machine::load_global(reinterpret_cast<const Chunk*>(h + value)) : Chunk{};
    }
    float term = 0.0f;
    TILEWISE_UNROLL
    for (int four = 0; four < kFours; ++four) {
      Words words;
      transpose_quad<Machine>(dh[four].word);
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        term += finish_pair(p, sums, tile.expert, weight, first, 4 * four + i, slot, dh[four].word[i], words, i);
      }
      store_words(p, words, there, row, first + 32 * four, h);
    }
    TILEWISE_UNROLL
    for (int bit = 1; bit <= 2; bit *= 2) term += Machine::shuffle_xor(term, bit);
    if (there && quarter == 0 && tile.col < p.gemm.n) {
      Machine::store_global(p.terms + int64_t{row} * p.num_terms + tile.col / kGemm.block_n, term);
    }
  }

  /// Pairs of values of four octets, rounded.
  struct Words {
    uint32_t h[4], gate[4], up[4];
  };

  /// What the weight of a row multiplies is its values, or the sums of the product; the weight's gradient is the sum of
  /// that times its gradient. What leaves here is weighed, so that rows of x and of dout need not be.
  TILEWISE_INLINE static float finish_pair(const MoeSlopesParams& p, const Sums& sums, int32_t expert, float weight,
                                           int32_t first, int octet, int slot, uint32_t dh, Words& words, int i) {
    const float on_input = C.weight_on_input ? weight : 1.0f, on_output = C.weight_on_input ? 1.0f : weight;
    float h[2], gate[2], up[2], term = 0.0f;
    TILEWISE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int32_t value = first + 8 * octet + 2 * (Machine::lane() % 4) + e;
      const float gate_sum = kGated ? sums.tile[0][kGates * octet][2 * slot + e] : 0.0f,
                  up_sum = sums.tile[0][kGates * octet + kGates - 1][2 * slot + e],
                  dvalue = half_of(e == 0 ? dh & 0xFFFFu : dh >> 16);
      const ValueSlopes slopes = value_slopes<Machine, C.kind(), C.clamps(), kGated>(
          gate_sum * on_input + (kGated ? bias(p, expert, 0, value) : 0.0f),
          up_sum * on_input + bias(p, expert, kGates - 1, value), dvalue * on_output, p.numbers);
      h[e] = slopes.value * on_output, gate[e] = slopes.dgate * on_input, up[e] = slopes.dup * on_input;
      const float own = C.weight_on_input ? slopes.dgate * gate_sum + slopes.dup * up_sum : dvalue * slopes.value;
      if (value < p.intermediate) term += own;
    }
    words.h[i] = Machine::template pack<C.type>(h[0], h[1]);
    if constexpr (kGated && C.interleaved) {
      words.gate[i] = Machine::template pack<C.type>(gate[0], up[0]);
      words.up[i] = Machine::template pack<C.type>(gate[1], up[1]);
    } else {
      words.gate[i] = Machine::template pack<C.type>(gate[0], gate[1]);
      words.up[i] = Machine::template pack<C.type>(up[0], up[1]);
    }
    return term;
  }
  TILEWISE_INLINE static float half_of(uint32_t bits) { return element_to_float<C.type>(static_cast<uint16_t>(bits)); }
  TILEWISE_INLINE static float bias(const MoeSlopesParams& p, int32_t expert, int32_t gate, int32_t value) {
    if constexpr (!C.biases) return 0.0f;
    const ExpertBias& b = p.gate_up_bias;
    if (b.data == nullptr || value >= p.intermediate) return 0.0f;
    return load_number<Machine>(b.data, expert * b.expert_stride + gate * b.gate_stride + value * b.stride, b.type);
  }

  /// Stores 16 bytes of each an octet a lane; of gates and ups that take turns 8 bytes of each octet.
  TILEWISE_INLINE static void store_words(const MoeSlopesParams& p, Words& words, bool there, int32_t row,
                                          int32_t first, uint16_t* h) {
    const int32_t quarter = Machine::lane() % 4, value = first + 8 * quarter;
    uint16_t* const products = static_cast<uint16_t*>(p.gemm.out) + row * p.gemm.out_stride;
    const auto store = [&](uint32_t (&word)[4], uint16_t* to) TILEWISE_INLINE_LAMBDA {
      transpose_quad<Machine>(word);
      if (there && value < p.intermediate) {
        Machine::store_global(reinterpret_cast<Chunk*>(to), Chunk{{word[0], word[1], word[2], word[3]}});
      }
    };
    store(words.h, h + value);
    if constexpr (kGated && C.interleaved) {
      TILEWISE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int32_t pair = first + 8 * i + 2 * quarter;
        if (!there || pair >= p.intermediate) continue;
        Machine::store_global(reinterpret_cast<WordRun<2>*>(products + 2 * pair),
                              WordRun<2>{{words.gate[i], words.up[i]}});
      }
    } else {
      if constexpr (kGated) store(words.gate, products + value);
      store(words.up, products + (kGated ? p.intermediate : 0) + value);
    }
  }
};

}  // namespace tilewise::device
