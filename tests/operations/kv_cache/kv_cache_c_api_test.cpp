// The KV cache step over C: as C++ does it, and its own messages.
#include <cstring>

#include "../../support/kv_cache_mistakes.hpp"
#include "tilewise/tilewise.h"

namespace tilewise {
namespace {

using test::SmallStep;

/// The tensors of a call as C sees them; the step must outlive them.
struct CTensors {
  explicit CTensors(const SmallStep& step) {
    const KvCacheArguments& a = step.arguments;
    tensors = {given(a.q), given(a.k_cache), given(a.v_cache),    given(a.k),
               given(a.v), given(a.out),     given(a.softmax_lse)};
    EXPECT_EQ(tilewise_kv_cache_options_init(&options, sizeof options), TILEWISE_OK);
    const KvCacheOptions& o = a.options;
    options.rotary_cos = given(o.rotary_cos);
    options.rotary_sin = given(o.rotary_sin);
    options.rotary_seqlens = given(o.rotary_seqlens);
    options.rotary_offset = o.rotary_offset;
    options.mask = static_cast<std::int32_t>(o.mask);
    options.cache_seqlens = given(o.cache_seqlens);
    options.cache_seqlen = o.cache_seqlen.value_or(-1);
    options.cache_batch_idx = given(o.cache_batch_idx);
    options.cache_leftpad = given(o.cache_leftpad);
    options.block_table = given(o.block_table);
    options.slots = given(o.slots);
    options.cu_seqlens_q = given(o.cu_seqlens_q);
    options.cu_seqlens_k_new = given(o.cu_seqlens_k_new);
    options.max_seqlen_q = o.max_seqlen_q.value_or(-1);
    options.head_dim_v = o.head_dim_v.value_or(-1);
    options.k_scale = given(o.k_scale);
    options.v_scale = given(o.v_scale);
    options.k_scale_value = o.k_scale_value.value_or(0.0);
    options.v_scale_value = o.v_scale_value.value_or(0.0);
    options.window_left = o.window_left;
    options.window_right = o.window_right;
    options.num_splits = o.num_splits;
    for (const TensorView& view : o.block_mask) lists_.push_back(given(view));
    options.block_mask = lists_.data();
    options.block_mask_count = static_cast<std::int64_t>(lists_.size());
    options.block_rows = o.block_rows;
    options.block_keys = o.block_keys;
  }

  tilewise_kv_cache_options options;
  tilewise_kv_cache_tensors tensors;

 private:
  const DLTensor* given(const TensorView& view) {
    if (!view.defined()) return nullptr;
    to_dlpack(view, &all_.emplace_back());
    return &all_.back();
  }

  std::deque<DLTensor> all_;
  std::vector<const DLTensor*> lists_;
};

void fill(const SmallStep& step) {
  float next = 0.0f;
  const KvCacheArguments& a = step.arguments;
  for (const TensorView* view : {&a.q, &a.k, &a.v, &a.k_cache, &a.v_cache})
    for (std::int64_t n = 0; n < view->numel(); ++n) static_cast<float*>(view->data)[n] = 0.01f * (next += 1.0f);
}

bool same(const TensorView& a, const TensorView& b) {
  return std::memcmp(a.data, b.data, static_cast<std::size_t>(a.numel()) * size_of(a.dtype)) == 0;
}

TEST(KvCacheC, ComputesWhatCppDoes) {
  SmallStep expected, got, planned;
  for (const SmallStep* step : {&expected, &got, &planned}) fill(*step);
  expected.run();
  const CTensors c(got), p(planned);
  ASSERT_EQ(tilewise_kv_cache_attention(&c.tensors, &c.options), TILEWISE_OK) << tilewise_last_error();
  tilewise_plan* plan = nullptr;
  ASSERT_EQ(tilewise_plan_kv_cache_attention(&p.tensors, &p.options, &plan), TILEWISE_OK) << tilewise_last_error();
  ASSERT_EQ(tilewise_plan_run_kv_cache_attention(plan, &p.tensors, &p.options, nullptr, nullptr), TILEWISE_OK);
  tilewise_plan_destroy(plan);
  for (const SmallStep* step : {&got, &planned}) {
    EXPECT_TRUE(same(step->arguments.out, expected.arguments.out));
    EXPECT_TRUE(same(step->arguments.k_cache, expected.arguments.k_cache));
  }
}

TEST(KvCacheC, TakesABlockMask) {
  SmallStep whole, expected, got;
  for (SmallStep* step : {&whole, &expected, &got}) {
    fill(*step);
    if (step == &whole) continue;
    KvCacheOptions& o = step->arguments.options;
    o.block_mask = {step->tensor({2, 1, 1}, DType::i32), step->tensor({2, 1, 1, 1}, DType::i32)};  // all hidden
    o.block_rows = o.block_keys = 16;
    static_cast<std::int32_t*>(o.block_mask[0].data)[0] = 1;  // but for the first sequence
  }
  whole.run();
  expected.run();
  EXPECT_FALSE(same(whole.arguments.out, expected.arguments.out));
  const CTensors c(got);
  ASSERT_EQ(tilewise_kv_cache_attention(&c.tensors, &c.options), TILEWISE_OK) << tilewise_last_error();
  EXPECT_TRUE(same(got.arguments.out, expected.arguments.out));
}

TEST(KvCacheC, AppendsAlone) {
  SmallStep expected, got, planned;
  for (const SmallStep* step : {&expected, &got, &planned}) fill(*step);
  append_kv(expected.append());
  CTensors c(got), p(planned);
  EXPECT_EQ(tilewise_append_kv(&c.tensors, &c.options), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "q: belongs to kv_cache_attention (got it in append_kv)");
  for (CTensors* own : {&c, &p}) own->tensors.q = own->tensors.out = own->tensors.softmax_lse = nullptr;
  ASSERT_EQ(tilewise_append_kv(&c.tensors, &c.options), TILEWISE_OK) << tilewise_last_error();
  tilewise_plan* plan = nullptr;
  ASSERT_EQ(tilewise_plan_append_kv(&p.tensors, &p.options, &plan), TILEWISE_OK) << tilewise_last_error();
  ASSERT_EQ(tilewise_plan_run_append_kv(plan, &p.tensors, &p.options, nullptr, nullptr), TILEWISE_OK);
  tilewise_plan_destroy(plan);
  EXPECT_TRUE(same(got.arguments.k_cache, expected.arguments.k_cache));
  EXPECT_TRUE(same(planned.arguments.v_cache, expected.arguments.v_cache));
}

/// As C++ says it, and nothing is written.
TEST(KvCacheC, RefusesWhatCppRefuses) {
  for (const test::KvCacheMistake& mistake : test::all_mistakes()) {
    SmallStep step;
    mistake.make(step);
    const auto before = step.memory();
    CTensors c(step);
    const auto check = [&](tilewise_status status) {
      EXPECT_EQ(status == TILEWISE_INVALID_TYPE, mistake.code == ErrorCode::invalid_type) << tilewise_last_error();
      if (status != TILEWISE_OK) throw Error(mistake.code, tilewise_last_error());
    };
    test::expect_mistake(mistake, [&] { check(tilewise_kv_cache_attention(&c.tensors, &c.options)); });
    EXPECT_TRUE(step.memory() == before) << mistake.sentence;
    if (!mistake.appending_alone) continue;
    c.tensors.q = c.tensors.out = c.tensors.softmax_lse = nullptr;
    test::expect_mistake(mistake, [&] { check(tilewise_append_kv(&c.tensors, &c.options)); });
    EXPECT_TRUE(step.memory() == before) << mistake.sentence;
  }
}

TEST(KvCacheC, SaysWhatIsWrong) {
  EXPECT_EQ(tilewise_kv_cache_attention(nullptr, nullptr), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "tensors: must not be null");
  tilewise_kv_cache_options options;
  EXPECT_EQ(tilewise_kv_cache_options_init(&options, 3), TILEWISE_INVALID_ARGUMENT);
  SmallStep step;
  CTensors c(step);
  c.options.num_splits = -1;
  EXPECT_EQ(tilewise_kv_cache_attention(&c.tensors, &c.options), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "num_splits: must be >= 0 (got -1)");
  c.options.num_splits = 0;
  c.options.mask = 7;
  EXPECT_EQ(tilewise_kv_cache_attention(&c.tensors, &c.options), TILEWISE_INVALID_ARGUMENT);
  c.options.mask = 0;
  c.tensors.k_cache = nullptr;
  EXPECT_EQ(tilewise_kv_cache_attention(&c.tensors, &c.options), TILEWISE_INVALID_ARGUMENT);
  EXPECT_STREQ(tilewise_last_error(), "k_cache: must be given");
}

}  // namespace
}  // namespace tilewise
