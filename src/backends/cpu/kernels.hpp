// The contract between the host side of the CPU backend and its kernels: plain tasks in,
// numbers out. One KernelSet per instruction set, compiled with that set's flags.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "backends/cpu/score_program.h"
#include "device/common/params.h"
#include "device/common/visibility.h"

namespace tilewise::backends::cpu {

// `Real` below is what a kernel computes in: fp32, and fp64 where the elements are. Scalars are doubles,
// which hold either; arrays of Real are void*.

/// How scores are changed between q·k and the softmax; common to every row of a call.
struct ScoreParams : device::ScoreFactors {
  int32_t bias_type;  // device::BiasType
  int64_t bias_key_stride;
  bool has_alibi;
  bool has_sink;
  uint32_t dropout_threshold;  // 0: off
  uint64_t seed, offset;
  ScoreFunctions functions;
  const int32_t* places;  // of keys that were gathered: where each stands in its sequence; null: where it is
  bool decoded;           // backward: the forward pass sums products as decoding does
};

/// One (query, head) of a tile. Keys count from the first used key of the sequence.
struct RowInfo {
  const void* q;
  void* out;                       // element row, or null
  void* lse;                       // Real, or null
  void* partial;                   // Reals; split over keys: [head_dim_v] unnormalised outputs, then reference and sum
  int32_t key_begin, key_end;      // visible by mask and window, and to this row or its neighbours by mask_mod
  int32_t whole_begin, whole_end;  // visible by mask_mod, which is not asked there
  const void* bias;                // at key 0
  double alibi_slope;
  int32_t diagonal;  // i + d: the key this query stands at
  double sink;
  uint32_t batch_head, query;  // coordinates of dropout and functions; over a cache query is q_idx, an int32_t
  // Backward only.
  double softmax_lse;  // +infinity where the row sees nothing
  double delta;        // rowsum(out * dout) - dlse
  void* dbias;         // accumulator, Reals, at the key block's first key, or null
};

/// Keys that lie anywhere, and come block by block. `fill` brings keys [first, first + count) to where the tile's first
/// ones are.
struct KeyGatherer {
  void (*fill)(const KeyGatherer& gatherer, int64_t first, int64_t count);
};

/// Rows that share one key head, and the part of its keys to visit.
struct ForwardTile {
  const RowInfo* rows;
  int32_t num_rows;
  const void *k, *v;           // at the first used key
  int64_t k_stride, v_stride;  // between keys, in elements
  int32_t seqlen_k;            // used keys
  int32_t key_begin, key_end;  // union of the rows' ranges
  int32_t head_dim, head_dim_v;
  ScoreParams score;
  const device::Visibility* blocks;       // of KernelSet::forward_keys each, from that of key_begin on; null: some
  bool (*abandoned)() noexcept;           // asked between blocks of keys: whether nobody wants the result any more
  double value_scale = 1.0;               // of v; partial results are without it
  const KeyGatherer* gatherer = nullptr;  // k and v hold one block of KernelSet::forward_keys; null: they hold all keys
};

/// One block of keys, kept in scratch while the rows that see it pass by. Gradients of k and v
/// accumulate there as Reals.
struct KeyBlock {
  const void *k, *v;  // at the block's first key
  int64_t k_stride, v_stride;
  int32_t first_key, num_keys;  // num_keys <= KernelSet::backward_keys
  int32_t head_dim, head_dim_v;
  ScoreParams score;
  bool wants_dk, wants_dv;
};

/// Consecutive queries of one head, at most KernelSet::backward_rows.
struct QueryBlock {
  const RowInfo* rows;
  int32_t num_rows;
  const void *q, *dout;
  int64_t q_stride, dout_stride;
  void* dq;  // accumulators, rows dq_stride Reals apart (whole vectors of 16), or null
  int64_t dq_stride;
  int64_t dbias_key_stride;  // 0: one sum a row
  bool all_visible;          // by mask_mod, all of its rows the whole key block
};

/// Element types of q, k, v in the order of the arrays below.
enum ElementIndex : int { kElementF32 = 0, kElementBf16 = 1, kElementF16 = 2, kElementF64 = 3, kElementCount = 4 };

using ForwardFn = void (*)(const ForwardTile& tile, void* scratch);

/// Pages of a cache: key j lies at place j % page_size of page pages[j / page_size].
struct PageTable {
  const int32_t* pages;        // of the keys that are read or fetched ahead; null: there are none
  int64_t page_size;           // in keys
  int64_t k_stride, v_stride;  // between pages, in bytes
};

/// Scales of single keys (or values), one a head; null: none, numbers are what is stored.
struct TokenScales {
  const float* scales;  // of the first tile's head at key 0, or at the first place of page 0
  int64_t key_stride, page_stride, head_stride;
};

/// What a decode call reads key after key, and fetches ahead: the rows of k and v of all its tiles, adjacent in
/// memory.
struct KeyStream {
  const void *k, *v;           // at key 0, or at the first place of page 0
  int64_t k_stride, v_stride;  // between keys, or the places of a page, in bytes
  int64_t k_bytes, v_bytes;    // of one key
  int64_t end;                 // keys before it are fetched ahead, beyond the tiles' own too: the next call reads them
  PageTable table = {};
  TokenScales k_scales = {}, v_scales = {};  // of keys and values in fp8
};

/// Tiles of the same sequence and key range with as many rows, one a key head. Their keys are where the stream says,
/// as far from its own as theirs at key 0 are. Scratch: decode_scratch() bytes each.
using DecodeFn = void (*)(const ForwardTile* tiles, int32_t num_tiles, const KeyStream& stream, void* scratch);
using BeginKeysFn = void (*)(const KeyBlock& block, void* scratch);
using AddQueriesFn = void (*)(const KeyBlock& block, const QueryBlock& queries, void* scratch);
/// Writes dk and dv (rows of the tensors' dtype, null: not wanted).
using EndKeysFn = void (*)(const KeyBlock& block, void* dk, int64_t dk_stride, void* dv, int64_t dv_stride,
                           void* scratch);
using DotFn = double (*)(const void* a, const void* b, int64_t size);
using StoreScaledFn = void (*)(const void* from, int64_t size, double factor, void* to);
/// A row of fp8 e4m3 (device/common/float8.h), times its scale, as f32.
using DequantizeFn = void (*)(const void* from, int64_t size, float scale, void* to);
using ScratchFn = size_t (*)(int32_t head_dim, int32_t head_dim_v);

/// Everything one instruction set offers; null where a dtype is left to another set.
struct KernelSet {
  ForwardFn forward[kElementCount];
  DecodeFn decode[kElementCount];
  ScratchFn forward_scratch[kElementCount];
  ScratchFn decode_scratch[kElementCount];
  DecodeFn decode_fp8[kElementCount];  // keys and values in fp8 e4m3, q in the element type
  ScratchFn decode_fp8_scratch[kElementCount];
  BeginKeysFn begin_keys[kElementCount];
  AddQueriesFn add_queries[kElementCount];
  EndKeysFn end_keys[kElementCount];
  ScratchFn backward_scratch[kElementCount];
  DotFn dot[kElementCount];                   // two rows of the element type
  StoreScaledFn store_scaled[kElementCount];  // Reals to a row of the element type
  DequantizeFn dequantize;
  int32_t max_rows;         // rows a forward tile may hold
  int32_t forward_keys;     // of a block, which begins at a multiple of them
  int32_t decode_max_rows;  // likewise for a decode tile
  int32_t decode_keys;      // keys of all heads that a decode call visits before their values
  int32_t backward_keys, backward_rows;
};

/// Defined by isa/<name>.cpp.
extern const KernelSet kGenericKernels, kAvx2Kernels, kAvx512Kernels, kAvx512Bf16Kernels, kAmxBf16Kernels;
extern const KernelSet kNeonKernels, kNeonBf16Kernels;
/// Of AVX512-BF16's processors with AVX512-VBMI: decoding over fp8 alone.
extern const KernelSet kAvx512VbmiKernels;

}  // namespace tilewise::backends::cpu
