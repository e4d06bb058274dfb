// Lowering as a pure function: which kernels a problem takes, how they are split, and what workspace they get.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

std::int64_t draw(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  // Small values as often as large ones.
  const double position = std::uniform_real_distribution<double>(0.0, 1.0)(random);
  const double value =
      static_cast<double>(low) * std::pow(static_cast<double>(high) / static_cast<double>(low), position);
  return std::clamp(static_cast<std::int64_t>(value), low, high);
}

std::string random_shape(std::mt19937_64& random, std::int64_t fewest_queries) {
  const std::int64_t heads_k = draw(random, 1, 16);
  constexpr std::string_view kLayouts[] = {"bshd", "sbhd", "bhsd"};
  return concat(" layout=", kLayouts[random() % 3], " batch_size=", draw(random, 1, 64),
                " seqlen_q=", draw(random, fewest_queries, 1 << 15), " seqlen_k=", draw(random, 1, 1 << 17),
                " num_heads_k=", heads_k, " num_heads_q=", heads_k * draw(random, 1, 16));
}

/// The distinct sources of 1,000 shapes, which `wanted` may turn down.
template <typename Wanted>
std::set<std::string> sources_of_shapes(std::string_view architecture, std::string_view kind,
                                        std::int64_t fewest_queries, Wanted&& wanted) {
  std::mt19937_64 random(17);
  std::set<std::string> sources;
  for (int taken = 0, drawn = 0; taken < 1000 && drawn < 100000; ++drawn) {
    const gpu::Lowering lowering = lowered(architecture, concat(kind, random_shape(random, fewest_queries)));
    if (!wanted(lowering)) continue;
    ++taken;
    for (const gpu::Launch* launch : lowering.launches()) sources.insert(gpu::make_source(launch->key, false).stub);
  }
  return sources;
}

constexpr std::string_view kForward = "attention_forward dtype=bf16 head_dim=128 mask=causal";
constexpr std::string_view kBackward = "attention_backward dtype=bf16 head_dim=128 mask=causal";
constexpr auto kAnyLowering = [](const gpu::Lowering&) { return true; };

TEST(Lowering, ShapesShareKernels) {
  for (const std::string_view architecture : kMachines) {
    const auto whole = [](const gpu::Lowering& lowering) { return lowering.steps.size() == 1; };
    EXPECT_EQ(sources_of_shapes(architecture, kForward, 513, whole).size(), 1U) << architecture;
    // On NVIDIA few blocks of keys share their queries out, and another kernel adds up their parts.
    const std::size_t backward = sources_of_shapes(architecture, kBackward, 1, kAnyLowering).size();
    EXPECT_EQ(backward, architecture.starts_with("sm_") ? 5U : 3U) << architecture;
    // Few queries have smaller blocks (of three sizes), packed heads or not, and keys split or not, then merged.
    EXPECT_LE(sources_of_shapes(architecture, kForward, 1, kAnyLowering).size(), 4U * 2 * 2 + 1) << architecture;
  }
}

TEST(Lowering, IsPure) {
  for (const std::string_view architecture : kArchitectures) {
    const gpu::Lowering once = lowered(architecture, concat(kForward, " seqlen_q=1 seqlen_k=8192"));
    const gpu::Lowering again = lowered(architecture, concat(kForward, " seqlen_q=1 seqlen_k=8192"));
    ASSERT_EQ(once.launches().size(), again.launches().size());
    EXPECT_EQ(once.launches()[0]->key, again.launches()[0]->key);
    EXPECT_EQ(once.schedule, again.schedule);
    EXPECT_EQ(once.estimated_us, again.estimated_us);
  }
}

enum class Changes { key, parameters };

struct Option {
  std::string_view with, without;
  Changes changes;
};

/// Keys of all launches, and the bytes that they are launched with.
struct Effect {
  std::vector<gpu::KernelKey> keys;
  std::vector<std::byte> parameters;
};

Effect effect_of(std::string_view architecture, const std::string& text) {
  Effect effect;
  const device::AttentionParams call = contiguous_params(problem_for(architecture, text));
  const gpu::Lowering lowering = lowered(architecture, text);
  for (const gpu::Launch* launch : lowering.launches()) {
    effect.keys.push_back(launch->key);
    alignas(64) std::array<std::byte, gpu::kMostParameterBytes> block;
    gpu::fill_params(*launch, &call, nullptr, block.data());
    effect.parameters.insert(effect.parameters.end(), block.begin(),
                             block.begin() + static_cast<std::ptrdiff_t>(launch->params.size()));
  }
  return effect;
}

/// Whether a kernel is compiled for the option's value, or told it at run time. Nothing is ignored.
void expect_changes(std::string_view architecture, std::string_view problem, std::span<const Option> options) {
  for (const Option& option : options) {
    const Effect with = effect_of(architecture, concat(problem, " ", option.with));
    const Effect without = effect_of(architecture, concat(problem, " ", option.without));
    const std::string words = concat(architecture, ": ", problem, ": ", option.with, " or else ", option.without);
    if (option.changes == Changes::key) {
      EXPECT_NE(with.keys, without.keys) << words;
    } else {
      EXPECT_EQ(with.keys, without.keys) << words;
      EXPECT_NE(with.parameters, without.parameters) << words;
    }
  }
}

constexpr Option kForwardOptions[] = {
    {"dtype=f16", "dtype=bf16", Changes::key},
    {"head_dim=64", "head_dim=128", Changes::key},
    {"head_dim=120", "head_dim=128", Changes::key},  // padded: columns are checked
    {"head_dim=120", "head_dim=112", Changes::parameters},
    {"head_dim_v=64", "", Changes::key},
    {"unaligned=1", "", Changes::key},
    {"mask=causal", "", Changes::key},
    {"window_left=64", "", Changes::key},
    {"window_right=64", "", Changes::key},
    {"window_left=64", "window_left=63", Changes::parameters},
    {"window_left=64 window_right=64", "window_left=64", Changes::parameters},
    {"mask=causal alignment=top_left", "mask=causal", Changes::parameters},
    {"softmax_scale=0.5", "", Changes::parameters},
    {"softmax_scale=-0.5", "softmax_scale=0.5", Changes::key},
    {"softcap=30", "", Changes::key},
    {"softcap=30", "softcap=50", Changes::parameters},
    {"alibi_slopes=[h]", "", Changes::key},
    {"alibi_slopes=[b,h] batch_size=2", "alibi_slopes=[h] batch_size=2", Changes::parameters},
    {"bias=f32[1,h,q,k]", "", Changes::key},
    {"bias=f32[1,h,q,k]", "bias=query[1,h,q,k]", Changes::key},
    {"bias=f32[1,h,q,k]", "bias=bool[1,h,q,k]", Changes::key},
    {"bias=f32[1,h,q,k]", "bias=f32[1,1,q,k]", Changes::parameters},
    {"bias=f32[b,h,q,k] batch_size=2", "bias=f32[1,h,q,k] batch_size=2", Changes::parameters},
    {"dropout_p=0.25", "", Changes::key},
    {"dropout_p=0.25", "dropout_p=0.5", Changes::parameters},
    {"dropout_p=0.25 seed_tensor=1", "dropout_p=0.25", Changes::parameters},
    {"layout=thd max_seqlen_q=512 max_seqlen_k=512", "seqlen_q=512 seqlen_k=512", Changes::key},
    {"layout=bhsd", "layout=bshd", Changes::parameters},
    {"seqused_q=1", "", Changes::key},
    {"seqused_k=1", "", Changes::key},
    {"leftpad_k=1", "", Changes::key},
};

TEST(Lowering, EveryOptionCounts) {
  constexpr std::string_view kGivenHere[] = {"dtype=", "head_dim=", "max_seqlen_q="};
  for (const std::string_view architecture : kMachines) {
    for (const std::string_view operation : {"attention_forward", "attention_backward"}) {
      for (const Option& option : kForwardOptions) {
        std::string problem = concat(operation, " num_heads_q=64");
        const auto complete = [&](std::string_view key, std::string_view value) {
          if (concat(option.with, " ", option.without).find(key) == std::string::npos) {
            core::append(problem, concat(" ", key, value));
          }
        };
        complete(kGivenHere[0], "bf16");
        complete("seqlen_q=", "4096");
        complete(kGivenHere[1], "128");
        expect_changes(architecture, problem, std::span(&option, 1));
      }
    }
  }
}

TEST(Lowering, OptionsOfOnePassCount) {
  constexpr Option kForwardOnly[] = {{"sink=1", "", Changes::key},
                                     {"sink=query", "sink=1", Changes::parameters},
                                     {"softmax_lse=0", "", Changes::parameters}};
  constexpr Option kBackwardOnly[] = {
      {"dlse=1", "", Changes::parameters},
      {"dq=0", "", Changes::key},
      {"dk=0", "", Changes::key},
      {"dv=0", "", Changes::key},
      {"bias=f32[1,h,q,k] dbias=1", "bias=f32[1,h,q,k]", Changes::key},
      {"sink=1 dsink=1", "sink=1", Changes::key},
      {"sink=query dsink=1", "sink=1 dsink=1", Changes::parameters},
  };
  for (const std::string_view architecture : kMachines) {
    expect_changes(architecture, "attention_forward dtype=bf16 seqlen_q=4096 num_heads_q=64 head_dim=128",
                   kForwardOnly);
    expect_changes(architecture, "attention_backward dtype=bf16 seqlen_q=4096 num_heads_q=64 head_dim=128",
                   kBackwardOnly);
  }
}

/// Where reproducibility takes nothing but the right schedule, no kernel is told of it.
TEST(Lowering, InvariantBatchesAreNotSplit) {
  constexpr std::string_view kDecode =
      "attention_forward dtype=bf16 seqlen_q=1 seqlen_k=16384 num_heads_q=8 head_dim=128";
  for (const std::string_view architecture : kMachines) {
    EXPECT_NE(effect_of(architecture, concat(kDecode, " batch_invariant=1")).keys,
              effect_of(architecture, std::string(kDecode)).keys);
  }
}

/// Sums in no fixed order serve only those who asked for neither kind of reproducible dq.
TEST(Lowering, DqIsAccumulatedWhereOrderIsFree) {
  const auto adds = [](std::string_view architecture, std::string_view options) {
    const gpu::Lowering backward = lowered(architecture, concat(kBackward, " seqlen_q=4096 num_heads_q=8 ", options));
    const bool own_kernel = find_launch<BwdDq>(backward) != nullptr, sums = backward.part("dq_accum") != nullptr;
    EXPECT_NE(own_kernel, sums) << architecture << " " << options;
    return sums;
  };
  EXPECT_TRUE(adds("sm_90a", ""));
  EXPECT_TRUE(adds("sm_80", "softcap=30"));
  for (const std::string_view reproducible : {"deterministic=1", "batch_invariant=1"}) {
    EXPECT_FALSE(adds("sm_90a", reproducible));
  }
  for (const std::string_view architecture : {"gfx942", "gfx1100"}) EXPECT_FALSE(adds(architecture, ""));
}

TEST(Lowering, FewBlocksOfKeysShareTheirQueriesOut) {
  constexpr std::string_view kFew =
      "attention_backward dtype=bf16 seqlen_q=1024 num_heads_q=16 num_heads_k=2 head_dim=128";
  const gpu::Lowering few = lowered("sm_90a", kFew);
  const gpu::Launch *bwd = find_launch<Bwd>(few), *convert = find_launch<BwdConvertDkdv>(few);
  ASSERT_TRUE(bwd != nullptr && convert != nullptr);
  EXPECT_TRUE(gpu::config_of<Bwd>(bwd->key).split);
  const std::int32_t splits = params_of<Bwd>(*bwd).grid.num_splits;
  EXPECT_GT(splits, 1);
  EXPECT_LE(bwd->grid.count(), static_cast<std::uint64_t>(traits_of("sm_90a").multiprocessors));
  EXPECT_EQ(params_of<BwdConvertDkdv>(*convert).num_splits, splits);
  EXPECT_EQ(params_of<BwdConvertDkdv>(*convert).grid.num_splits, 2) << "dk and dv";
  for (const std::string_view part : {"dk_accum", "dv_accum"}) EXPECT_NE(few.part(part), nullptr) << part;
  for (const std::string_view whole : {" batch_size=16", " batch_invariant=1"}) {
    EXPECT_EQ(find_launch<BwdConvertDkdv>(lowered("sm_90a", concat(kFew, whole))), nullptr) << whole;
  }
}

TEST(Lowering, FewQueriesAreSplit) {
  for (const std::string_view architecture : kMachines) {
    const gpu::Lowering decode =
        lowered(architecture,
                "attention_forward dtype=bf16 seqlen_q=1 seqlen_k=16384 num_heads_q=32 num_heads_k=8 head_dim=128");
    ASSERT_EQ(decode.steps.size(), 2U) << architecture;
    const gpu::Launch &forward = *decode.launches()[0], &combine = *decode.launches()[1];
    const device::ForwardConfig config = gpu::config_of<Forward>(forward.key);
    EXPECT_TRUE(config.split && config.pack_gqa);
    const std::int32_t splits = params_of<Forward>(forward).grid.num_splits;
    EXPECT_GT(splits, 1);
    EXPECT_LE(splits * 4 * config.block_n, 16384) << "a split of fewer tiles is not worth a combine";
    EXPECT_EQ(params_of<Combine>(combine).num_splits, splits);
    EXPECT_EQ(forward.grid.x, static_cast<std::uint32_t>(8 * splits)) << "8 heads of keys, their queries in one tile";
    EXPECT_NE(decode.schedule.find(concat(splits, " splits")), std::string::npos) << decode.schedule;
  }
}

TEST(Lowering, ManyQueriesAndInvariantBatchesAreNot) {
  for (const std::string_view architecture : kMachines) {
    for (const std::string_view text :
         {"attention_forward dtype=bf16 batch_size=4 seqlen_q=8192 num_heads_q=32 head_dim=128",
          "attention_forward dtype=bf16 seqlen_q=1 seqlen_k=64 num_heads_q=8 head_dim=128",
          "attention_forward dtype=bf16 seqlen_q=1 seqlen_k=16384 num_heads_q=8 head_dim=128 batch_invariant=1"}) {
      const gpu::Lowering whole = lowered(architecture, text);
      ASSERT_EQ(whole.steps.size(), 1U) << architecture << ": " << text;
      const gpu::Launch& forward = *whole.launches()[0];
      EXPECT_FALSE(gpu::config_of<Forward>(forward.key).split);
      EXPECT_EQ(params_of<Forward>(forward).grid.num_splits, 1);
      EXPECT_EQ(whole.workspace_bytes, 0U);
    }
  }
}

/// The order of a row's sums follows from the tiles of keys, which must not depend on how many rows there are.
TEST(Lowering, InvariantBatchesHaveOneTileOfKeys) {
  for (const std::string_view architecture : kArchitectures) {
    for (int head_dim = 32; head_dim <= 256; head_dim += 32) {
      const auto keys_a_tile = [&](int queries) {
        const std::string text = concat("attention_forward dtype=bf16 batch_invariant=1 seqlen_k=4096 num_heads_q=8 ",
                                        "head_dim=", head_dim, " seqlen_q=", queries);
        return forward_config(problem_for(architecture, text), traits_of(architecture)).block_n;
      };
      for (const int queries : {1, 32, 64, 512}) {
        EXPECT_EQ(keys_a_tile(queries), keys_a_tile(4096)) << architecture << ", head_dim " << head_dim;
      }
    }
  }
}

/// What is split does not depend on the batch, nor does the order of sums: only batch_invariant promises that.
TEST(Lowering, InvariantBatchesShareSchedules) {
  for (const std::string_view architecture : kMachines) {
    const std::string text =
        "attention_forward dtype=bf16 seqlen_q=32 seqlen_k=8192 num_heads_q=8 head_dim=128 "
        "batch_invariant=1";
    const gpu::Lowering one = lowered(architecture, text), many = lowered(architecture, text + " batch_size=64");
    const gpu::Launch &of_one = *one.launches()[0], &of_many = *many.launches()[0];
    EXPECT_EQ(of_one.key, of_many.key);
    EXPECT_EQ(params_of<Forward>(of_one).grid.num_tiles, params_of<Forward>(of_many).grid.num_tiles);
    EXPECT_EQ(of_one.grid.count() * 64, of_many.grid.count());
  }
}

void expect_placed(const gpu::Lowering& lowering, const std::string& words) {
  std::size_t end = 0;
  for (const gpu::WorkspacePart& part : lowering.parts) {
    EXPECT_EQ(part.offset % gpu::kWorkspaceAlignment, 0U) << words;
    EXPECT_GE(part.offset, end) << words;
    EXPECT_GT(part.bytes, 0U) << words;
    end = part.offset + part.bytes;
  }
  EXPECT_LE(end, lowering.workspace_bytes) << words;
}

std::size_t bytes_of(const gpu::Lowering& lowering, std::string_view part) {
  return lowering.part(part) == nullptr ? 0 : lowering.part(part)->bytes;
}

TEST(Lowering, WorkspacePartsLieApart) {
  std::mt19937_64 random(3);
  int split = 0;
  for (int i = 0; i < 500; ++i) {
    const std::string_view architecture = kArchitectures[static_cast<std::size_t>(i) % std::size(kArchitectures)];
    const std::string text = concat("attention_forward dtype=f16 head_dim=64", random_shape(random, 1));
    const gpu::Lowering forward = lowered(architecture, text);
    const Problem p = problem_for(architecture, text);
    const auto rows = static_cast<std::size_t>(p.batch_size * p.num_heads_q * p.seqlen_q);
    EXPECT_EQ(forward.part("delta"), nullptr);
    EXPECT_EQ(forward.part("out_accum") != nullptr, forward.steps.size() == 2U);
    expect_placed(forward, text);
    if (forward.steps.size() == 2U) {
      ++split;
      const auto splits = static_cast<std::size_t>(params_of<Forward>(*forward.launches()[0]).grid.num_splits);
      EXPECT_EQ(bytes_of(forward, "out_accum"), 4 * splits * rows * static_cast<std::size_t>(p.head_dim_v));
      EXPECT_EQ(bytes_of(forward, "lse_accum"), 2 * 4 * splits * rows);
    }
    const gpu::Lowering backward = lowered(architecture, concat("attention_backward", text.substr(text.find(' '))));
    EXPECT_EQ(backward.part("out_accum"), nullptr);
    EXPECT_EQ(bytes_of(backward, "delta"), 4 * rows);
    expect_placed(backward, text);
  }
  EXPECT_GT(split, 50);
}

/// Whoever reads a part of the workspace finds it where the launch before wrote it.
TEST(Lowering, LaunchesShareWorkspaceParts) {
  const std::string text = "attention_backward dtype=bf16 seqlen_q=1024 num_heads_q=16 num_heads_k=2 head_dim=128";
  const device::AttentionParams call = contiguous_params(problem_for("sm_90a", text));
  const gpu::Lowering backward = lowered("sm_90a", text);
  alignas(64) std::array<std::byte, gpu::kMostParameterBytes> block;
  std::vector<std::byte> memory(backward.workspace_bytes);
  const auto filled = [&]<typename Kernel>(const Kernel*) {
    gpu::fill_params(*find_launch<Kernel>(backward), &call, memory.data(), block.data());
    typename Kernel::Params params;
    std::memcpy(&params, block.data(), sizeof params);
    return params;
  };
  const auto preprocess = filled(static_cast<BwdPreprocess*>(nullptr));
  const auto bwd = filled(static_cast<Bwd*>(nullptr));
  const auto dq = filled(static_cast<BwdConvertDq*>(nullptr));
  const auto dkdv = filled(static_cast<BwdConvertDkdv*>(nullptr));
  EXPECT_EQ(preprocess.delta, bwd.delta);
  EXPECT_EQ(preprocess.dq_accum, bwd.dq_accum);
  EXPECT_EQ(dq.dq_accum, bwd.dq_accum);
  EXPECT_EQ(dkdv.dk_accum, bwd.dk_accum);
  EXPECT_EQ(dkdv.dv_accum, bwd.dv_accum);
  for (const float* part : {bwd.delta, static_cast<const float*>(bwd.dq_accum), dkdv.dk_accum, dkdv.dv_accum}) {
    const auto offset = reinterpret_cast<const std::byte*>(part) - memory.data();
    EXPECT_TRUE(offset >= 0 && static_cast<std::size_t>(offset) < memory.size());
  }
}

TEST(Lowering, EmptyProblemsLaunchWhatWritesOutputs) {
  for (const std::string_view architecture : kMachines) {
    EXPECT_TRUE(lowered(architecture, "attention_forward dtype=bf16 seqlen_q=0 seqlen_k=8 head_dim=64").steps.empty());
    const gpu::Lowering no_keys =
        lowered(architecture, "attention_forward dtype=bf16 seqlen_q=8 seqlen_k=0 head_dim=64");
    ASSERT_EQ(no_keys.steps.size(), 1U) << "out is zero and softmax_lse minus infinity: someone must write them";
    EXPECT_EQ(no_keys.launches()[0]->grid.count(), 1U);
  }
}

/// Cost estimates order problems by their work.
TEST(Lowering, EstimatesGrowWithTheWork) {
  for (const std::string_view architecture : kArchitectures) {
    const auto estimate = [&](std::string_view text) { return lowered(architecture, text).estimated_us; };
    const double causal =
        estimate("attention_forward dtype=bf16 seqlen_q=8192 num_heads_q=32 head_dim=128 mask=causal");
    const double full = estimate("attention_forward dtype=bf16 seqlen_q=8192 num_heads_q=32 head_dim=128");
    const double gradients = estimate("attention_backward dtype=bf16 seqlen_q=8192 num_heads_q=32 head_dim=128");
    EXPECT_LT(0.0, causal) << architecture;
    EXPECT_LT(causal, full) << architecture;
    EXPECT_LT(full, gradients) << architecture;
  }
}

/// A mask that hides nothing of one query costs nothing: the kernel is the one without.
TEST(Lowering, OneQueryAtTheEndOfItsKeysNeedsNoMask) {
  const auto kernel = [](std::string_view options) {
    return lowered("sm_90a", core::concat("attention_forward dtype=bf16 seqlen_k=4096 head_dim=64 ", options))
        .launches()
        .at(0)
        ->key;
  };
  EXPECT_EQ(kernel("seqlen_q=1 mask=causal"), kernel("seqlen_q=1"));
  EXPECT_NE(kernel("seqlen_q=1 mask=causal alignment=top_left"), kernel("seqlen_q=1"));
  EXPECT_NE(kernel("seqlen_q=1 mask=causal window_left=5"), kernel("seqlen_q=1"));
  EXPECT_NE(kernel("seqlen_q=2 mask=causal"), kernel("seqlen_q=2"));
}

}  // namespace
}  // namespace tilewise::backends::portable
