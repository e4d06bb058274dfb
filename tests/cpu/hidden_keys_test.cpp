// Keys of a cache that mask_mod or a block mask hides are not read: they lie in memory that nobody may touch.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "tilewise/kv_cache.hpp"

namespace tilewise::test {
namespace {

constexpr std::int64_t kCapacity = 4096, kDim = 64, kHiddenFrom = 512, kHiddenTo = 3584;
constexpr std::size_t kRowBytes = kDim * sizeof(float);
constexpr std::int64_t kBlock = 512, kBlocks = kCapacity / kBlock;  // of both sides

/// What hides keys, one way or another.
struct Hiding {
  const char* mask_mod;
  bool by_blocks;
};

/// A cache of one sequence and head, whose hidden keys can be locked away.
class Cache {
 public:
  Cache()
      : memory_(::mmap(nullptr, kCapacity * kRowBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    auto* const numbers = static_cast<float*>(memory_);
    for (std::int64_t i = 0; i < kCapacity * kDim; ++i) numbers[i] = std::sin(static_cast<float>(i % 7919));
  }
  Cache(const Cache&) = delete;
  Cache(Cache&&) = delete;
  Cache& operator=(const Cache&) = delete;
  Cache& operator=(Cache&&) = delete;
  ~Cache() { ::munmap(memory_, kCapacity * kRowBytes); }

  void lock(bool locked) {
    ASSERT_EQ(::mprotect(static_cast<char*>(memory_) + kHiddenFrom * kRowBytes, (kHiddenTo - kHiddenFrom) * kRowBytes,
                         locked ? PROT_NONE : PROT_READ | PROT_WRITE),
              0);
  }
  [[nodiscard]] TensorView view() const { return {memory_, DType::f32, {1, kCapacity, 1, kDim}}; }

 private:
  void* memory_;
};

std::vector<float> attended(const Cache& k, const Cache& v, std::int64_t queries, const Hiding& hiding,
                            const std::string& implementation) {
  const auto numbers = static_cast<std::size_t>(queries * kDim);
  std::vector<float> q(numbers), out(numbers);
  for (std::size_t i = 0; i < numbers; ++i) q[i] = std::cos(static_cast<float>(i));
  KvCacheArguments arguments;
  arguments.q = TensorView(q.data(), DType::f32, {1, queries, 1, kDim});
  arguments.k_cache = k.view();
  arguments.v_cache = v.view();
  arguments.out = TensorView(out.data(), DType::f32, {1, queries, 1, kDim});
  arguments.options.mask_mod = hiding.mask_mod;
  std::vector<std::int32_t> counts(kBlocks, 2), indices(kBlocks * kBlocks, 0);
  for (std::int64_t row = 0; row < kBlocks; ++row) indices[static_cast<std::size_t>(row * kBlocks + 1)] = kBlocks - 1;
  if (hiding.by_blocks) {
    arguments.options.block_mask = {TensorView(counts.data(), DType::i32, {1, 1, kBlocks}),
                                    TensorView(indices.data(), DType::i32, {1, 1, kBlocks, kBlocks})};
    arguments.options.block_rows = arguments.options.block_keys = kBlock;
  }
  kv_cache_attention(arguments, {implementation});
  return out;
}

class HiddenKeys : public testing::TestWithParam<std::int64_t> {
 protected:
  static void check(const Hiding& hiding) {
    Cache k, v;
    const std::vector<float> expected = attended(k, v, GetParam(), hiding, "reference");
    k.lock(true), v.lock(true);
    const std::vector<float> out = attended(k, v, GetParam(), hiding, "");
    k.lock(false), v.lock(false);
    for (std::size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-5) << i;
  }
};

TEST_P(HiddenKeys, OfAFunctionAreNotRead) { check({"(kv_idx < 512) | (kv_idx >= 3584)", false}); }

TEST_P(HiddenKeys, OfABlockMaskAreNotRead) { check({"kv_idx % 3 != 1", true}); }

INSTANTIATE_TEST_SUITE_P(Queries, HiddenKeys, testing::Values(1, 3, 70));

}  // namespace
}  // namespace tilewise::test
