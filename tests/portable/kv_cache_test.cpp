// The KV cache step on the way to a GPU's kernels: which launches there are, what they share in the workspace, and that
// the tables of pointers know every pointer.
#include <set>
#include <string>

#include "backends/portable/kv_cache/implementation.hpp"
#include "backends/portable/kv_cache/kernels.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using gpu::ParameterField;

gpu::Lowering cache_lowered(std::string_view architecture, std::string_view text) {
  const KvCacheProblem problem =
      parse_problem(core::concat(text, " device=", to_string(device_of(architecture).device.type)));
  Outcome outcome = lower(problem, device_of(architecture), family_of(architecture));
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

constexpr std::string_view kDecode =
    "kv_cache_attention dtype=bf16 seqlen_q=1 num_heads_q=32 num_heads_k=8 head_dim=128 page_size=16 num_pages=4096 "
    "max_pages_per_seq=512 cache_seqlens=1";

TEST(KvCacheParameters, CoverEachBlock) {
  for_each_kv_cache_kernel([]<typename Kernel> {
    std::size_t end = 0;
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.offset, end) << Kernel::kName << "." << field.name;
      end = field.offset + field.size;
    }
    EXPECT_EQ(end, sizeof(typename Kernel::Params)) << Kernel::kName;
  });
}

/// A pointer that the table lacks would be null in every launch. A contiguous cache has every tensor but a table.
TEST(KvCacheParameters, TheTablesKnowEveryPointer) {
  for_each_kv_cache_kernel([]<typename Kernel> {
    const typename Kernel::Params params{};
    std::set<std::size_t> known;
    Kernel::for_each_pointer(params, [&known](const gpu::Region&, std::size_t offset) { known.insert(offset); });
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.is_pointer(), known.contains(field.offset)) << Kernel::kName << "." << field.name;
    }
  });
}

TEST(KvCacheLowering, LaunchesWhatIsAskedFor) {
  for (const std::string_view architecture : kMachines) {
    const auto names = [&](std::string_view options) {
      return names_of(cache_lowered(architecture, core::concat(kDecode, " ", options)));
    };
    EXPECT_EQ(names("num_splits=1"), "kv_cache_forward ");
    EXPECT_EQ(names("num_splits=3"), "kv_cache_forward kv_cache_combine ");
    EXPECT_EQ(names("num_splits=1 append=1 seqlen_k_new=200"), "append_kv kv_cache_forward ");
    EXPECT_EQ(names("num_splits=1 append=1 seqlen_k_new=1"), "kv_cache_forward ") << "appends itself";
    EXPECT_EQ(names("num_splits=1 append=1 seqlen_k_new=1 unaligned=1"), "kv_cache_forward ");
    EXPECT_EQ(names_of(cache_lowered(architecture,
                                     "kv_cache_attention dtype=bf16 seqlen_q=0 append=1 seqlen_k_new=1 head_dim=128 "
                                     "capacity=100")),
              "append_kv ")
        << "no block has queries";
    EXPECT_EQ(names_of(cache_lowered(architecture,
                                     "append_kv dtype=bf16 seqlen_k_new=4 head_dim=576 head_dim_v=512 mla=1 "
                                     "capacity=100 cache_seqlens=1")),
              "append_kv ");
  }
}

/// Before the kernel that skips tiles by it, which does not begin before. What differs between heads is not known.
TEST(KvCacheLowering, FindsWhatMasksLeaveOfTiles) {
  for (const std::string_view architecture : kMachines) {
    const auto lowered = [&](std::string_view options) {
      return cache_lowered(architecture, core::concat(kDecode, " num_splits=1 ", options));
    };
    EXPECT_EQ(names_of(lowered("mask_mod=(kv_idx+h)%3!=1")), "kv_cache_forward ");
    EXPECT_EQ(names_of(lowered("block_mask=128x128[1,h]")), "block_states kv_cache_forward ");
    for (const auto& [options, names] :
         {std::pair<std::string_view, std::string_view>{"mask_mod=(q_idx-kv_idx)%3!=1", "kv_cache_mask_tiles "},
          {"block_mask=128x128[1,1]+full", "block_states block_states kv_cache_mask_tiles "}}) {
      const gpu::Lowering lowering = lowered(options);
      EXPECT_EQ(names_of(lowering), core::concat(names, "kv_cache_forward "));
      for (const gpu::Launch* launch : lowering.launches()) EXPECT_FALSE(launch->programmatic) << options;
    }
  }
}

TEST(KvCacheLowering, OnlyTheCostModelAndTheCallerSplitKeys) {
  EXPECT_EQ(names_of(cache_lowered("sm_90a", kDecode)), "kv_cache_forward kv_cache_combine ");
  EXPECT_EQ(names_of(cache_lowered("sm_90a", core::concat(kDecode, " batch_size=64"))), "kv_cache_forward ");
  EXPECT_EQ(names_of(cache_lowered("sm_90a", core::concat(kDecode, " batch_invariant=1"))), "kv_cache_forward ");
}

/// One sequence's parts are as many in a large cache as in one of usual size: its length may be that of either.
TEST(KvCacheLowering, CapacitySaysLittleOfLengths) {
  const auto splits = [](std::string_view cache) {
    const gpu::Lowering lowering = cache_lowered(
        "sm_90a",
        core::concat("kv_cache_attention dtype=bf16 seqlen_q=1 num_heads_q=32 num_heads_k=8 head_dim=128 ", cache));
    return lowering.schedule.substr(lowering.schedule.rfind(", "));
  };
  EXPECT_EQ(splits("cache_seqlens=1 capacity=131072"), splits("cache_seqlens=1 capacity=16384"));
  EXPECT_NE(splits("capacity=131072"), splits("capacity=4096")) << "all lengths are that of the cache";
}

/// Blocks of a schedule are as many as what is computed at once asks for, and one more for each sequence, however large
/// the cache; sums in the workspace are as many.
TEST(KvCacheLowering, SchedulesKeysOfSequencesThatDiffer) {
  for (const std::string_view architecture : kMachines) {
    const auto lowered = [&](int batch_size, int pages) {
      return cache_lowered(architecture,
                           core::concat("kv_cache_attention dtype=bf16 seqlen_q=1 num_heads_q=32 num_heads_k=8 "
                                        "head_dim=128 page_size=16 num_pages=4096 cache_seqlens=1 batch_size=",
                                        batch_size, " max_pages_per_seq=", pages));
    };
    const gpu::Lowering few = lowered(2, 1024), large = lowered(2, 8192), many = lowered(202, 1024);
    EXPECT_EQ(names_of(few), "kv_cache_forward kv_cache_combine ") << architecture;
    const auto blocks = [](const gpu::Lowering& lowering) { return lowering.launches().front()->grid.count(); };
    EXPECT_EQ(blocks(few), blocks(large)) << architecture;
    EXPECT_EQ(blocks(many), blocks(few) + 200 * 8) << architecture;
    EXPECT_EQ(few.workspace_bytes, large.workspace_bytes) << architecture;
    EXPECT_LT(many.workspace_bytes, std::size_t{32} << 20) << architecture;
    EXPECT_TRUE(gpu::config_of<KvCacheForward>(few.launches().front()->key).schedules_keys) << architecture;
  }
}

/// What comes first is launched after all before it; kernels after it wait themselves, where the GPU lets them begin.
TEST(KvCacheLowering, StepsOverlapFromSm90On) {
  for (const std::string_view architecture : {"sm_80", "sm_90a", "sm_120", "gfx942"}) {
    const gpu::Lowering lowering = cache_lowered(
        architecture, core::concat(kDecode, " num_splits=3 append=1 seqlen_k_new=200 rotary_dim=64 rotary=f32"));
    std::vector<bool> programmatic;
    for (const gpu::Launch* launch : lowering.launches()) programmatic.push_back(launch->programmatic);
    const bool overlaps = architecture == "sm_90a" || architecture == "sm_120";
    EXPECT_EQ(programmatic, (std::vector<bool>{false, overlaps, overlaps})) << architecture;
  }
}

/// Blocks that come early find multiprocessors taken: shared memory keeps each multiprocessor to its share of them.
TEST(KvCacheLowering, BlocksThatComeEarlySpreadOverAllMultiprocessors) {
  const auto least_bytes = [](std::string_view options) {
    return cache_lowered("sm_90a", core::concat("kv_cache_attention dtype=bf16 num_heads_q=32 num_heads_k=8 "
                                                "head_dim=128 capacity=4096 cache_seqlens=1 ",
                                                options))
        .launches()
        .at(1)
        ->least_shared_bytes;
  };
  constexpr std::uint32_t kHalf = (228u << 10) / 2 - 1024, kThird = (228u << 10) / 3 - 1024;
  EXPECT_EQ(least_bytes("seqlen_q=128 num_splits=4 append=1 seqlen_k_new=128"), kHalf + 1) << "128 blocks on 132";
  EXPECT_EQ(least_bytes("seqlen_q=128 num_splits=8 append=1 seqlen_k_new=128"), kThird + 1) << "256 blocks";
  EXPECT_EQ(least_bytes("seqlen_q=128 num_splits=4"), 0u) << "combine, which waits";
  EXPECT_EQ(cache_lowered("sm_90a", kDecode).launches().at(0)->least_shared_bytes, 0u) << "nothing comes before";
}

/// The order of a row's sums is that of its keys' tiles, whose size with batch_invariant depends on no other row.
TEST(KvCacheLowering, BatchInvariantTilesAreThoseOfManyRows) {
  for (const std::string_view architecture : {"sm_80", "sm_89", "sm_90a", "gfx942", "gfx1100"}) {
    for (const char* cache : {"", " cache_dtype=fp8_e4m3 scales=token"}) {
      for (const char* dims :
           {" head_dim=64", " head_dim=128", " head_dim=200", " head_dim=576 head_dim_v=512 mla=1"}) {
        std::set<int> tiles;
        for (const int seqlen_q : {1, 2, 16, 64, 100, 1000, 4000}) {
          const gpu::Lowering lowering = cache_lowered(
              architecture, core::concat("kv_cache_attention dtype=bf16 batch_invariant=1 page_size=16 num_pages=600 "
                                         "max_pages_per_seq=300 num_heads_q=8 num_heads_k=2 seqlen_q=",
                                         seqlen_q, cache, dims));
          tiles.insert(gpu::config_of<KvCacheForward>(lowering.launches().front()->key).block_n);
        }
        EXPECT_EQ(tiles.size(), 1u) << architecture << cache << dims;
      }
    }
  }
}

/// What becomes of fp8 tiles: a lone wave of CDNA widens them in the registers that they come to; products widen what
/// few rows multiply, where an instruction does; else bytes wait in shared memory where lanes copy asynchronously and
/// rows are as wide as tiles; else they are widened on their way.
TEST(KvCacheLowering, WhereFp8IsWidened) {
  const auto way = [](std::string_view architecture, std::string_view rest) {
    const gpu::Lowering lowering =
        cache_lowered(architecture, core::concat("kv_cache_attention dtype=bf16 cache_dtype=fp8_e4m3 scales=head "
                                                 "num_heads_q=8 num_heads_k=1 capacity=64 num_splits=1 ",
                                                 rest));
    const auto config = gpu::config_of<KvCacheForward>(lowering.launches().front()->key);
    if (config.direct_operands != 0) return "registers";
    return config.multiplies_bytes != 0 ? "products" : config.keeps_bytes != 0 ? "shared memory" : "on their way";
  };
  for (const std::string_view architecture : {"sm_89", "sm_90a", "sm_120"}) {
    EXPECT_STREQ(way(architecture, "head_dim=128 seqlen_q=2"), "products") << architecture;
  }
  EXPECT_STREQ(way("sm_90a", "head_dim=64 head_dim_v=32 seqlen_q=1"), "products");
  EXPECT_STREQ(way("sm_90a", "head_dim=128 seqlen_q=3"), "shared memory") << "24 rows";
  EXPECT_STREQ(way("sm_90a", "head_dim=128 seqlen_q=1 batch_invariant=1"), "shared memory");
  EXPECT_STREQ(way("sm_90a", "head_dim=96 seqlen_q=1"), "shared memory") << "no tile of bytes has such rows";
  for (const std::string_view architecture : {"sm_80", "sm_86"}) {
    EXPECT_STREQ(way(architecture, "head_dim=128 seqlen_q=1"), "shared memory") << architecture;
  }
  EXPECT_STREQ(way("sm_90a", "head_dim=72 seqlen_q=1"), "on their way");
  for (const std::string_view architecture : {"gfx90a", "gfx942", "gfx950"}) {
    EXPECT_STREQ(way(architecture, "head_dim=128 seqlen_q=4"), "registers") << architecture;
    EXPECT_STREQ(way(architecture, "head_dim=128 seqlen_q=5"), "on their way") << "40 rows: " << architecture;
    EXPECT_STREQ(way(architecture, "head_dim=96 seqlen_q=1"), "on their way") << "lanes have no runs: " << architecture;
    EXPECT_STREQ(way(architecture, "head_dim=128 seqlen_q=1 batch_invariant=1"), "on their way") << architecture;
  }
}

/// Products of fp8 caches are of 16-bit elements: keys of q's type, and values in bf16, which no token's scale leaves,
/// or in f16 where one wave multiplies them and scales come afterwards.
TEST(KvCacheLowering, Fp8IsWidenedToTypesOfProducts) {
  for (const auto& [dtype, type] : {std::pair{"bf16", device::kBf16}, {"f16", device::kF16}}) {
    for (const auto& [scales, kind, v_type] :
         {std::tuple{"token", device::kTokenScales, device::kBf16}, {"head", device::kBlockScale, device::kF16}}) {
      const gpu::Lowering lowering = cache_lowered(
          "sm_90a", core::concat("kv_cache_attention cache_dtype=fp8_e4m3 seqlen_q=1 num_heads_q=8 num_heads_k=1 "
                                 "head_dim=128 capacity=64 num_splits=1 dtype=",
                                 dtype, " scales=", scales));
      const auto config = gpu::config_of<KvCacheForward>(lowering.launches().front()->key);
      EXPECT_EQ(config.cache_type, device::kE4m3);
      EXPECT_EQ(config.k_type, type);
      EXPECT_EQ(config.v_type, v_type);
      EXPECT_EQ(config.scales, kind);
    }
  }
}

/// A wave's registers do not hold 512 columns of out beside 576 of keys: blocks share them.
TEST(KvCacheLowering, BlocksShareTheColumnsOfWideValues) {
  for (const std::string_view architecture : kMachines) {
    const gpu::Lowering lowering =
        cache_lowered(architecture,
                      "kv_cache_attention dtype=bf16 mla=1 seqlen_q=1 num_heads_q=16 num_heads_k=1 "
                      "head_dim=576 head_dim_v=512 capacity=64 num_splits=1 batch_size=3");
    const gpu::Launch& launch = *lowering.launches().front();
    const auto config = gpu::config_of<KvCacheForward>(launch.key);
    EXPECT_EQ(config.v_parts, 4);
    EXPECT_EQ(config.head_dim_v, 128);
    EXPECT_TRUE(config.exact_dims);
    EXPECT_EQ(launch.grid.count(), 4u * 3u);
  }
  EXPECT_EQ(gpu::config_of<KvCacheForward>(cache_lowered("sm_90a", kDecode).launches().front()->key).v_parts, 1);
}

TEST(KvCacheLowering, ContiguousCallsHaveStrides) {
  const KvCacheImplementation row("cuda.sm80", gpu::Family::sm80, nullptr);
  const KvCacheProblem problem = parse_problem(core::concat(kDecode,
                                                            " device=cuda append=1 seqlen_k_new=1 "
                                                            "cache_dtype=fp8_e4m3 scales=token"));
  const auto call =
      std::static_pointer_cast<const operations::kv_cache::KvCacheParams>(row.contiguous_call(problem).params);
  EXPECT_EQ(call->k_cache.batch_stride, 16 * 8 * 128);
  EXPECT_EQ(call->v_cache.seq_stride, 8 * 128);
  EXPECT_EQ(call->block_table_stride, 512);
  EXPECT_EQ(call->k_scale.row_stride, 16 * 8);
  EXPECT_EQ(call->out.seq_stride, 32 * 128);
}

}  // namespace
}  // namespace tilewise::backends::portable
