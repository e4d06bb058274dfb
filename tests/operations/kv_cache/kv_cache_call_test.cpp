// What calls of the KV cache step describe to, and every message about a bad one. A refused call writes nothing.
#include <cstring>
#include <string>

#include "../../core/support.hpp"
#include "../../support/kv_cache_mistakes.hpp"

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

/// A call like the last one in all but the size of its mask's blocks is no call like it.
TEST(KvCacheCall, RemembersNoBlockMask) {
  SmallStep step;
  KvCacheOptions& o = step.arguments.options;
  o.block_mask = {step.tensor({1, 1, 1}, DType::i32), step.tensor({1, 1, 1, 1}, DType::i32)};
  o.block_rows = o.block_keys = 16;
  EXPECT_NE(to_string(describe(step.arguments)).find("block_mask=16x16[1,1]"), std::string::npos);
  step.run();
  o.block_rows = 8;
  expect_invalid("block_rows: must be a multiple of 16 from 16 to 2^30 (got 8)", [&] { step.run(); });
  o.block_rows = 16;
  expect_invalid("block_mask: belongs to kv_cache_attention (got it in append_kv)", [&] { append_kv(step.append()); });
}

/// Lists that no block has are errors where values are checked.
TEST(KvCacheCall, ChecksWhatABlockMaskLists) {
  SmallStep step;
  KvCacheOptions& o = step.arguments.options;
  o.block_mask = {step.tensor({1, 1, 1}, DType::i32), step.tensor({1, 1, 1, 1}, DType::i32)};
  static_cast<std::int32_t*>(o.block_mask[0].data)[0] = 2;
  step.run();
  const test::ScopedEnvironment check("TILEWISE_CHECK", "1");
  expect_invalid("block_counts[0, 0, 0]: must be 0 to 1, the columns of blocks (got 2)", [&] { step.run(); });
}

/// Every byte that the call could reach is what it was.
TEST(KvCacheCall, RefusesBadOnesBeforeAnythingIsWritten) {
  for (const test::KvCacheMistake& mistake : test::all_mistakes()) {
    for (const char* implementation : {"", "reference"}) {
      SmallStep step;
      mistake.make(step);
      const auto before = step.memory();
      test::expect_mistake(mistake, [&] { step.run({implementation}); });
      EXPECT_TRUE(step.memory() == before) << mistake.sentence;
      if (!mistake.appending_alone) continue;
      test::expect_mistake(mistake, [&] { append_kv(step.append(), {implementation}); });
      EXPECT_TRUE(step.memory() == before) << mistake.sentence;
    }
  }
  SmallStep good;
  const auto before = good.memory();
  good.run();
  EXPECT_FALSE(good.memory() == before) << "the call that the mistakes are made in writes";
}

/// The cache's own elements, and out, may overlap nothing; caches that interleave in one storage share none.
TEST(KvCacheCall, CachesInterleave) {
  SmallStep apart, together;
  const TensorView both = together.tensor({8, 2, 4, 2, 8}, DType::f32);
  KvCacheArguments& a = together.arguments;
  a.k_cache = {both.data, DType::f32, {8, 4, 2, 8}, {128, 16, 8, 1}};
  a.v_cache = {static_cast<float*>(both.data) + 64, DType::f32, {8, 4, 2, 8}, {128, 16, 8, 1}};
  together.run();
  apart.run();
  EXPECT_EQ(std::memcmp(a.out.data, apart.arguments.out.data, 64 * sizeof(float)), 0);
  // Appended at page 6, place 1, and at page 1, place 0.
  for (const auto& [page, place] : {std::pair{6, 1}, {1, 0}})
    for (const TensorView* cache : {&a.k_cache, &a.v_cache})
      EXPECT_NE(static_cast<float*>(cache->data)[page * 128 + place * 16], 0.0f);
}

TEST(KvCacheCall, RefusesDtypes) {
  const auto refused = [](DType dtype, DType cache, const std::string& sentence) {
    SmallStep step(dtype, cache);
    expect_error(ErrorCode::invalid_type, sentence, [&] { step.run(); });
  };
  refused(DType::f64, DType::f64, "q: dtype must be f32, bf16 or f16 (got f64)");
  refused(DType::bf16, DType::f16, "k_cache: dtype must be that of q and k, bf16, or fp8_e4m3 (got f16)");
  refused(DType::f32, DType::u8, "k_cache: dtype must be that of q and k, f32, or fp8_e4m3 (got u8)");
  SmallStep fp8(DType::f32, DType::fp8_e4m3);
  fp8.arguments.options.k_scale_value = 0.0;
  expect_invalid("k_scale: must be positive and finite in f32 (got 0)", [&] { fp8.run(); });
  fp8.arguments.options.k_scale_value = 1.0;
  fp8.arguments.options.v_scale = fp8.tensor({2}, DType::f32);
  expect_invalid("v_scale: must be of k_scale's kind, tensor (got head)", [&] { fp8.run(); });
}

TEST(KvCacheCall, RefusesSlotsOutOfRange) {
  SmallStep step;
  const auto refused = [&](AppendKvArguments append, const std::string& sentence) {
    const auto before = step.memory();
    expect_invalid(sentence, [&] { append_kv(append); });
    EXPECT_TRUE(step.memory() == before) << sentence;
  };
  const std::string range = "slots: must be -1 (skipped) or 0 to 31, page * page_size + place (got ";
  for (const DType dtype : {DType::i32, DType::i64}) {
    refused(test::append_by_slots(step, 31, 32, dtype), range + "32 for new key 0 of sequence 1)");
    refused(test::append_by_slots(step, -2, 3, dtype), range + "-2 for new key 0 of sequence 0)");
  }
  refused(test::append_by_slots(step, 3, 1LL << 32), range + "4294967296 for new key 0 of sequence 1)");
  AppendKvArguments append = test::append_by_slots(step, 0, 1);
  append.options.cache_seqlens = step.lengths({0, 0});
  refused(append, "cache_seqlens: excludes slots (got both)");
  append = test::append_by_slots(step, 0, 1);
  append.options.block_table = step.arguments.options.block_table;
  refused(append, "block_table: excludes slots (got both)");
  append = test::append_by_slots(step, 0, 1);
  append.options.rotary_cos = append.options.rotary_sin = step.tensor({9, 4}, DType::f32);
  refused(append, "rotary_seqlens: must be given with slots and rotary_cos, since there are no cache_seqlens");
  append = test::append_by_slots(step, 0, 1);
  append.options.slots = step.lengths({0, 1});
  refused(append, "slots: shape must be [batch_size, seqlen_k_new] = [2, 1] (got [2])");
  append = test::append_by_slots(step, 0, 1, DType::f32);
  expect_error(ErrorCode::invalid_type, "slots: dtype must be i32 or i64 (got f32)", [&] { append_kv(append); });
}

TEST(KvCacheCall, APlanServesOtherLengthsTablesAndNumbers) {
  SmallStep step;
  const Plan made = plan(describe(step.arguments));
  step.arguments.options.cache_seqlens = step.lengths({-1, 3});
  tilewise::run(made, step.arguments);
  step.arguments.options.cache_seqlens = step.lengths({5, 12});
  EXPECT_THROW(tilewise::run(made, step.arguments), Error) << "values are checked on every run";
}

}  // namespace
}  // namespace tilewise
