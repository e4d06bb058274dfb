// The KV cache step over C: as C++ does it, and its own messages.
#include <cstring>

#include "kv_cache_support.hpp"
#include "tilewise/tilewise.h"

namespace tilewise {
namespace {

using test::SmallStep;

/// The tensors of a call as C sees them; the step must outlive them.
struct CTensors {
  explicit CTensors(const SmallStep& step) {
    const KvCacheArguments& a = step.arguments;
    const TensorView* views[] = {&a.q, &a.k_cache, &a.v_cache, &a.k, &a.v, &a.out, &a.softmax_lse};
    for (int n = 0; n < 7; ++n) to_dlpack(*views[n], &all[n]);
    to_dlpack(a.options.cache_seqlens, &cache_seqlens);
    to_dlpack(a.options.block_table, &block_table);
    EXPECT_EQ(tilewise_kv_cache_options_init(&options, sizeof options), TILEWISE_OK);
    options.cache_seqlens = &cache_seqlens;
    options.block_table = &block_table;
    tensors = {&all[0], &all[1], &all[2], &all[3], &all[4], &all[5], &all[6]};
  }

  DLTensor all[7], cache_seqlens, block_table;
  tilewise_kv_cache_options options;
  tilewise_kv_cache_tensors tensors;
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
}

}  // namespace
}  // namespace tilewise
