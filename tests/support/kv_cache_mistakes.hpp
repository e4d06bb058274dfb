// The mistakes that a call of the KV cache step can have, each with what is said to it. One list for C++, C and GPUs.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kv_cache_step.hpp"

namespace tilewise::test {

/// One change to a good call, and what is said to it. A sentence that does not end with ')' is the beginning of one.
struct KvCacheMistake {
  std::string sentence;
  std::function<void(SmallStep&)> make;
  ErrorCode code = ErrorCode::invalid_argument;
  bool appending_alone = true;  ///< append_kv says it too
};

inline void make_contiguous(SmallStep& step) {
  step.arguments.options.block_table = {};
  step.arguments.k_cache = step.tensor({2, 12, 2, 8}, DType::f32);
  step.arguments.v_cache = step.tensor({2, 12, 2, 8}, DType::f32);
}

inline void make_fp8(SmallStep& step, CacheScales scales) {
  for (TensorView* cache : {&step.arguments.k_cache, &step.arguments.v_cache})
    *cache = step.tensor({8, 4, 2, 8}, DType::fp8_e4m3);
  KvCacheOptions& o = step.arguments.options;
  if (scales == CacheScales::tensor) o.k_scale_value = o.v_scale_value = 0.5;
  if (scales != CacheScales::token) return;
  o.k_scale = step.tensor({8, 4, 2}, DType::f32);
  o.v_scale = step.tensor({8, 4, 2}, DType::f32);
}

inline void rotate(SmallStep& step, std::int64_t rows, std::int64_t rotary_dim = 8, std::int64_t offset = 0) {
  KvCacheOptions& o = step.arguments.options;
  o.rotary_cos = step.tensor({rows, rotary_dim / 2}, DType::f32);
  o.rotary_sin = step.tensor({rows, rotary_dim / 2}, DType::f32);
  o.rotary_offset = offset;
}

/// Rows of q, k and v one after the other, and where the two sequences start.
inline void pack(SmallStep& step, const std::vector<std::int32_t>& starts) {
  KvCacheArguments& a = step.arguments;
  for (const auto& [view, heads] : {std::pair{&a.q, 4}, {&a.out, 4}, {&a.k, 2}, {&a.v, 2}})
    *view = step.tensor({2, heads, 8}, DType::f32);
  a.softmax_lse = {};
  a.options.cu_seqlens_q = step.lengths(starts);
}

inline std::int32_t& table_entry(SmallStep& step, int at) {
  return static_cast<std::int32_t*>(step.arguments.options.block_table.data)[at];
}

/// What lengths, tables and positions say: on GPUs checked where TILEWISE_CHECK=1 asks for it.
inline std::vector<KvCacheMistake> mistakes_in_values() {
  constexpr std::string_view kHolds = " must be <= 12, the places that a row of block_table has (got ";
  const auto lengths = [](std::int32_t first, std::int32_t second) {
    return [=](SmallStep& s) { s.arguments.options.cache_seqlens = s.lengths({first, second}); };
  };
  const auto contiguous = [](TensorView KvCacheOptions::* member, const std::vector<std::int32_t>& values) {
    return [=](SmallStep& s) {
      make_contiguous(s);
      s.arguments.options.*member = s.lengths(values);
    };
  };
  return {
      {"block_table[0][1]: must be 0 to 7, a page (got 8)", [](SmallStep& s) { table_entry(s, 1) = 8; }},
      {"block_table[0][0]: must be 0 to 7, a page (got -2147483648)",
       [](SmallStep& s) { table_entry(s, 0) = std::numeric_limits<std::int32_t>::min(); }, ErrorCode::invalid_argument,
       /*appending_alone=*/false},  // which does not read the first page
      {"block_table[1][0]: must be 0 to 7, a page (got -1)", [](SmallStep& s) { table_entry(s, 3) = -1; }},
      {core::concat("cache_seqlens[0]:", kHolds, "13)"), lengths(13, 0)},
      {core::concat("cache_seqlens[0]:", kHolds, "2147483647)"), lengths(std::numeric_limits<std::int32_t>::max(), 0)},
      {core::concat("cache_seqlens[1]: cache_seqlens + seqlen_k_new", kHolds, "12 + 1)"), lengths(5, 12)},
      {"cache_batch_idx[1]: must differ from the others' while keys are appended (got 1, as sequence 0 has)",
       contiguous(&KvCacheOptions::cache_batch_idx, {1, 1})},
      {"cache_batch_idx[0]: must be -1 (no cache) or 0 to 1, a sequence of the cache (got 2)",
       contiguous(&KvCacheOptions::cache_batch_idx, {2, 1})},
      {"cache_batch_idx[1]: must be -1 (no cache) or 0 to 1, a sequence of the cache (got -2)",
       contiguous(&KvCacheOptions::cache_batch_idx, {0, -2})},
      {"cache_leftpad[1]: must be 0 to 1, the sequence's length with its new keys (got 2)",
       contiguous(&KvCacheOptions::cache_leftpad, {5, 2})},
      {"cache_leftpad[0]: must be 0 to 6, the sequence's length with its new keys (got -1)",
       contiguous(&KvCacheOptions::cache_leftpad, {-1, 0})},
      {"rotary_cos: must have >= 6 rows, one for each position of sequence 0 (got 5)",
       [](SmallStep& s) { rotate(s, 5); }},
      {"rotary_cos: must have >= 10 rows, one for each position of sequence 1 (got 9)",
       [](SmallStep& s) {
         rotate(s, 9);
         s.arguments.options.rotary_seqlens = s.lengths({8, 9});
       }},
      {"rotary_seqlens[1]: must be >= 0 (got -1)",
       [](SmallStep& s) {
         rotate(s, 9);
         s.arguments.options.rotary_seqlens = s.lengths({8, -1});
       }},
  };
}

/// Of packed rows; append_kv has none of cu_seqlens_q.
inline std::vector<KvCacheMistake> mistakes_in_packed_rows() {
  const auto packed = [](const std::vector<std::int32_t>& starts, std::int64_t longest = 2) {
    return [=](SmallStep& s) {
      pack(s, starts);
      s.arguments.options.max_seqlen_q = longest;
    };
  };
  const auto mistake = [](std::string sentence, std::function<void(SmallStep&)> make) {
    return KvCacheMistake{std::move(sentence), std::move(make), ErrorCode::invalid_argument, false};
  };
  return {
      mistake("cu_seqlens_q[0]: must be 0 (got 1)", packed({1, 1, 2})),
      mistake("cu_seqlens_q[2]: must be >= cu_seqlens_q[1] = 2 (got 1)", packed({0, 2, 1})),
      mistake("cu_seqlens_q[2]: must be <= 2, the rows of its tensor (got 3)", packed({0, 1, 3})),
      mistake("max_seqlen_q: must be >= every sequence's length (got 1, but sequence 1 has 2 rows)",
              packed({0, 0, 2}, 1)),
      mistake("cu_seqlens_k_new[2]: must be <= 2, the rows of its tensor (got 4)",
              [packed](SmallStep& s) {
                packed({0, 1, 2})(s);
                s.arguments.options.cu_seqlens_k_new = s.lengths({0, 2, 4});
              }),
  };
}

/// Of numbers, and of what goes with what.
inline std::vector<KvCacheMistake> mistakes_in_options() {
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  return {
      {"cache_seqlens: cache_seqlens + seqlen_k_new must be <= 12, the capacity of the cache (got 12 + 1)",
       [](SmallStep& s) {
         make_contiguous(s);
         s.arguments.options.cache_seqlens = {};
         s.arguments.options.cache_seqlen = 12;
       }},
      {"cache_seqlens: must be <= 12, the places that a row of block_table has (got 9223372036854775807)",
       [](SmallStep& s) {
         rotate(s, 9);
         s.arguments.options.cache_seqlens = {};
         s.arguments.options.cache_seqlen = std::numeric_limits<std::int64_t>::max();
       }},
      {"cache_seqlens: must be given with new keys, k (got none)",
       [](SmallStep& s) { s.arguments.options.cache_seqlens = {}; }},
      {"cache_seqlens: must be a tensor or a number (got both)",
       [](SmallStep& s) { s.arguments.options.cache_seqlen = 3; }},
      {"v: must be given with k (got k alone)", [](SmallStep& s) { s.arguments.v = {}; }},
      {"v: requires k (got v alone)", [](SmallStep& s) { s.arguments.k = {}; }, kInvalid, false},
      {"head_dim_v: must be given without a v_cache (got none)", [](SmallStep& s) { s.arguments.v_cache = {}; },
       kInvalid, false},
      {"v: excludes a call without v_cache, whose values are columns of the keys",
       [](SmallStep& s) {
         s.arguments.v_cache = {};
         s.arguments.options.head_dim_v = 8;
       }},
      {"head_dim_v: must be that of v_cache, 8 (got 4)", [](SmallStep& s) { s.arguments.options.head_dim_v = 4; }},
      {"cache_batch_idx: excludes block_table (got both)",
       [](SmallStep& s) { s.arguments.options.cache_batch_idx = s.lengths({0, 1}); }},
      {"cache_leftpad: excludes block_table (got both)",
       [](SmallStep& s) { s.arguments.options.cache_leftpad = s.lengths({0, 0}); }},
      {"rotary_offset: rotary_offset + rotary_dim must be <= head_dim = 8, and both >= 0 (got 2 + 8)",
       [](SmallStep& s) { rotate(s, 9, 8, 2); }},
      {"rotary_offset: rotary_offset + rotary_dim must be <= head_dim = 8, and both >= 0 (got -2 + 4)",
       [](SmallStep& s) { rotate(s, 9, 4, -2); }},
      {"rotary_cos: must have >= 1 row (got 0)", [](SmallStep& s) { rotate(s, 0); }},
      {"rotary_sin: must be given with the other table (got none)",
       [](SmallStep& s) {
         rotate(s, 9);
         s.arguments.options.rotary_sin = {};
       }},
      {"rotary_cos: requires new keys, k (got none)",
       [](SmallStep& s) {
         rotate(s, 9);
         s.arguments.k = s.arguments.v = {};
       },
       kInvalid, false},
      {"num_splits: must be >= 0 (got -1)", [](SmallStep& s) { s.arguments.options.num_splits = -1; }, kInvalid, false},
      {"window_right: must be <= 0 with mask=causal (got 3)",
       [](SmallStep& s) {
         s.arguments.options.mask = Mask::causal;
         s.arguments.options.window_right = 3;
       },
       kInvalid, false},
      {"slots: belongs to append_kv (got it in kv_cache_attention)",
       [](SmallStep& s) {
         s.arguments.options.block_table = s.arguments.options.cache_seqlens = {};
         s.arguments.options.slots = s.slots({0, 1});
       },
       kInvalid, false},
  };
}

/// A block mask of the 12 places of a sequence, and what is said where it is none.
inline std::vector<KvCacheMistake> mistakes_in_block_masks() {
  const auto masked = [](std::int64_t rows, std::initializer_list<std::int64_t> counts,
                         std::initializer_list<std::int64_t> indices) {
    return [=, counts = std::vector(counts), indices = std::vector(indices)](SmallStep& s) {
      KvCacheOptions& o = s.arguments.options;
      o.block_rows = rows;
      o.block_keys = 16;
      o.block_mask = {s.tensor({1, 1, 1}, DType::i32), s.tensor({1, 1, 1, 1}, DType::i32)};
      for (const auto& [view, sizes] : {std::pair{&o.block_mask[0], counts}, {&o.block_mask[1], indices}})
        for (std::size_t d = 0; d < sizes.size(); ++d) view->shape[d] = sizes[d];
    };
  };
  const auto mistake = [](std::string sentence, std::function<void(SmallStep&)> make) {
    return KvCacheMistake{std::move(sentence), std::move(make), ErrorCode::invalid_argument, false};
  };
  return {
      mistake("block_rows: must be a multiple of 16 from 16 to 2^30 (got 8)", masked(8, {1, 1, 1}, {1, 1, 1, 1})),
      mistake("block_counts: dimension 0 must be 1 or batch_size = 2 (got 0)", masked(16, {0, 1, 1}, {1, 1, 1, 1})),
      mistake(
          "block_counts: shape must be [batch of block_counts, heads of block_counts, ceil(capacity / block_rows)] = ",
          masked(16, {1, 1, 0}, {1, 1, 1, 1})),
      mistake(
          "block_indices: shape must be [batch of block_counts, heads of block_counts, ceil(capacity / block_rows), "
          "ceil(capacity / block_keys)] = ",
          masked(16, {1, 1, 1}, {1, 1, 1, 0})),
      mistake("block_mask: must be block_counts and block_indices, and full_block_counts and full_block_indices or "
              "not (got 1 tensors)",
              [masked](SmallStep& s) {
                masked(16, {1, 1, 1}, {1, 1, 1, 1})(s);
                s.arguments.options.block_mask.pop_back();
              }),
  };
}

/// Of element types and scales.
inline std::vector<KvCacheMistake> mistakes_in_dtypes() {
  constexpr ErrorCode kType = ErrorCode::invalid_type;
  const auto caches_in = [](DType dtype) {
    return [=](SmallStep& s) {
      for (TensorView* cache : {&s.arguments.k_cache, &s.arguments.v_cache}) *cache = s.tensor({8, 4, 2, 8}, dtype);
    };
  };
  return {
      {"k_cache: dtype must be that of q and k, f32, or fp8_e4m3 (got f16)", caches_in(DType::f16), kType},
      {"k_cache: dtype must be that of q and k, f32, or fp8_e4m3 (got u8)", caches_in(DType::u8), kType},
      {"k_cache: dtype must be that of q and k, f32, or fp8_e4m3 (got i32)", caches_in(DType::i32), kType},
      {"v_cache: dtype must be f32 (got fp8_e4m3)",
       [](SmallStep& s) { s.arguments.v_cache = s.tensor({8, 4, 2, 8}, DType::fp8_e4m3); }, kType},
      {"k: dtype must be f32 (got bf16)", [](SmallStep& s) { s.arguments.k = s.tensor({2, 1, 2, 8}, DType::bf16); },
       kType, false},
      {"v: dtype must be f32 (got f16)", [](SmallStep& s) { s.arguments.v = s.tensor({2, 1, 2, 8}, DType::f16); },
       kType},
      {"block_table: dtype must be i32 (got i64)",
       [](SmallStep& s) { s.arguments.options.block_table = s.tensor({2, 3}, DType::i64); }, kType},
      {"k_scale: must be given with caches in fp8_e4m3 (got none)",
       [](SmallStep& s) { make_fp8(s, CacheScales::none); }},
      {"k_scale: requires caches in fp8_e4m3 (got f32)",
       [](SmallStep& s) { s.arguments.options.k_scale_value = s.arguments.options.v_scale_value = 1.0; }},
      {"v_scale: must be of k_scale's kind, tensor (got none)",
       [](SmallStep& s) {
         make_fp8(s, CacheScales::tensor);
         s.arguments.options.v_scale_value.reset();
       }},
      {"k_scale: must be positive and finite in f32 (got -1)",
       [](SmallStep& s) {
         make_fp8(s, CacheScales::tensor);
         s.arguments.options.k_scale_value = -1.0;
       }},
      {"cache_seqlens[1]: cache_seqlens + seqlen_k_new must be <= 12, the places that a row of block_table has (got "
       "12 + 1)",
       [](SmallStep& s) {
         make_fp8(s, CacheScales::token);  // whose scales are written with the caches
         s.arguments.options.cache_seqlens = s.lengths({5, 12});
       }},
  };
}

/// What is written and overlaps what is read, another output or itself.
inline std::vector<KvCacheMistake> mistakes_in_memory() {
  using Arguments = KvCacheArguments;
  constexpr ErrorCode kInvalid = ErrorCode::invalid_argument;
  const auto onto = [](TensorView Arguments::* view, TensorView Arguments::* other) {
    return [=](SmallStep& s) { (s.arguments.*view).data = (s.arguments.*other).data; };
  };
  return {
      {"out: must not overlap q in memory (", onto(&Arguments::out, &Arguments::q), kInvalid, false},
      {"out: must not overlap k in memory (", onto(&Arguments::out, &Arguments::k), kInvalid, false},
      {"out: must not overlap v_cache in memory (", onto(&Arguments::out, &Arguments::v_cache), kInvalid, false},
      {"out: must not overlap softmax_lse in memory (", onto(&Arguments::softmax_lse, &Arguments::out), kInvalid,
       false},
      {"softmax_lse: must not overlap k_cache in memory (", onto(&Arguments::softmax_lse, &Arguments::k_cache),
       kInvalid, false},
      {"k_cache: must not overlap q in memory (", onto(&Arguments::q, &Arguments::k_cache), kInvalid, false},
      {"k_cache: must not overlap k in memory (", onto(&Arguments::k, &Arguments::k_cache)},
      {"v_cache: must not overlap v in memory (", onto(&Arguments::v, &Arguments::v_cache)},
      {"k_cache: must not overlap v_cache in memory (", onto(&Arguments::v_cache, &Arguments::k_cache)},
      {"k_cache: must not overlap block_table in memory (",
       [](SmallStep& s) { s.arguments.options.block_table.data = s.arguments.k_cache.data; }},
      {"k_scale: must not overlap v_scale in memory (",
       [](SmallStep& s) {
         make_fp8(s, CacheScales::token);
         s.arguments.options.v_scale = s.arguments.options.k_scale;
       }},
      {"k_scale: an output must not be broadcast (got stride 0 in dimension 0 of size 8)",
       [](SmallStep& s) {
         make_fp8(s, CacheScales::token);
         s.arguments.options.k_scale.strides[0] = 0;
       }},
      {"k_cache: an output must not be broadcast (got stride 0 in dimension 0 of size 8)",
       [](SmallStep& s) { s.arguments.k_cache.strides[0] = 0; }},
      {"v_cache: elements of an output must not share memory (got shape [8, 4, 2, 8], strides [64, 8, 8, 1])",
       [](SmallStep& s) { s.arguments.v_cache.strides[1] = 8; }},
  };
}

/// Those that are found whatever memory the tensors are in.
inline std::vector<KvCacheMistake> mistakes_of_any_device() {
  std::vector<KvCacheMistake> all = mistakes_in_options();
  for (const auto& part : {mistakes_in_dtypes(), mistakes_in_memory(), mistakes_in_block_masks()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

inline std::vector<KvCacheMistake> all_mistakes() {
  std::vector<KvCacheMistake> all = mistakes_of_any_device();
  for (const auto& part : {mistakes_in_values(), mistakes_in_packed_rows()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Of append_kv with slots; the step's own places are left out.
inline AppendKvArguments append_by_slots(SmallStep& step, std::int64_t first, std::int64_t second,
                                         DType dtype = DType::i64) {
  AppendKvArguments append = step.append();
  append.options.block_table = append.options.cache_seqlens = {};
  append.options.slots = step.slots({first, second}, dtype);
  return append;
}

/// Runs `call`, which must throw what the mistake asks for.
template <typename Function>
void expect_mistake(const KvCacheMistake& mistake, const Function& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected: " << mistake.sentence;
  } catch (const Error& error) {
    const std::string got = error.what();
    EXPECT_EQ(mistake.sentence.ends_with(')') ? got : got.substr(0, mistake.sentence.size()), mistake.sentence);
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(mistake.code)) << got;
  }
}

}  // namespace tilewise::test
