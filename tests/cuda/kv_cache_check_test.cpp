// TILEWISE_CHECK=1 for the KV cache step: lengths, tables and slots in a GPU's memory are checked as the CPU's are, and
// nothing is launched where they lie.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "../support/gpu_call.hpp"
#include "../support/kv_cache_mistakes.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "fake_driver.hpp"
#include "operations/kv_cache/kv_cache.hpp"

namespace tilewise {
namespace {

using operations::KvCache;
using test::error_of, test::state, test::stream;

constexpr Device kGpu{DeviceType::cuda, 0};

class KvCacheChecks : public testing::Test {
 protected:
  void SetUp() override {
    state() = {};
    setenv("TILEWISE_CHECK", "1", 1);
  }
  void TearDown() override { unsetenv("TILEWISE_CHECK"); }

  template <typename Arguments>
  static void check(const Arguments& arguments) {
    KvCache::check_device_values(KvCache::Call(arguments), describe(arguments), stream(3));
  }
};

TEST_F(KvCacheChecks, FindEveryMistake) {
  for (const auto& mistakes : {test::mistakes_in_values(), test::mistakes_in_packed_rows()}) {
    for (const test::KvCacheMistake& mistake : mistakes) {
      test::SmallStep step(DType::f32, DType::none, kGpu);
      mistake.make(step);
      test::expect_mistake(mistake, [&] { check(step.arguments); });
      if (mistake.appending_alone) test::expect_mistake(mistake, [&] { check(step.append()); });
    }
  }
  for (const DType dtype : {DType::i32, DType::i64}) {
    test::SmallStep step(DType::f32, DType::none, kGpu);
    EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { check(test::append_by_slots(step, 31, 32, dtype)); }),
              "slots: must be -1 (skipped) or 0 to 31, page * page_size + place (got 32 for new key 0 of sequence 1)");
    check(test::append_by_slots(step, -1, 31, dtype));
  }
}

/// What describes the call alone is found without being asked for.
TEST_F(KvCacheChecks, OtherMistakesAreFoundAnyway) {
  unsetenv("TILEWISE_CHECK");
  for (const test::KvCacheMistake& mistake : test::mistakes_of_any_device()) {
    if (mistake.sentence.starts_with("cache_seqlens[") || mistake.sentence.starts_with("cache_seqlens: must be <=") ||
        mistake.sentence.starts_with("cache_seqlens: cache_seqlens + "))
      continue;  // what a length leads to is looked at on the CPU, and where it is asked for
    test::SmallStep step(DType::f32, DType::none, kGpu);
    mistake.make(step);
    test::expect_mistake(mistake, [&] { (void)describe(step.arguments); });
  }
}

/// A table whose rows lie the other way round, as CuPy flips one.
TEST_F(KvCacheChecks, FollowNegativeStrides) {
  test::SmallStep step(DType::f32, DType::none, kGpu);
  TensorView& table = step.arguments.options.block_table;
  table.data = static_cast<std::int32_t*>(table.data) + 3;
  table.strides[0] = -3;
  step.arguments.options.cache_seqlens = step.lengths({0, 5});
  check(step.arguments);
  test::table_entry(step, -2) = 8;
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { check(step.arguments); }),
            "block_table[1][1]: must be 0 to 7, a page (got 8)");
}

TEST_F(KvCacheChecks, ReadNothingUnlessAsked) {
  test::SmallStep step(DType::f32, DType::none, kGpu);
  test::table_entry(step, 1) = 8;
  unsetenv("TILEWISE_CHECK");
  check(step.arguments);
  setenv("TILEWISE_CHECK", "1", 1);
  state().capture_status = 1;
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { check(step.arguments); }),
            "TILEWISE_CHECK: must not be 1 while a stream is captured, since lengths can't be read then");
}

TEST_F(KvCacheChecks, ComeBeforeAnyLaunch) {
  test::SmallStep step(DType::bf16, DType::none, kGpu);
  test::MadeUpKernels kernels;
  kernels.add(describe(step.arguments), backends::cuda_runtime(0), {});
  kernels.load();
  const std::int32_t good = test::table_entry(step, 1);
  test::table_entry(step, 1) = 8;
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { step.run(); }),
            "block_table[0][1]: must be 0 to 7, a page (got 8)");
  EXPECT_TRUE(state().launches.empty());
  test::table_entry(step, 1) = good;
  step.run();
  EXPECT_FALSE(state().launches.empty());
}

}  // namespace
}  // namespace tilewise
