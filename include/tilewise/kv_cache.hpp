// The KV cache step: rotate new queries and keys, append keys and values to a cache in place, attend over it
// (kv_cache_attention), or append alone (append_kv); the short way and the planned way. Meaning: docs/semantics.md,
// "KV cache step".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tilewise/any_problem.hpp"
#include "tilewise/error.hpp"
#include "tilewise/export.h"
#include "tilewise/plan.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

enum class KvCacheCall : std::uint8_t { kv_cache_attention, append_kv };
/// What a key's scale belongs to. none: the cache is not fp8; tensor: one number or a tensor of one.
enum class CacheScales : std::uint8_t { none, tensor, head, batch_head, token };
/// none: cache_seqlens (and block_table) say where new keys go.
enum class SlotKind : std::uint8_t { none, i32, i64 };
/// none; f32; query: the dtype of q (of the new keys in append_kv).
enum class RotaryKind : std::uint8_t { none, f32, query };

/// A value: hashable, comparable, printable. Invariants are checked by validate(), not here.
struct KvCacheProblem {
  KvCacheCall call = KvCacheCall::kv_cache_attention;
  DType dtype = DType::f32;        ///< of q, new keys and values, out
  DType cache_dtype = DType::f32;  ///< dtype, or fp8_e4m3
  DeviceType device = DeviceType::cpu;
  Layout layout = Layout::bshd;  ///< of q and of the new keys: bshd or thd

  std::int64_t batch_size = 1;
  std::int64_t seqlen_q = 0;      ///< thd: max_seqlen_q; append_kv: 0
  std::int64_t total_q = 0;       ///< thd only, else 0
  std::int64_t seqlen_k_new = 0;  ///< thd: max_seqlen_k_new; 0 without new keys
  std::int64_t total_k_new = 0;   ///< thd only, else 0
  std::int64_t num_heads_q = 1;   ///< append_kv: that of the keys
  std::int64_t num_heads_k = 1;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;

  std::int64_t batch_size_cache = 1;   ///< contiguous caches
  std::int64_t capacity = 0;           ///< contiguous caches: places of a sequence
  std::int64_t page_size = 0;          ///< 0: contiguous
  std::int64_t num_pages = 0;          ///< paged, else 0
  std::int64_t max_pages_per_seq = 0;  ///< width of block_table; 0 where slots stand for it

  bool append = false;  ///< new keys come along; append_kv: true
  bool mla = false;     ///< there is no v_cache: values are the first head_dim_v columns of the keys
  CacheScales scales = CacheScales::none;
  SlotKind slots = SlotKind::none;
  bool cache_seqlens = false;  ///< a tensor of them
  bool cache_batch_idx = false;
  bool cache_leftpad = false;

  RotaryKind rotary = RotaryKind::none;
  std::int64_t rotary_dim = 0;
  std::int64_t rotary_offset = 0;
  bool rotary_interleaved = false;
  bool rotary_seqlens = false;

  Mask mask = Mask::none;
  std::int64_t window_left = -1;
  std::int64_t window_right = -1;
  double softmax_scale = 0.0;  ///< the resolved value (1/sqrt(head_dim) by default)
  double softcap = 0.0;
  AlibiKind alibi_slopes = AlibiKind::none;
  SinkKind sink = SinkKind::none;
  std::int64_t num_splits = 0;  ///< 0: the cost model's
  bool softmax_lse = false;     ///< the caller wants it
  bool batch_invariant = false;
  bool unaligned = false;  ///< some row of a tensor does not start on 16 bytes; the cpu does not care: false there
  std::string score_mod, mask_mod;  ///< canonical texts of expressions
  std::vector<TableShape> tables;
  std::int64_t top_k = 0;  ///< as AttentionProblem has them
  bool key_indices_per_head = false;
  BlockMaskShape block_mask{};  ///< of places of a sequence: rows and columns of blocks go up to the capacity

  friend bool operator==(const KvCacheProblem&, const KvCacheProblem&) = default;
};

[[nodiscard]] TILEWISE_EXPORT const core::OperationInterface& operation_of(const KvCacheProblem* tag) noexcept;

[[nodiscard]] TILEWISE_EXPORT std::size_t hash_value(const KvCacheProblem& problem) noexcept;

/// E.g. "kv_cache_attention dtype=bf16 batch_size=16 seqlen_q=1 num_heads_q=32 num_heads_k=8 head_dim=128 page_size=16
/// num_pages=8192 max_pages_per_seq=512 append=1 seqlen_k_new=1 cache_seqlens=1 mask=causal".
[[nodiscard]] TILEWISE_EXPORT std::string to_string(const KvCacheProblem& problem);

TILEWISE_EXPORT void validate(const KvCacheProblem& problem);

/// Everything about a call that is not q, a cache, new keys and values or an output. An undefined TensorView means
/// "not given". What append_kv has no use for must keep its default there.
struct KvCacheOptions {
  TensorView rotary_cos, rotary_sin;  ///< f32 or the dtype of q, [rows, rotary_dim / 2]
  bool rotary_interleaved = false;
  TensorView rotary_seqlens;  ///< int32 [batch_size]
  std::int64_t rotary_offset = 0;

  TensorView cache_seqlens;                  ///< int32 [batch_size] ...
  std::optional<std::int64_t> cache_seqlen;  ///< ... or one number for all
  TensorView cache_batch_idx;                ///< int32 [batch_size]; contiguous caches
  TensorView cache_leftpad;                  ///< int32 [batch_size]; contiguous caches
  TensorView block_table;                    ///< int32 [batch_size, max_pages_per_seq]; the caches are paged then
  TensorView slots;                          ///< append_kv: int32 or int64, one for each new token

  TensorView cu_seqlens_q;  ///< int32 [batch_size + 1]; q and the new keys are packed then
  std::optional<std::int64_t> max_seqlen_q;
  TensorView cu_seqlens_k_new;  ///< likewise; cu_seqlens_q where not given
  std::optional<std::int64_t> max_seqlen_k_new;

  std::optional<std::int64_t> head_dim_v;              ///< must be given without a v_cache, and only then
  TensorView k_scale, v_scale;                         ///< f32; see docs/semantics.md ...
  std::optional<double> k_scale_value, v_scale_value;  ///< ... or one number

  Mask mask = Mask::none;
  std::int64_t window_left = -1, window_right = -1;
  std::optional<double> softmax_scale;  ///< default 1/sqrt(head_dim)
  double softcap = 0.0;                 ///< 0: off
  TensorView alibi_slopes;              ///< f32 [num_heads_q] or [batch_size, num_heads_q]
  TensorView sink;                      ///< f32 or the dtype of q, [num_heads_q]
  std::int64_t num_splits = 0;          ///< parts of the keys; 0: chosen from shapes and capacity
  bool batch_invariant = false;
  /// As AttentionOptions has them, but of positions: q_idx is the key that the query stands at, bottom-right.
  std::string score_mod, mask_mod;
  std::vector<TensorView> tables;
  TensorView key_indices;  ///< as AttentionOptions has them: places of a sequence, whatever its pages are
  /// As AttentionOptions has them, but of positions: blocks are of as many places as the cache has of a sequence, both
  /// ways.
  std::vector<TensorView> block_mask;
  std::int64_t block_rows = 128, block_keys = 128;
};

/// Caches, and scales per token, are changed in place where k is given. What is written must share no element with
/// what is read, with another output or with itself.
struct KvCacheArguments {
  TensorView q;
  TensorView k_cache, v_cache;  ///< v_cache undefined: MLA's form
  TensorView k, v;              ///< new keys and values; may be undefined
  TensorView out;               ///< written
  TensorView softmax_lse;       ///< written when defined; f32
  KvCacheOptions options;
};

struct AppendKvArguments {
  TensorView k_cache, v_cache;
  TensorView k, v;
  KvCacheOptions options;
};

/// The problem that a call describes. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_EXPORT KvCacheProblem describe(const KvCacheArguments& arguments);
[[nodiscard]] TILEWISE_EXPORT KvCacheProblem describe(const AppendKvArguments& arguments);

/// Executes a plan on tensors that describe to the plan's problem (checked); see attention's run().
TILEWISE_EXPORT void run(const Plan& plan, const KvCacheArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);
TILEWISE_EXPORT void run(const Plan& plan, const AppendKvArguments& arguments, void* workspace = nullptr,
                         void* stream = nullptr);

/// Describe, plan and run in one call; see attention_forward().
TILEWISE_EXPORT void kv_cache_attention(const KvCacheArguments& arguments, const SelectOptions& select = {},
                                        void* stream = nullptr);
TILEWISE_EXPORT void append_kv(const AppendKvArguments& arguments, const SelectOptions& select = {},
                               void* stream = nullptr);

}  // namespace tilewise
