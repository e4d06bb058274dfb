// What calls of the KV cache step describe to, and every message about a bad one. A refused call writes nothing.
#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "kv_cache_support.hpp"

namespace tilewise {
namespace {

using test::expect_error, test::expect_invalid, test::SmallStep;

TEST(KvCacheCall, DescribesToItsProblem) {
  SmallStep step;
  EXPECT_EQ(to_string(describe(step.arguments)),
            "kv_cache_attention batch_size=2 seqlen_q=1 append=1 num_heads_q=4 num_heads_k=2 head_dim=8 page_size=4 "
            "num_pages=8 max_pages_per_seq=3 cache_seqlens=1 softmax_lse=1");
  EXPECT_EQ(to_string(describe(step.append())),
            "append_kv batch_size=2 num_heads_k=2 head_dim=8 page_size=4 num_pages=8 max_pages_per_seq=3 "
            "cache_seqlens=1");
}

TEST(KvCacheCall, TextsParse) {
  for (const std::string text :
       {"kv_cache_attention dtype=bf16 cache_dtype=fp8_e4m3 batch_size=3 seqlen_q=1 append=1 num_heads_q=32 "
        "num_heads_k=8 head_dim=128 page_size=16 num_pages=64 max_pages_per_seq=8 scales=token cache_seqlens=1 "
        "rotary_dim=64 mask=causal num_splits=4",
        "kv_cache_attention dtype=bf16 seqlen_q=1 num_heads_q=16 num_heads_k=1 head_dim=576 head_dim_v=512 mla=1 "
        "capacity=100",
        "append_kv dtype=f16 layout=thd max_seqlen_k_new=7 num_heads_k=2 head_dim=64 slots=i64 page_size=3 "
        "num_pages=9"})
    EXPECT_EQ(to_string(parse_problem(text)), text);
  expect_invalid("slots: belongs to append_kv (got it in kv_cache_attention)", [] {
    KvCacheProblem p;
    p.seqlen_q = p.head_dim = p.head_dim_v = 1;
    p.slots = SlotKind::i32;
    validate(p);
  });
  expect_invalid("capacity: requires contiguous caches, no page_size (got a problem without)", [] {
    (void)parse_problem(
        "kv_cache_attention seqlen_q=1 head_dim=8 page_size=4 num_pages=2 max_pages_per_seq=1 capacity=4");
  });
  expect_invalid("problem: unknown key; did you mean page_size? (got 'page_siez')",
                 [] { (void)parse_problem("kv_cache_attention seqlen_q=1 head_dim=8 capacity=4 page_siez=4"); });
  expect_invalid("mask: belongs to kv_cache_attention (got it in append_kv)",
                 [] { (void)parse_problem("append_kv head_dim=8 capacity=4 mask=causal"); });
}

/// One change to a good call, and what is said to it.
struct Mistake {
  std::string sentence;
  std::function<void(SmallStep&)> make;
};

TensorView contiguous(SmallStep& step) {
  step.arguments.options.block_table = {};
  step.arguments.k_cache = step.tensor({2, 12, 2, 8}, DType::f32);
  step.arguments.v_cache = step.tensor({2, 12, 2, 8}, DType::f32);
  return step.arguments.k_cache;
}

std::vector<Mistake> mistakes() {
  return {
      {"block_table[0][1]: must be 0 to 7, a page (got 8)",
       [](SmallStep& s) { static_cast<std::int32_t*>(s.arguments.options.block_table.data)[1] = 8; }},
      {"block_table[1][0]: must be 0 to 7, a page (got -1)",
       [](SmallStep& s) { static_cast<std::int32_t*>(s.arguments.options.block_table.data)[3] = -1; }},
      {"cache_seqlens[0]: must be <= 12, the places that a row of block_table has (got 13)",
       [](SmallStep& s) { s.arguments.options.cache_seqlens = s.lengths({13, 0}); }},
      {"cache_seqlens[1]: cache_seqlens + seqlen_k_new must be <= 12, the places that a row of block_table has (got "
       "12 + 1)",
       [](SmallStep& s) { s.arguments.options.cache_seqlens = s.lengths({5, 12}); }},
      {"cache_seqlens: cache_seqlens + seqlen_k_new must be <= 12, the capacity of the cache (got 12 + 1)",
       [](SmallStep& s) {
         contiguous(s);
         s.arguments.options.cache_seqlens = {};
         s.arguments.options.cache_seqlen = 12;
       }},
      {"cache_seqlens: must be given with new keys, k (got none)",
       [](SmallStep& s) { s.arguments.options.cache_seqlens = {}; }},
      {"cache_seqlens: must be a tensor or a number (got both)",
       [](SmallStep& s) { s.arguments.options.cache_seqlen = 3; }},
      {"v: must be given with k (got k alone)", [](SmallStep& s) { s.arguments.v = {}; }},
      {"v: requires k (got v alone)", [](SmallStep& s) { s.arguments.k = {}; }},
      {"head_dim_v: must be given without a v_cache (got none)", [](SmallStep& s) { s.arguments.v_cache = {}; }},
      {"cache_batch_idx: excludes block_table (got both)",
       [](SmallStep& s) { s.arguments.options.cache_batch_idx = s.lengths({0, 1}); }},
      {"cache_leftpad: excludes block_table (got both)",
       [](SmallStep& s) { s.arguments.options.cache_leftpad = s.lengths({0, 0}); }},
      {"cache_batch_idx[1]: must differ from the others' while keys are appended (got 1, as sequence 0 has)",
       [](SmallStep& s) {
         contiguous(s);
         s.arguments.options.cache_batch_idx = s.lengths({1, 1});
       }},
      {"cache_batch_idx[0]: must be -1 (no cache) or 0 to 1, a sequence of the cache (got 2)",
       [](SmallStep& s) {
         contiguous(s);
         s.arguments.options.cache_batch_idx = s.lengths({2, 1});
       }},
      {"cache_leftpad[1]: must be 0 to 1, the sequence's length with its new keys (got 2)",
       [](SmallStep& s) {
         contiguous(s);
         s.arguments.options.cache_leftpad = s.lengths({5, 2});
       }},
      {"rotary_cos: must have more rows than every position, 6 for sequence 0 (got 5)",
       [](SmallStep& s) {
         s.arguments.options.rotary_cos = s.tensor({5, 4}, DType::f32);
         s.arguments.options.rotary_sin = s.tensor({5, 4}, DType::f32);
       }},
      {"rotary_offset: rotary_offset + rotary_dim must be <= head_dim = 8, and both >= 0 (got 2 + 8)",
       [](SmallStep& s) {
         s.arguments.options.rotary_cos = s.tensor({9, 4}, DType::f32);
         s.arguments.options.rotary_sin = s.tensor({9, 4}, DType::f32);
         s.arguments.options.rotary_offset = 2;
       }},
      {"rotary_cos: requires new keys, k (got none)",
       [](SmallStep& s) {
         s.arguments.options.rotary_cos = s.tensor({9, 4}, DType::f32);
         s.arguments.options.rotary_sin = s.tensor({9, 4}, DType::f32);
         s.arguments.k = s.arguments.v = {};
       }},
      {"num_splits: must be >= 0 (got -1)", [](SmallStep& s) { s.arguments.options.num_splits = -1; }},
      {"k_scale: requires caches in fp8_e4m3 (got f32)",
       [](SmallStep& s) { s.arguments.options.k_scale_value = s.arguments.options.v_scale_value = 1.0; }},
      {"out: must not overlap q in memory (", [](SmallStep& s) { s.arguments.out = s.arguments.q; }},
      {"k_cache: must not overlap k in memory (", [](SmallStep& s) { s.arguments.k.data = s.arguments.k_cache.data; }},
      {"k_cache: an output must not be broadcast (got stride 0 in dimension 0 of size 8)",
       [](SmallStep& s) { s.arguments.k_cache.strides[0] = 0; }},
      {"slots: belongs to append_kv (got it in kv_cache_attention)",
       [](SmallStep& s) {
         s.arguments.options.block_table = {};
         s.arguments.options.cache_seqlens = {};
         s.arguments.options.slots = s.lengths({0, 1});
         s.arguments.options.slots.rank = 2;
         s.arguments.options.slots.shape = {2, 1};
         s.arguments.options.slots.strides = {1, 1};
       }},
  };
}

/// Whether every byte of the caches is still what fill() made it.
void fill(SmallStep& step, int byte) {
  for (const TensorView* view : {&step.arguments.k_cache, &step.arguments.v_cache})
    std::memset(view->data, byte, static_cast<std::size_t>(view->numel()) * size_of(view->dtype));
}
bool is_filled(const SmallStep& step, int byte) {
  for (const TensorView* view : {&step.arguments.k_cache, &step.arguments.v_cache}) {
    const auto* bytes = static_cast<const unsigned char*>(view->data);
    const auto size = static_cast<std::size_t>(view->numel()) * size_of(view->dtype);
    if (view->defined() && std::any_of(bytes, bytes + size, [byte](unsigned char b) { return b != byte; }))
      return false;
  }
  return true;
}

TEST(KvCacheCall, RefusesBadOnesBeforeAnythingIsWritten) {
  for (const Mistake& mistake : mistakes()) {
    SmallStep step;
    mistake.make(step);
    if (step.arguments.v_cache.defined() && step.arguments.k_cache.strides[0] != 0) fill(step, 0x3E);
    try {
      step.run();
      ADD_FAILURE() << "no error; expected: " << mistake.sentence;
    } catch (const Error& error) {
      const std::string got = error.what();
      EXPECT_EQ(got.substr(0, mistake.sentence.size()), mistake.sentence);
      if (mistake.sentence.back() == ')') {
        EXPECT_EQ(got, mistake.sentence);
      }
    }
    if (step.arguments.v_cache.defined() && step.arguments.k_cache.strides[0] != 0) {
      EXPECT_TRUE(is_filled(step, 0x3E)) << mistake.sentence;
    }
  }
}

TEST(KvCacheCall, RefusesDtypes) {
  const auto refused = [](DType dtype, DType cache, const std::string& sentence) {
    SmallStep step(dtype, cache);
    expect_error(ErrorCode::invalid_type, sentence, [&] { step.run(); });
  };
  refused(DType::f64, DType::f64, "q: dtype must be f32, bf16 or f16 (got f64)");
  refused(DType::bf16, DType::f16, "k_cache: dtype must be that of q and k, bf16, or fp8_e4m3 (got f16)");
  refused(DType::f32, DType::u8, "k_cache: dtype must be that of q and k, f32, or fp8_e4m3 (got u8)");
  SmallStep keys;
  keys.arguments.k = keys.tensor({2, 1, 2, 8}, DType::bf16);
  expect_error(ErrorCode::invalid_type, "k: dtype must be f32 (got bf16)", [&] { keys.run(); });
  SmallStep fp8(DType::f32, DType::fp8_e4m3);
  expect_invalid("k_scale: must be given with caches in fp8_e4m3 (got none)", [&] { fp8.run(); });
  fp8.arguments.options.k_scale_value = 0.0;
  expect_invalid("k_scale: must be positive and finite in f32 (got 0)", [&] { fp8.run(); });
  fp8.arguments.options.k_scale_value = 1.0;
  fp8.arguments.options.v_scale = fp8.tensor({2}, DType::f32);
  expect_invalid("v_scale: must be of k_scale's kind, tensor (got head)", [&] { fp8.run(); });
}

TEST(KvCacheCall, RefusesSlotsOutOfRange) {
  SmallStep step;
  AppendKvArguments append = step.append();
  append.options.block_table = append.options.cache_seqlens = {};
  append.options.slots = step.lengths({31, 32});
  append.options.slots.rank = 2;
  append.options.slots.shape = {2, 1};
  append.options.slots.strides = {1, 1};
  expect_invalid(
      "slots: must be -1 (skipped) or 0 to 31, page * page_size + place (got 32 for new key 0 of sequence 1)",
      [&] { append_kv(append); });
  append.options.cache_seqlens = step.lengths({0, 0});
  expect_invalid("cache_seqlens: excludes slots (got both)", [&] { append_kv(append); });
}

TEST(KvCacheCall, APlanServesOtherLengthsTablesAndNumbers) {
  SmallStep step;
  const Plan made = plan(describe(step.arguments));
  step.arguments.options.cache_seqlens = step.lengths({-1, 3});
  tilewise::run(made, step.arguments);
  step.arguments.options.cache_seqlens = step.lengths({5, 12});
  EXPECT_THROW(tilewise::run(made, step.arguments), Error) << "values are checked on every run";
}

TEST(KvCacheCall, GpusRefuseForNow) {
  const Explanation walk = explain(parse_problem("kv_cache_attention device=cuda seqlen_q=1 head_dim=64 capacity=64"));
  for (const ExplainRow& row : walk.rows) EXPECT_FALSE(row.accepted) << row.implementation;
}

}  // namespace
}  // namespace tilewise
