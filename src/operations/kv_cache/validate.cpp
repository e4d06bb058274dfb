// The limits of every field of a KV cache problem and the fields that exclude each other.
#include "operations/kv_cache/validate.hpp"

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>

#include "core/message.hpp"
#include "core/taken_dtypes.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/schema.hpp"

namespace tilewise::operations::kv_cache {
namespace {

using core::invalid_argument, core::invalid_type;

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxHeadDim = 576;
constexpr std::int64_t kMaxHeadDimV = 512;

void check_range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low) invalid_argument(field, " must be >= ", low, " (got ", value, ")");
  if (value > high) invalid_argument(field, " must be <= ", high, " (got ", value, ")");
}

void check_bytes(std::string_view name, std::initializer_list<std::int64_t> sizes) {
  std::int64_t bytes = 8;
  bool overflow = false;
  for (const std::int64_t size : sizes) {
    if (size == 0) return;
    overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  }
  if (overflow) invalid_argument(name, ": must have less than 2^60 elements (got more)");
}

void validate_rows(const KvCacheProblem& p) {
  const bool packed = is_packed(p);
  check_range("q: batch_size", p.batch_size, 0, kMaxInt32);
  check_range(packed ? "max_seqlen_q:" : "q: seqlen_q", p.seqlen_q, 0, kMaxInt32);
  check_range(packed ? "max_seqlen_k_new:" : "k: seqlen_k_new", p.seqlen_k_new, 0, kMaxInt32);
  check_range("q: total_q", p.total_q, 0, kMaxInt32);
  check_range("k: total_k_new", p.total_k_new, 0, kMaxInt32);
  if (!packed && p.total_q != 0) invalid_argument("total_q: requires layout=thd (got ", p.total_q, ")");
  if (!packed && p.total_k_new != 0) invalid_argument("total_k_new: requires layout=thd (got ", p.total_k_new, ")");
  if (!p.append && p.seqlen_k_new != 0) {
    invalid_argument("seqlen_k_new: requires append=1 (got ", p.seqlen_k_new, ")");
  }
  if (p.batch_size * std::int64_t{p.num_heads_q} > kMaxInt32) {
    invalid_argument("q: batch_size * num_heads_q must be <= ", kMaxInt32, " (got ", p.batch_size, " * ", p.num_heads_q,
                     ")");
  }
  const std::int64_t batch = packed ? 1 : p.batch_size;
  check_bytes("q", {batch, packed ? p.total_q : p.seqlen_q, p.num_heads_q, p.head_dim});
  check_bytes("k", {batch, packed ? p.total_k_new : p.seqlen_k_new, p.num_heads_k, p.head_dim});
}

void validate_cache(const KvCacheProblem& p) {
  check_range("page_size:", p.page_size, 0, kMaxInt32);
  if (is_paged(p)) {
    check_range("k_cache: num_pages", p.num_pages, 0, kMaxInt32);
    check_range("block_table: max_pages_per_seq", p.max_pages_per_seq, 0, kMaxInt32);
    if (p.page_size * p.max_pages_per_seq > kMaxInt32) {
      invalid_argument("block_table: page_size * max_pages_per_seq must be <= ", kMaxInt32, " (got ", p.page_size,
                       " * ", p.max_pages_per_seq, ")");
    }
    check_bytes("k_cache", {p.num_pages, p.page_size, p.num_heads_k, p.head_dim});
    if (p.cache_batch_idx) invalid_argument("cache_batch_idx: excludes block_table (got both)");
    if (p.cache_leftpad) invalid_argument("cache_leftpad: excludes block_table (got both)");
    if (p.capacity != 0) invalid_argument("capacity: excludes page_size (got ", p.capacity, ")");
    return;
  }
  if (p.num_pages != 0) invalid_argument("num_pages: requires page_size (got ", p.num_pages, ")");
  if (p.max_pages_per_seq != 0) invalid_argument("max_pages_per_seq: requires page_size (got it without)");
  check_range("k_cache: capacity", p.capacity, 0, kMaxInt32);
  check_range("k_cache: batch_size", p.batch_size_cache, 0, kMaxInt32);
  check_bytes("k_cache", {p.batch_size_cache, p.capacity, p.num_heads_k, p.head_dim});
  if (!p.cache_batch_idx && p.slots == SlotKind::none && p.batch_size_cache != p.batch_size) {
    invalid_argument("k_cache: batch_size must be that of q and k, ", p.batch_size,
                     ", where there is no cache_batch_idx (got ", p.batch_size_cache, ")");
  }
}

void validate_scales(const KvCacheProblem& p) {
  if (is_fp8(p) && p.scales == CacheScales::none) {
    invalid_argument("k_scale: must be given with caches in fp8_e4m3 (got none)");
  }
  if (!is_fp8(p) && p.scales != CacheScales::none) {
    invalid_argument("k_scale: requires caches in fp8_e4m3 (got ", to_string(p.cache_dtype), ")");
  }
}

void validate_rotary(const KvCacheProblem& p) {
  if (p.rotary_dim == 0) {
    if (p.rotary != RotaryKind::none) invalid_argument("rotary_dim: must be >= 2 with rotary tables (got 0)");
    if (p.rotary_seqlens) invalid_argument("rotary_seqlens: requires rotary_cos (got none)");
    if (p.rotary_offset != 0) invalid_argument("rotary_offset: requires rotary_cos (got ", p.rotary_offset, ")");
    if (p.rotary_interleaved) invalid_argument("rotary_interleaved: requires rotary_cos (got none)");
    return;
  }
  if (p.rotary == RotaryKind::none) invalid_argument("rotary: must be f32 or query with rotary_dim (got none)");
  if (!p.append) invalid_argument("rotary_cos: requires new keys, k (got none)");
  if (p.rotary_dim < 0 || p.rotary_dim % 2 != 0) {
    invalid_argument("rotary_dim: must be even and >= 2 (got ", p.rotary_dim, ")");
  }
  if (p.rotary_offset < 0 || p.rotary_offset > p.head_dim - p.rotary_dim) {
    invalid_argument("rotary_offset: rotary_offset + rotary_dim must be <= head_dim = ", p.head_dim, ", and both >= 0",
                     " (got ", p.rotary_offset, " + ", p.rotary_dim, ")");
  }
  if (p.slots != SlotKind::none && !p.rotary_seqlens) {
    invalid_argument("rotary_seqlens: must be given with slots and rotary_cos, since there are no cache_seqlens");
  }
}

void validate_scores(const KvCacheProblem& p) {
  const auto check = [](std::string_view name, std::int64_t window) {
    if (window < -1 || window > kMaxInt32) {
      invalid_argument(name, ": must be -1 (unbounded) or 0 to ", kMaxInt32, " (got ", window, ")");
    }
  };
  check("window_left", p.window_left);
  check("window_right", p.window_right);
  if (p.mask == Mask::causal && p.window_right > 0) {
    invalid_argument("window_right: must be <= 0 with mask=causal (got ", p.window_right, ")");
  }
  constexpr double kLargest = std::numeric_limits<float>::max(), kSmallest = std::numeric_limits<float>::min();
  if (!(std::abs(p.softmax_scale) <= kLargest)) {
    invalid_argument("softmax_scale: must be finite in f32 (got ", p.softmax_scale, ")");
  }
  if (p.softcap != 0.0 && !(p.softcap >= kSmallest && p.softcap <= kLargest)) {
    invalid_argument("softcap: must be 0 (off), or positive and finite in f32 (got ", p.softcap, ")");
  }
  check_range("num_splits:", p.num_splits, 0, kMaxInt32);
  validate_score_functions(p);
  validate_selected_keys(p, rows_of_queries(p));
  validate_block_mask(blocked_scores(p), p.tables.size());
}

/// What append_kv has no use for, and what it alone has.
void validate_call(const KvCacheProblem& p) {
  if (!appends_alone(p)) {
    if (p.slots != SlotKind::none) invalid_argument("slots: belongs to append_kv (got it in kv_cache_attention)");
    return;
  }
  const KvCacheProblem fresh;
  const auto refuse = [](bool given, std::string_view name) {
    if (given) invalid_argument(name, ": belongs to kv_cache_attention (got it in append_kv)");
  };
  refuse(p.mask != fresh.mask, "mask");
  refuse(p.window_left != fresh.window_left || p.window_right != fresh.window_right, "window");
  refuse(p.softmax_scale != fresh.softmax_scale, "softmax_scale");
  refuse(p.softcap != fresh.softcap, "softcap");
  refuse(p.alibi_slopes != fresh.alibi_slopes, "alibi_slopes");
  refuse(p.sink != fresh.sink, "sink");
  refuse(p.num_splits != fresh.num_splits, "num_splits");
  refuse(p.softmax_lse, "softmax_lse");
  refuse(p.batch_invariant, "batch_invariant");
  refuse(!p.score_mod.empty(), "score_mod");
  refuse(!p.mask_mod.empty(), "mask_mod");
  refuse(!p.tables.empty(), "tables");
  refuse(p.top_k != 0, "key_indices");
  refuse(has_block_mask(p), "block_mask");
  refuse(p.seqlen_q != 0 || p.total_q != 0, "q");
  if (p.slots == SlotKind::none) return;
  if (!is_paged(p)) invalid_argument("page_size: must be >= 1 with slots (got 0)");
  const auto exclude = [](bool given, std::string_view name) {
    if (given) invalid_argument(name, ": excludes slots (got both)");
  };
  exclude(p.cache_seqlens, "cache_seqlens");
  exclude(p.max_pages_per_seq != 0, "block_table");
  exclude(p.cache_batch_idx, "cache_batch_idx");
  exclude(p.cache_leftpad, "cache_leftpad");
}

}  // namespace

void validate_dtype(std::string_view name, DType dtype, DeviceType device) {
  using enum DType;
  if (dtype == f32 || dtype == bf16 || dtype == f16) return;
  const core::OperationInterface& operation = operation_of(static_cast<const KvCacheProblem*>(nullptr));
  invalid_type(name, ": dtype must be ", core::taken_dtypes(operation, device, {f32, bf16, f16}), " (got ",
               to_string(dtype), ")");
}

void validate_cache_dtype(DType dtype, DType cache_dtype) {
  if (cache_dtype == dtype || cache_dtype == DType::fp8_e4m3) return;
  invalid_type("k_cache: dtype must be that of q and k, ", to_string(dtype), ", or fp8_e4m3 (got ",
               to_string(cache_dtype), ")");
}

void validate_head_counts(const KvCacheProblem& p) {
  check_range("q: num_heads_q", p.num_heads_q, 1, kMaxInt32);
  check_range("k_cache: num_heads_k", p.num_heads_k, 1, kMaxInt32);
  if (p.num_heads_q % p.num_heads_k != 0) {
    invalid_argument("q: num_heads_q must be a multiple of num_heads_k (got ", p.num_heads_q, " and ", p.num_heads_k,
                     ")");
  }
}

void validate(const KvCacheProblem& problem) {
  const KvCacheProblem p = completed(problem);
  const bool alone = appends_alone(p);
  validate_dtype(alone ? "k" : "q", p.dtype, p.device);
  validate_cache_dtype(p.dtype, p.cache_dtype);
  if (p.layout != Layout::bshd && p.layout != Layout::thd) {
    invalid_argument("layout: must be bshd or thd (got ", core::name_of(p.layout), ")");
  }
  validate_head_counts(p);
  check_range("k_cache: head_dim", p.head_dim, 1, kMaxHeadDim);
  check_range("v_cache: head_dim_v", p.head_dim_v, 1, kMaxHeadDimV);
  if (p.mla && p.head_dim_v > p.head_dim) {
    invalid_argument("head_dim_v: must be <= head_dim = ", p.head_dim, " without a v_cache (got ", p.head_dim_v, ")");
  }
  validate_rows(p);
  validate_cache(p);
  validate_scales(p);
  validate_rotary(p);
  validate_scores(p);
  validate_call(p);
}

}  // namespace tilewise::operations::kv_cache
