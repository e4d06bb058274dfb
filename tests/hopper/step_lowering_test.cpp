// What becomes of KV cache steps, MLA's among them: launches, boxes of pages, parts, estimates, and reasons for what is
// refused.
#include <cstddef>
#include <string>
#include <string_view>

#include "backends/cuda/hopper/implementation.hpp"
#include "backends/portable/kv_cache/kernels.hpp"
#include "backends/portable/kv_cache/lowering.hpp"
#include "support.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat;

constexpr std::string_view kStep =
    "kv_cache_attention device=cuda dtype=bf16 seqlen_q=64 num_heads_q=32 num_heads_k=8 head_dim=128 capacity=8192 "
    "cache_seqlens=1 mask=causal ";

/// Lowers what must not be refused.
gpu::Lowering lowered_step(std::string_view text) {
  gpu::Outcome outcome = lower(KvCacheProblem(parse_problem(concat(kStep, text))), h200());
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

TEST(HopperStepLowering, AppendsToACacheInALaunchBefore) {
  const KvCacheProblem problem = parse_problem(concat(kStep, "append=1 seqlen_k_new=64"));
  const gpu::Outcome outcome = lower(problem, h200());
  ASSERT_EQ(outcome.refusal, "");
  const std::vector<const gpu::Launch*> launches = outcome.lowering.launches();
  ASSERT_EQ(launches.size(), 3U);
  EXPECT_EQ(launches[0]->key.body->name, "append_kv");
  EXPECT_FALSE(launches[0]->programmatic);
  EXPECT_TRUE(gpu::config_of<Forward>(launches[1]->key).cached);
  EXPECT_TRUE(launches[1]->programmatic);
  EXPECT_EQ(params_of(*launches[1]).order.num_splits, 8);
  EXPECT_EQ(launches[2]->key.body->name, "kv_cache_combine");
}

/// The attention's queries are in the workspace then, and each launch waits for the ones before it.
TEST(HopperStepLowering, RotatesQueriesInALaunchBefore) {
  const std::string rotary = "rotary=f32 rotary_dim=64 ";
  const gpu::Outcome outcome =
      lower(KvCacheProblem(parse_problem(concat(kStep, rotary, "batch_size=3 append=1 seqlen_k_new=64"))), h200());
  ASSERT_EQ(outcome.refusal, "");
  const std::vector<const gpu::Launch*> launches = outcome.lowering.launches();
  ASSERT_GE(launches.size(), 3U);
  EXPECT_EQ(launches[0]->key.body->name, "append_kv");
  EXPECT_EQ(launches[1]->key.body->name, "rotate_queries");
  EXPECT_EQ(launches[1]->grid, gpu::Extent3{3 * 64 * 32 * (4 + 8) / 128}) << "4 pairs of chunks that turn, 8 chunks";
  EXPECT_TRUE(launches[1]->programmatic && launches[2]->programmatic);
  const gpu::WorkspacePart* const rotated = outcome.lowering.part("q_rotated");
  ASSERT_NE(rotated, nullptr);
  EXPECT_EQ(rotated->bytes, 3U * 64 * 32 * 128 * 2);
  EXPECT_EQ(launches[2]->tensor_maps.at(0).part, "q_rotated");
  EXPECT_EQ(launches[2]->tensor_maps.at(0).offset, rotated->offset);
  EXPECT_TRUE(launches[2]->tensor_maps.at(1).part.empty());
  const gpu::Outcome plain = lower(KvCacheProblem(parse_problem(kStep)), h200());
  EXPECT_GT(outcome.lowering.estimated_us, plain.lowering.estimated_us);
  EXPECT_EQ(plain.lowering.part("q_rotated"), nullptr);
}

TEST(HopperStepLowering, RefusesStepsWithAReason) {
  const auto refusal = [](const std::string& text) {
    return lower(KvCacheProblem(parse_problem(text)), h200()).refusal;
  };
  EXPECT_EQ(refusal(concat(kStep, "unaligned=1")),
            "every row of q, k, v and out must start on 16 bytes (got one that does not)");
  EXPECT_EQ(refusal("append_kv device=cuda dtype=bf16 num_heads_k=8 head_dim=128 capacity=64 seqlen_k_new=4 "
                    "cache_seqlens=1"),
            "call must be kv_cache_attention (got append_kv)");
  EXPECT_EQ(refusal(concat(kStep, "append=1 seqlen_k_new=64 rotary=f32 rotary_dim=24 rotary_offset=4")),
            "rotary_dim must be a multiple of 16 and rotary_offset of 8 (got 24 and 4)");
  std::string terms = "score";
  for (int i = 1; i < 70; ++i) terms += concat("+exp(score*", i, ".5)");
  EXPECT_NE(refusal(concat(kStep, "score_mod=", terms)).find("score_mod: it must have <= 64 terms (got "),
            std::string::npos);
}

/// What mask_mod leaves is found before new keys are appended, and the launches behind that overlap.
TEST(HopperStepLowering, ListsTilesBeforeItAppends) {
  const std::string stripes = "mask_mod=kv_idx//64%3!=1 ";
  const gpu::Lowering all =
      lowered_step(concat(stripes, "append=1 seqlen_k_new=64 rotary=f32 rotary_dim=64 num_splits=2"));
  EXPECT_EQ(names_of(all),
            "hopper_mask_tiles hopper_tile_lists append_kv rotate_queries hopper_forward kv_cache_combine ");
  std::string programmatic;
  for (const gpu::Launch* launch : all.launches()) programmatic += launch->programmatic ? '1' : '0';
  EXPECT_EQ(programmatic, "010111");
  EXPECT_NE(all.launches()[4]->key.definitions.find("kAtPositions = true"), std::string::npos);
  const gpu::Lowering blocks = lowered_step("num_splits=1 append=1 seqlen_k_new=64 block_mask=128x128[1,1]+full");
  EXPECT_EQ(names_of(blocks),
            "block_states block_states hopper_mask_tiles hopper_tile_lists append_kv hopper_forward ");
  const gpu::Outcome window = lower(
      KvCacheProblem(parse_problem(concat("kv_cache_attention device=cuda dtype=bf16 seqlen_q=64 num_heads_q=32 "
                                          "head_dim=128 cache_seqlens=1 window_left=128 num_splits=1 page_size=64 "
                                          "num_pages=64 max_pages_per_seq=64 ",
                                          stripes))),
      h200());
  EXPECT_EQ(names_of(window.lowering), "hopper_forward ") << window.refusal;
}

/// 294 us beside 920 for one prefill of 512 among 31 that decode, 218 beside 1,288 where all decode and one has most
/// keys.
TEST(HopperStepLowering, EstimatesPackedStepsByTheirTiles) {
  const auto faster = [](std::string_view text) {
    const KvCacheProblem problem =
        parse_problem(concat("kv_cache_attention device=cuda dtype=bf16 layout=thd num_heads_q=32 num_heads_k=8 "
                             "head_dim=128 cache_seqlens=1 mask=causal page_size=64 ",
                             text));
    return lower(problem, h200()).lowering.estimated_us <
           portable::lower(problem, h200(), gpu::Family::sm80).lowering.estimated_us;
  };
  EXPECT_TRUE(faster("batch_size=32 max_seqlen_q=512 total_q=543 num_pages=2112 max_pages_per_seq=128"));
  EXPECT_TRUE(faster("batch_size=32 max_seqlen_q=2048 total_q=2079 num_pages=2112 max_pages_per_seq=128"));
  EXPECT_FALSE(faster("batch_size=64 max_seqlen_q=1 total_q=64 num_pages=3056 max_pages_per_seq=2048"));
}

/// However much a cache has room for, and however many sequences it has.
TEST(HopperStepLowering, EstimatesLeaveDecodingToPortableKernels) {
  for (const int batch_size : {1, 2, 16, 64, 256}) {
    for (const int capacity : {4096, 16384, 131072}) {
      const KvCacheProblem problem = parse_problem(
          concat("kv_cache_attention device=cuda dtype=bf16 seqlen_q=1 num_heads_q=32 num_heads_k=8 head_dim=128 "
                 "cache_seqlens=1 mask=causal batch_size=",
                 batch_size, " capacity=", capacity));
      EXPECT_GT(lower(problem, h200()).lowering.estimated_us,
                portable::lower(problem, h200(), gpu::Family::sm80).lowering.estimated_us)
          << batch_size << " of " << capacity;
    }
  }
}

/// Of 128 keys a box has what lies in one page; the swizzle wants 8 rows.
TEST(HopperStepLowering, LoadsPagesByBoxes) {
  const auto box_of = [](int page_size) {
    const int pages = 8192 / page_size;
    const gpu::Outcome outcome =
        lower(KvCacheProblem(parse_problem(concat(
                  "kv_cache_attention device=cuda dtype=bf16 seqlen_q=64 num_heads_q=32 num_heads_k=8 head_dim=128 "
                  "cache_seqlens=1 mask=causal page_size=",
                  page_size, " num_pages=", pages, " max_pages_per_seq=", pages))),
              h200());
    EXPECT_EQ(outcome.refusal, "");
    const gpu::Launch& launch = *outcome.lowering.launches().at(0);
    EXPECT_EQ(gpu::config_of<Forward>(launch.key).block_n, 128);
    EXPECT_EQ(gpu::config_of<Forward>(launch.key).page_size, page_size);
    EXPECT_EQ(launch.tensor_maps.at(1).map.box, launch.tensor_maps.at(2).map.box);
    return launch.tensor_maps.at(1).map.box[1];
  };
  EXPECT_EQ(box_of(16), 16U);
  EXPECT_EQ(box_of(24), 8U);
  EXPECT_EQ(box_of(64), 64U);
  EXPECT_EQ(box_of(192), 64U);
  EXPECT_EQ(box_of(1024), 128U);
}

constexpr std::string_view kMla =
    "kv_cache_attention device=cuda dtype=bf16 mla=1 num_heads_q=128 num_heads_k=1 head_dim=576 head_dim_v=512 "
    "page_size=64 cache_seqlens=1 mask=causal seqlen_q=1 ";

/// 128 heads are two tiles of rows; 64 sequences fill the device, one is scheduled in parts.
TEST(HopperStepLowering, SharesKeysAsValuesInMlasForm) {
  const gpu::Outcome many =
      lower(KvCacheProblem(parse_problem(concat(kMla, "batch_size=64 num_pages=8192 max_pages_per_seq=128"))), h200());
  ASSERT_EQ(many.refusal, "");
  ASSERT_EQ(many.lowering.launches().size(), 1U);
  EXPECT_EQ(many.lowering.launches()[0]->grid, gpu::Extent3{128});
  EXPECT_EQ(many.lowering.launches()[0]->key.body->name, "hopper_latent");
  EXPECT_EQ(many.lowering.workspace_bytes, 0U);
  const gpu::Outcome one =
      lower(KvCacheProblem(parse_problem(concat(kMla, "num_pages=64 max_pages_per_seq=64"))), h200());
  ASSERT_EQ(one.lowering.launches().size(), 2U);
  const std::uint32_t blocks = one.lowering.launches()[0]->grid.x;
  EXPECT_GE(blocks, 32U);
  EXPECT_LE(blocks, 132U);
  EXPECT_EQ(one.lowering.part("lse_accum")->bytes, blocks / 2 * 128 * 2 * sizeof(float));
}

/// Selected keys come one by one, for the heads of one query.
TEST(HopperStepLowering, SelectsMlasKeys) {
  const gpu::Outcome outcome = lower(
      KvCacheProblem(parse_problem(concat(kMla, "batch_size=64 num_pages=8192 max_pages_per_seq=128 top_k=2048"))),
      h200());
  ASSERT_EQ(outcome.refusal, "");
  EXPECT_EQ(outcome.lowering.launches()[0]->tensor_maps[1].map.box[1], 1U);
  EXPECT_EQ(outcome.lowering.launches()[0]->cluster.x, 2U);
  EXPECT_EQ(lower(KvCacheProblem(parse_problem("kv_cache_attention device=cuda dtype=bf16 num_heads_q=8 num_heads_k=2 "
                                               "head_dim=128 capacity=512 seqlen_q=1 top_k=64")),
                  h200())
                .refusal,
            "with key_indices, mla must be 1 (got 0)");
}

bool schedules_mlas_keys(const gpu::Outcome& outcome) {
  EXPECT_EQ(outcome.refusal, "");
  return gpu::config_of<Latent>(outcome.lowering.launches().at(0)->key).schedules_keys != 0;
}

/// By the portable kernels' rule: of a capacity above 8,192 keys, whose sequences may differ much in length. Blocks are
/// as many as 2.5 times what is computed at once, and those of a whole sequence each.
TEST(HopperStepLowering, SchedulesMlasKeysOfSequencesThatDiffer) {
  const auto lowered = [](const std::string& sequences) {
    return lower(KvCacheProblem(parse_problem(concat(kMla, "num_pages=8192 ", sequences))), h200());
  };
  const auto schedules = [&](const std::string& sequences) { return schedules_mlas_keys(lowered(sequences)); };
  const gpu::Outcome scheduled = lowered("batch_size=64 max_pages_per_seq=129");
  ASSERT_EQ(scheduled.refusal, "");
  ASSERT_EQ(scheduled.lowering.launches().size(), 2U);
  const gpu::Launch &latent = *scheduled.lowering.launches()[0], &combine = *scheduled.lowering.launches()[1];
  const std::uint32_t places = 132 / 2 * 5 / 2 + 64;
  EXPECT_EQ(latent.grid, gpu::Extent3{2 * places});
  EXPECT_TRUE(gpu::config_of<Latent>(latent.key).split);
  EXPECT_TRUE(gpu::config_of<portable::KvCacheCombine>(combine.key).takes_turns);
  EXPECT_EQ(combine.grid, gpu::Extent3{5 * 132}) << "however many rows there are";
  EXPECT_EQ(scheduled.lowering.part("lse_accum")->bytes, places * 128 * 2 * sizeof(float));
  EXPECT_EQ(scheduled.lowering.part("scheduled_parts")->bytes, 64 * sizeof(std::int64_t));
  EXPECT_TRUE(schedules("batch_size=2 max_pages_per_seq=4000"));
  EXPECT_TRUE(schedules("batch_size=512 max_pages_per_seq=129"));
  EXPECT_FALSE(schedules("batch_size=513 max_pages_per_seq=129"));
  EXPECT_FALSE(schedules("batch_size=64 max_pages_per_seq=128"));
  EXPECT_FALSE(schedules("max_pages_per_seq=4000"));
  EXPECT_FALSE(schedules("batch_size=64 max_pages_per_seq=129 num_splits=3"));
  EXPECT_FALSE(schedules("batch_size=64 max_pages_per_seq=129 num_splits=1"));
  EXPECT_FALSE(schedules("batch_size=64 max_pages_per_seq=129 batch_invariant=1"));
}

/// Tiles of rows that fill the device want no parts.
TEST(HopperStepLowering, SchedulesNoKeysOfChunksInMlasForm) {
  KvCacheProblem problem = parse_problem(concat(kMla, "batch_size=4 num_pages=8192 max_pages_per_seq=512"));
  const auto schedules = [&problem](std::int64_t queries) {
    problem.seqlen_q = queries;
    return schedules_mlas_keys(lower(problem, h200()));
  };
  EXPECT_TRUE(schedules(66));
  EXPECT_FALSE(schedules(67));
}

/// 128 heads of one query, where tiles are many copies: 64 heads are one block.
TEST(HopperStepLowering, HasPairsOfBlocksShareKeysInSmallPages) {
  KvCacheProblem problem = parse_problem(concat(kMla, "num_pages=512 max_pages_per_seq=512"));
  const auto cluster = [&problem](std::int64_t page_size, std::int64_t heads) {
    problem.page_size = page_size;
    problem.num_heads_q = heads;
    const gpu::Outcome outcome = lower(problem, h200());
    const gpu::Launch& launch = *outcome.lowering.launches().at(0);
    EXPECT_EQ(launch.grid.x % launch.cluster.x, 0U);
    return launch.cluster;
  };
  EXPECT_EQ(cluster(64, 128), gpu::Extent3{});
  EXPECT_EQ(cluster(16, 128), gpu::Extent3{2});
  EXPECT_EQ(cluster(24, 128), gpu::Extent3{2});
  EXPECT_EQ(cluster(16, 64), gpu::Extent3{});
}

TEST(HopperStepLowering, RefusesMlasFormWithAReason) {
  KvCacheProblem problem = parse_problem(concat(kMla, "num_pages=64 max_pages_per_seq=64"));
  EXPECT_EQ(lower(problem, h200()).refusal, "");
  const auto refusal = [&problem](auto member, auto value) {
    KvCacheProblem other = problem;
    other.*member = value;
    return lower(other, h200()).refusal;
  };
  using P = KvCacheProblem;
  EXPECT_EQ(refusal(&P::head_dim, 512),
            "with mla, head_dim_v must be a multiple of 128 up to 512, and head_dim must be head_dim_v + 64 (got 512 "
            "and 512)");
  EXPECT_EQ(refusal(&P::page_size, 20), "page_size must be a multiple of 8 (got 20)");
  EXPECT_EQ(refusal(&P::num_splits, 3), "");
  EXPECT_EQ(refusal(&P::layout, Layout::thd), "");
  EXPECT_EQ(refusal(&P::num_heads_k, 2), "with mla, num_heads_k must be 1 (got 2)");
  EXPECT_EQ(refusal(&P::mask_mod, "kv_idx<=q_idx"),
            "with mla, score_mod, mask_mod and block_mask must be none (got one)");
  EXPECT_EQ(refusal(&P::window_left, 9), "with mla, window_left must be -1 (got 9)");
  EXPECT_EQ(refusal(&P::rotary_dim, 64), "with mla, rotary_dim must be 0 (got 64)");
  EXPECT_EQ(refusal(&P::softcap, 2.0), "with mla, softcap must be 0 (got 2)");
  EXPECT_EQ(refusal(&P::softmax_scale, -1.0), "with mla, softmax_scale must be > 0 (got -1)");
  EXPECT_EQ(refusal(&P::alibi_slopes, AlibiKind::per_head), "with mla, alibi_slopes must be none (got some)");
  EXPECT_EQ(refusal(&P::sink, SinkKind::f32), "with mla, sink must be none (got one)");
  EXPECT_EQ(refusal(&P::unaligned, true),
            "every row of q, k_cache and out must start on 16 bytes (got one that does not)");
}

}  // namespace
}  // namespace tilewise::backends::hopper
