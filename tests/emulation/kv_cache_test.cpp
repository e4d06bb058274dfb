// The KV cache step's portable kernels under emulation against the reference: pages of any size, every kind of scale,
// packed queries that mix prefill and decode, splits, rotation, and appending alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "../support/emulated_machines.hpp"
#include "../support/expect_passed.hpp"
#include "../support/kv_cache_step.hpp"
#include "core/implementation.hpp"
#include "core/message.hpp"
#include "core/select.hpp"
#include "device/common/float16.h"
#include "device/common/float8.h"
#include "tilewise/kv_cache.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

class EmulatedKvCache : public testing::TestWithParam<std::string> {
 protected:
  /// Seeds differ in lengths, pages, strides and alignment.
  static void check(const std::string& problem, std::uint64_t seeds = 2) {
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      expect_passed(parse_problem(problem), GetParam(), seed);
    }
  }
};

TEST_P(EmulatedKvCache, ContiguousCaches) {
  check(
      "kv_cache_attention dtype=bf16 batch_size=3 num_heads_q=4 num_heads_k=2 head_dim=64 capacity=90 seqlen_q=1 "
      "cache_seqlens=1 cache_batch_idx=1 batch_size_cache=4 cache_leftpad=1");
  check(
      "kv_cache_attention dtype=f16 batch_size=2 num_heads_q=2 head_dim=40 head_dim_v=24 capacity=70 seqlen_q=5 "
      "cache_seqlens=1 mask=causal softmax_lse=1");
}

TEST_P(EmulatedKvCache, PagesOfAnySize) {
  for (const char* pages : {"page_size=1 num_pages=100 max_pages_per_seq=40",
                            "page_size=3 num_pages=40 "
                            "max_pages_per_seq=30",
                            "page_size=256 num_pages=3 max_pages_per_seq=1"}) {
    check(
        core::concat("kv_cache_attention dtype=bf16 batch_size=2 num_heads_q=4 num_heads_k=2 head_dim=64 seqlen_q=2 "
                     "cache_seqlens=1 mask=causal window_left=20 ",
                     pages));
  }
}

/// A sequence of no keys has a cache, if an empty one: its rows see the sink, and one without a cache sees nothing.
TEST_P(EmulatedKvCache, NoPagesAtAll) {
  check(
      "kv_cache_attention dtype=bf16 batch_size=20 seqlen_q=2 num_heads_q=2 head_dim=32 page_size=16 num_pages=0 "
      "max_pages_per_seq=0 cache_seqlens=1 sink=1 softmax_lse=1");
}

/// New keys reach the cache though no block of the attention has a row.
TEST_P(EmulatedKvCache, AppendsWithoutQueries) {
  check(
      "kv_cache_attention dtype=bf16 batch_size=2 seqlen_q=0 append=1 seqlen_k_new=1 num_heads_q=4 num_heads_k=2 "
      "head_dim=64 page_size=16 num_pages=24 max_pages_per_seq=12");
  check(
      "kv_cache_attention dtype=f16 layout=thd batch_size=2 max_seqlen_q=0 total_q=0 append=1 max_seqlen_k_new=3 "
      "total_k_new=5 num_heads_q=2 head_dim=64 capacity=50 cache_seqlens=1");
}

TEST_P(EmulatedKvCache, EveryKindOfScale) {
  for (const char* scales : {"tensor", "head", "batch_head", "token"}) {
    check(
        core::concat("kv_cache_attention dtype=bf16 cache_dtype=fp8_e4m3 batch_size=2 num_heads_q=4 num_heads_k=2 "
                     "head_dim=64 page_size=16 num_pages=20 max_pages_per_seq=6 seqlen_q=1 cache_seqlens=1 append=1 "
                     "seqlen_k_new=3 scales=",
                     scales));
  }
  check(
      "kv_cache_attention dtype=f16 cache_dtype=fp8_e4m3 scales=token batch_size=2 num_heads_q=2 head_dim=128 "
      "capacity=80 seqlen_q=40 cache_seqlens=1 mask=causal");
  check(
      "kv_cache_attention dtype=f16 cache_dtype=fp8_e4m3 scales=token batch_size=2 num_heads_q=2 head_dim=72 "
      "capacity=80 seqlen_q=3 cache_seqlens=1 softcap=10 alibi_slopes=[h] sink=1");
}

/// 16 rows or less, whose products widen what they read (sm80): head dims of one matrix load and of several, values
/// that blocks share, queries that turn, parts of the keys, and rows that are no queries.
TEST_P(EmulatedKvCache, DecodesFromFp8) {
  const std::string paged =
      "kv_cache_attention cache_dtype=fp8_e4m3 cache_seqlens=1 batch_size=2 page_size=16 num_pages=20 "
      "max_pages_per_seq=7 seqlen_q=";
  for (const char* rest :
       {"1 dtype=bf16 scales=head num_heads_q=4 num_heads_k=2 head_dim=128 append=1 seqlen_k_new=1",
        "2 dtype=f16 scales=token num_heads_q=8 num_heads_k=1 head_dim=32 append=1 seqlen_k_new=2 "
        "mask=causal",
        "1 dtype=bf16 scales=tensor num_heads_q=2 head_dim=192 head_dim_v=64 num_splits=3 softmax_lse=1",
        "1 dtype=bf16 scales=batch_head num_heads_q=16 num_heads_k=1 head_dim=256 softcap=20 sink=1",
        "1 dtype=f16 scales=head num_heads_q=3 num_heads_k=1 head_dim=64 rotary=f32 rotary_dim=64 append=1 "
        "seqlen_k_new=1 mask=causal window_left=40 alibi_slopes=[h]",
        "1 dtype=bf16 scales=token mla=1 num_heads_q=16 num_heads_k=1 head_dim=576 head_dim_v=512"}) {
    check(paged + rest, 3);
    const std::string schedule = plan(parse_problem(paged + rest), {GetParam()}).schedule();
    EXPECT_EQ(schedule.find("widened in products") != std::string::npos, GetParam() == "emulation.sm80") << schedule;
  }
  check(
      "kv_cache_attention dtype=bf16 cache_dtype=fp8_e4m3 scales=head layout=thd batch_size=3 total_q=9 max_seqlen_q=4 "
      "num_heads_q=4 num_heads_k=1 head_dim=64 capacity=90 cache_seqlens=1 cache_leftpad=1 mask=causal");
}

/// Up to 32 rows, whose wave is alone with its tiles (CDNA loads them straight to operands): runs of two and of four
/// columns, one group of them and several, pages shorter than a tile and no pages, the last tile half used.
TEST_P(EmulatedKvCache, DecodesFromOperands) {
  const std::string step = "kv_cache_attention cache_seqlens=1 batch_size=2 seqlen_q=";
  for (const char* rest :
       {"1 dtype=bf16 num_heads_q=8 num_heads_k=2 head_dim=64 page_size=16 num_pages=20 max_pages_per_seq=7",
        "1 dtype=f16 num_heads_q=4 num_heads_k=1 head_dim=128 page_size=3 num_pages=60 max_pages_per_seq=30 "
        "num_splits=2 softmax_lse=1",
        "3 dtype=bf16 num_heads_q=2 head_dim=192 capacity=70 mask=causal append=1 seqlen_k_new=3",
        "1 dtype=bf16 num_heads_q=2 head_dim=256 capacity=90 cache_leftpad=1 mask=causal window_left=50",
        "1 dtype=f16 cache_dtype=fp8_e4m3 scales=head num_heads_q=2 head_dim=256 page_size=8 num_pages=30 "
        "max_pages_per_seq=12 num_splits=2",
        "1 dtype=bf16 mla=1 num_heads_q=16 num_heads_k=1 head_dim=576 head_dim_v=512 page_size=64 num_pages=4 "
        "max_pages_per_seq=2"}) {
    check(step + rest, 3);
    const std::string schedule = plan(parse_problem(step + rest), {GetParam()}).schedule();
    EXPECT_EQ(schedule.find("tiles in registers") != std::string::npos, GetParam() == "emulation.cdna") << schedule;
  }
}

/// A key alone has weight 1, so that its values come back as they are: every byte there is.
TEST_P(EmulatedKvCache, EveryByteOfFp8) {
  constexpr std::int64_t kRows = 4, kDim = 64;
  std::vector<std::uint8_t> k(kRows * kDim), v(kRows * kDim);
  std::iota(v.begin(), v.end(), std::uint8_t{0});
  std::vector<std::uint16_t> q(kRows * kDim), out(kRows * kDim);
  KvCacheArguments arguments;
  arguments.q = {q.data(), DType::bf16, {kRows, 1, 1, kDim}};
  arguments.out = {out.data(), DType::bf16, {kRows, 1, 1, kDim}};
  arguments.k_cache = {k.data(), DType::fp8_e4m3, {kRows, 1, 1, kDim}};
  arguments.v_cache = {v.data(), DType::fp8_e4m3, {kRows, 1, 1, kDim}};
  arguments.options.k_scale_value = arguments.options.v_scale_value = 1.0;
  for (const bool batch_invariant : {false, true}) {  // widened in products and before them, where there are both
    arguments.options.batch_invariant = batch_invariant;
    k[kDim] = 0;
    kv_cache_attention(arguments, {.implementation = GetParam()});
    for (std::size_t i = 0; i < v.size(); ++i) {
      const float got = device::bf16_to_float(out[i]), expected = device::e4m3_to_float(v[i]);
      EXPECT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected))) << i << ": " << got << ", " << expected;
    }
    k[kDim] = 0x7F;  // a NaN among the second row's keys
    kv_cache_attention(arguments, {.implementation = GetParam()});
    for (std::int64_t i = 0; i < kDim; ++i) {
      EXPECT_FALSE(std::isnan(device::bf16_to_float(out[static_cast<std::size_t>(i)])));
      EXPECT_TRUE(std::isnan(device::bf16_to_float(out[static_cast<std::size_t>(kDim + i)])));
    }
  }
}

TEST_P(EmulatedKvCache, PackedQueriesOfPrefillAndDecode) {
  check(
      "kv_cache_attention dtype=bf16 layout=thd batch_size=4 total_q=40 max_seqlen_q=30 num_heads_q=4 num_heads_k=2 "
      "head_dim=64 page_size=16 num_pages=40 max_pages_per_seq=8 cache_seqlens=1 append=1 total_k_new=40 "
      "max_seqlen_k_new=30 mask=causal softmax_lse=1",
      4);
}

TEST_P(EmulatedKvCache, SplitKeys) {
  for (const char* splits : {"2", "12"}) {
    check(
        core::concat("kv_cache_attention dtype=bf16 batch_size=2 num_heads_q=4 num_heads_k=1 head_dim=64 page_size=16 "
                     "num_pages=64 max_pages_per_seq=30 seqlen_q=2 cache_seqlens=1 sink=1 softmax_lse=1 mask=causal "
                     "num_splits=",
                     splits));
  }
}

/// The step is append_kv and then attention over what it has left, wherever num_splits is given.
TEST_P(EmulatedKvCache, AppendingFirstIsTheSameBitForBit) {
  for (const std::int64_t splits : {1, 3}) {
    SmallStep together(DType::bf16), apart(DType::bf16);
    for (const SmallStep* step : {&together, &apart}) {
      const KvCacheArguments& a = step->arguments;
      for (const TensorView* view : {&a.q, &a.k, &a.v, &a.k_cache, &a.v_cache})
        for (std::int64_t n = 0; n < view->numel(); ++n)  // 0.5 to 1, as bf16
          static_cast<std::uint16_t*>(view->data)[n] = static_cast<std::uint16_t>(0x3F00 + 37 * n % 128);
    }
    append_kv(apart.append(), {GetParam()});
    apart.arguments.k = apart.arguments.v = {};
    apart.arguments.options.cache_seqlens = apart.lengths({6, 1});
    for (SmallStep* step : {&together, &apart}) {
      step->arguments.options.num_splits = splits;
      step->run({GetParam()});
    }
    const auto same = [](const TensorView& a, const TensorView& b) {
      return std::memcmp(a.data, b.data, static_cast<std::size_t>(a.numel()) * size_of(a.dtype)) == 0;
    };
    const KvCacheArguments &a = together.arguments, &b = apart.arguments;
    EXPECT_TRUE(same(a.out, b.out) && same(a.softmax_lse, b.softmax_lse)) << splits;
    EXPECT_TRUE(same(a.k_cache, b.k_cache) && same(a.v_cache, b.v_cache)) << splits;
  }
}

TEST_P(EmulatedKvCache, RotatedOfBothKinds) {
  for (const char* rotary : {"rotary=f32 rotary_dim=64",
                             "rotary=query rotary_dim=24 rotary_offset=5 "
                             "rotary_interleaved=1 rotary_seqlens=1",
                             "rotary=f32 rotary_dim=40 rotary_offset=16 rotary_interleaved=1"}) {
    check(
        core::concat("kv_cache_attention dtype=bf16 batch_size=2 num_heads_q=4 num_heads_k=2 head_dim=64 capacity=60 "
                     "seqlen_q=4 cache_seqlens=1 append=1 seqlen_k_new=4 mask=causal ",
                     rotary));
  }
}

TEST_P(EmulatedKvCache, MlasForm) {
  check(
      "kv_cache_attention dtype=bf16 mla=1 batch_size=2 num_heads_q=16 num_heads_k=1 head_dim=192 head_dim_v=128 "
      "page_size=16 num_pages=20 max_pages_per_seq=6 seqlen_q=1 cache_seqlens=1 append=1 seqlen_k_new=1");
  check(
      "kv_cache_attention dtype=bf16 mla=1 batch_size=2 num_heads_q=16 num_heads_k=1 head_dim=576 head_dim_v=512 "
      "page_size=16 num_pages=20 max_pages_per_seq=6 seqlen_q=1 cache_seqlens=1 softmax_lse=1");
  check(
      "kv_cache_attention dtype=bf16 batch_size=1 num_heads_q=2 num_heads_k=1 head_dim=300 head_dim_v=270 capacity=70 "
      "seqlen_q=3 cache_seqlens=1 mask=causal num_splits=2");
}

/// Blocks share the columns of v and out, all but the last a padded width of them: rows that are no whole chunks of 16
/// bytes are read and written element by element, or the last chunk would reach past them.
TEST_P(EmulatedKvCache, WideValuesThatEndWithinAChunk) {
  for (const int dim : {257, 263, 270, 300, 506, 511}) {
    const std::string dims = core::concat(" head_dim=16 seqlen_q=3 cache_seqlens=1 softmax_lse=1 head_dim_v=", dim);
    check("kv_cache_attention dtype=f16 cache_dtype=fp8_e4m3 scales=head page_size=3 num_pages=9 max_pages_per_seq=9" +
          dims);
    check("kv_cache_attention dtype=bf16 batch_size=2 num_heads_q=4 num_heads_k=2 capacity=70 num_splits=2" + dims);
    check("kv_cache_attention dtype=bf16 batch_size=2 capacity=9 append=1 seqlen_k_new=2" + dims);
  }
}

TEST_P(EmulatedKvCache, AppendsAlone) {
  check("append_kv dtype=bf16 batch_size=3 seqlen_k_new=5 num_heads_k=2 head_dim=64 capacity=30 cache_seqlens=1", 3);
  check(
      "append_kv dtype=f16 cache_dtype=fp8_e4m3 scales=token layout=thd batch_size=1 total_k_new=9 "
      "max_seqlen_k_new=9 num_heads_k=2 head_dim=48 slots=i64 page_size=4 num_pages=9",
      3);
  check(
      "append_kv dtype=bf16 batch_size=2 seqlen_k_new=5 num_heads_k=1 head_dim=64 slots=i32 page_size=8 num_pages=9 "
      "rotary=f32 rotary_dim=32 rotary_seqlens=1",
      3);
}

/// Whatever the list of fields draws, of both calls.
TEST_P(EmulatedKvCache, RandomProblems) {
  constexpr const KvCacheProblem* kTag = nullptr;
  const core::Implementation* row = core::find_row(core::implementation_table(), operation_of(kTag), GetParam());
  ASSERT_NE(row, nullptr);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const AnyProblem problem =
        verify::verifier_of(operation_of(kTag)).random_problem(seed, verify::Limits{row->supported_features(), 3e5});
    expect_passed(problem, GetParam(), seed);
  }
}

/// Hopper's own kernel takes caches of q's element type. Each case says what its schedule must name.
class EmulatedHopperKvCache : public testing::Test {
 protected:
  static void check(const std::string& path, const std::string& text, int key_heads = 2) {
    const std::string problem = core::concat("kv_cache_attention cache_seqlens=1 num_heads_q=", 2 * key_heads,
                                             " num_heads_k=", key_heads, " ", text);
    const std::string schedule = plan(parse_problem(problem), {"emulation.sm90"}).schedule();
    EXPECT_NE(schedule.find(path), std::string::npos) << "another path: " << schedule << "\n  " << problem;
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      expect_passed(parse_problem(problem), "emulation.sm90", seed);
    }
  }
};

TEST_F(EmulatedHopperKvCache, LengthsOfSequences) {
  check("scheduled by a counter",
        "dtype=bf16 batch_size=2 batch_size_cache=2 head_dim=64 capacity=300 seqlen_q=70 mask=causal softmax_lse=1");
  check("heads packed",
        "dtype=f16 batch_size=3 batch_size_cache=3 head_dim=64 head_dim_v=40 capacity=90 seqlen_q=20 cache_leftpad=1 "
        "softcap=9 alibi_slopes=[h]");
  check("tiles",
        "dtype=bf16 layout=thd batch_size=3 batch_size_cache=3 max_seqlen_q=50 total_q=100 head_dim=64 capacity=190 "
        "mask=causal window_left=60 sink=1");
}

TEST_F(EmulatedHopperKvCache, AppendsInALaunchBefore) {
  check("append by 16 bytes, 4 waves; 192x64 tiles",
        "dtype=bf16 batch_size=2 batch_size_cache=2 head_dim=128 capacity=700 seqlen_q=5 append=1 seqlen_k_new=5 "
        "mask=causal sink=1 softmax_lse=1");
  check("splits", "dtype=bf16 head_dim=128 capacity=1500 seqlen_q=20 append=1 seqlen_k_new=20 mask=causal", 1);
}

/// Tables of both kinds, pairs of both kinds, all of a row and a part; packed queries are found by their cu_seqlens.
TEST_F(EmulatedHopperKvCache, RotatesQueriesInALaunchBefore) {
  const std::string step = "batch_size=2 batch_size_cache=2 capacity=200 seqlen_q=25 append=1 seqlen_k_new=25 ";
  check("append by 16 bytes, 4 waves; queries rotated; ",
        step + "dtype=bf16 head_dim=64 mask=causal rotary=f32 rotary_dim=64");
  check("queries rotated; ",
        step +
            "dtype=f16 head_dim=128 mask=causal window_left=60 softmax_lse=1 rotary=query rotary_dim=32 "
            "rotary_offset=8 rotary_interleaved=1 rotary_seqlens=1");
  check("queries rotated; ", step + "dtype=bf16 head_dim=40 rotary=query rotary_dim=16");  // to one position
  check("queries rotated; ",
        "dtype=bf16 layout=thd batch_size=4 max_seqlen_q=50 total_q=90 total_k_new=90 max_seqlen_k_new=50 append=1 "
        "head_dim=64 page_size=16 num_pages=70 max_pages_per_seq=12 mask=causal num_splits=2 rotary=f32 rotary_dim=48");
}

/// A tile of keys is one box of a page or several: of the page's size, or what divides it and the tile.
TEST_F(EmulatedHopperKvCache, PagesOfSeveralSizes) {
  const auto pages = [](int size, int capacity) {
    const int each = (capacity + size - 1) / size;
    return core::concat(" batch_size=2 page_size=", size, " num_pages=", 2 * each + 3, " max_pages_per_seq=", each,
                        " ");
  };
  for (const int size : {8, 16, 24, 64, 128, 256}) {
    check("tiles", "dtype=bf16 head_dim=64 seqlen_q=70 mask=causal softmax_lse=1" + pages(size, 300));
  }
  check("heads packed", "dtype=f16 head_dim=128 head_dim_v=64 seqlen_q=20 softcap=9 alibi_slopes=[h]" + pages(16, 200));
  check("128x64 tiles", "dtype=bf16 head_dim=256 seqlen_q=130 mask=causal sink=1" + pages(32, 260));
  check("3 splits",
        "dtype=bf16 head_dim=128 seqlen_q=20 append=1 seqlen_k_new=20 mask=causal num_splits=3" + pages(16, 1500), 1);
}

/// Entries of the table left of a query's window belong to nobody, as do those past the end: NaN lies where they lead,
/// and in the last page behind the sequence's end.
TEST_F(EmulatedHopperKvCache, PagesThatNoQueryNeeds) {
  constexpr std::int64_t kPages = 4, kPlaces = 16, kDim = 64, kPage = kPlaces * kDim;
  constexpr std::uint16_t kOne = 0x3F80, kNan = 0x7FC0;
  SmallStep step;
  KvCacheArguments arguments;
  arguments.q = step.tensor({1, 1, 1, kDim}, DType::bf16);
  arguments.out = step.tensor({1, 1, 1, kDim}, DType::bf16);
  arguments.k_cache = step.tensor({kPages, kPlaces, 1, kDim}, DType::bf16);
  arguments.v_cache = step.tensor({kPages, kPlaces, 1, kDim}, DType::bf16);
  for (const TensorView* cache : {&arguments.k_cache, &arguments.v_cache}) {
    auto* const at = static_cast<std::uint16_t*>(cache->data);
    std::fill(at, at + (kPages - 1) * kPage, kNan);
    std::fill(at + (kPages - 1) * kPage, at + kPages * kPage - 4 * kDim, kOne);
    std::fill(at + kPages * kPage - 4 * kDim, at + kPages * kPage, kNan);
  }
  arguments.options.block_table = step.lengths({-1, 99, -1, 0, 1, 3, 2, -1});
  arguments.options.block_table.rank = 2;
  arguments.options.block_table.shape = {1, 8};
  arguments.options.block_table.strides = {8, 1};
  arguments.options.cache_seqlens = step.lengths({92});
  arguments.options.mask = Mask::causal;
  arguments.options.window_left = 11;  // keys 80 to 91
  kv_cache_attention(arguments, {"emulation.sm90"});
  for (std::int64_t i = 0; i < kDim; ++i) EXPECT_EQ(static_cast<std::uint16_t*>(arguments.out.data)[i], kOne) << i;
}

TEST_F(EmulatedHopperKvCache, PackedQueriesOfPrefillAndDecode) {
  check("heads packed, ",
        "dtype=bf16 layout=thd batch_size=4 max_seqlen_q=100 total_q=110 head_dim=64 page_size=16 num_pages=70 "
        "max_pages_per_seq=12 mask=causal softmax_lse=1 num_splits=2");
}

TEST_F(EmulatedHopperKvCache, RowsOfTheCacheByAnIndex) {
  check("tiles",
        "dtype=bf16 batch_size=3 batch_size_cache=5 cache_batch_idx=1 head_dim=64 capacity=200 seqlen_q=40 mask=causal "
        "cache_leftpad=1 softmax_lse=1");
}

TEST_F(EmulatedHopperKvCache, GivenNumbersOfSplits) {
  const std::string call =
      "dtype=bf16 batch_size=2 batch_size_cache=2 head_dim=64 capacity=500 seqlen_q=40 mask=causal";
  check(", 3 splits", call + " num_splits=3 sink=1 softmax_lse=1");
  check(", 128 splits", call + " num_splits=1000");
  const auto schedule_of = [](const std::string& text) {
    return plan(parse_problem(text), {"emulation.sm90"}).schedule();
  };
  EXPECT_EQ(schedule_of("kv_cache_attention cache_seqlens=1 " + call + " num_splits=1").find("splits"),
            std::string::npos);
}

/// Values within the keys have a kernel of their own: two warpgroups that share them.
class EmulatedHopperLatent : public testing::Test {
 protected:
  static void check(const std::string& path, const std::string& text) {
    const std::string problem = core::concat("kv_cache_attention mla=1 num_heads_k=1 cache_seqlens=1 ", text);
    const std::string schedule = plan(parse_problem(problem), {"emulation.sm90"}).schedule();
    EXPECT_NE(schedule.find(path), std::string::npos) << "another path: " << schedule << "\n  " << problem;
    for (std::uint64_t seed = 0; seed < 6; ++seed) {  // half of them have rows that TMA can't load
      expect_passed(parse_problem(problem), "emulation.sm90", seed);
    }
  }
};

TEST_F(EmulatedHopperLatent, OneTileAndAnOddNumber) {
  for (const char* pages : {"max_pages_per_seq=4", "max_pages_per_seq=12"}) {
    check("share values",
          core::concat("dtype=bf16 batch_size=2 num_heads_q=16 head_dim=192 head_dim_v=128 page_size=16 num_pages=30 "
                       "seqlen_q=1 batch_invariant=1 softmax_lse=1 ",
                       pages));
  }
}

TEST_F(EmulatedHopperLatent, QueriesThatSeeDifferentKeysByNight) {
  check(
      "splits",
      "dtype=bf16 num_heads_q=16 head_dim=576 head_dim_v=512 page_size=64 num_pages=16 max_pages_per_seq=14 seqlen_q=3 "
      "mask=causal softmax_lse=1 append=1 seqlen_k_new=3");
  check("share values",
        "dtype=bf16 batch_size=2 num_heads_q=20 head_dim=320 head_dim_v=256 capacity=200 seqlen_q=5 cache_leftpad=1 "
        "mask=causal softmax_lse=1 batch_invariant=1");
}

TEST_F(EmulatedHopperLatent, HeadsOfSeveralTiles) {
  check("share values",
        "dtype=f16 num_heads_q=144 head_dim=192 head_dim_v=128 page_size=8 num_pages=30 max_pages_per_seq=20 "
        "seqlen_q=2 softmax_lse=1");
  check(
      "2 stages",
      "dtype=bf16 num_heads_q=128 head_dim=576 head_dim_v=512 page_size=32 num_pages=9 max_pages_per_seq=5 seqlen_q=1");
}

/// In small pages, by two blocks for both.
TEST_F(EmulatedHopperLatent, PairsOfBlocksThatShareKeys) {
  constexpr const char* kPairs = "pairs of blocks that share keys";
  check(kPairs,
        "dtype=f16 num_heads_q=80 head_dim=192 head_dim_v=128 page_size=8 num_pages=30 max_pages_per_seq=20 seqlen_q=2 "
        "softmax_lse=1 mask=causal batch_invariant=1");
  check("pairs of blocks that share keys, ",
        "dtype=bf16 num_heads_q=128 head_dim=576 head_dim_v=512 page_size=16 num_pages=19 max_pages_per_seq=15 "
        "seqlen_q=1 num_splits=3 append=1 seqlen_k_new=1");
  check(kPairs,
        "dtype=bf16 layout=thd num_heads_q=256 head_dim=192 head_dim_v=128 page_size=24 num_pages=30 "
        "max_pages_per_seq=9 softmax_lse=1 mask=causal batch_size=3 max_seqlen_q=3 total_q=5");
}

/// Of row tiles as the longest sequence has, the others' last ones have nothing to do.
TEST_F(EmulatedHopperLatent, PackedQueries) {
  const std::string packed =
      "dtype=bf16 layout=thd head_dim=192 head_dim_v=128 page_size=24 softmax_lse=1 mask=causal batch_size=5 "
      "num_pages=120 max_pages_per_seq=20 ";
  check("2 stages", packed + "num_heads_q=16 max_seqlen_q=4 total_q=13");
  check("splits", packed + "num_heads_q=64 max_seqlen_q=2 total_q=8 num_splits=3");
  check("2 stages", packed + "num_heads_q=64 max_seqlen_q=9 total_q=20 append=1 max_seqlen_k_new=9 num_splits=1");
}

TILEWISE_ON_MACHINES(EmulatedKvCache, "emulation.sm80");
TILEWISE_ON_MACHINES_BY_NIGHT(EmulatedKvCache, "emulation.cdna", "emulation.rdna");

}  // namespace
}  // namespace tilewise::test
