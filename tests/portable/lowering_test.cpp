// Lowering as a pure function: which kernels a problem takes, how they are split, and what workspace they get.
#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <span>
#include <vector>

#include "backends/portable/launch_description.hpp"
#include "backends/portable/schedule.hpp"
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
  const DeviceTraits traits = traits_of(architecture);
  for (int taken = 0, drawn = 0; taken < 1000 && drawn < 100000; ++drawn) {
    const Problem problem = problem_for(architecture, concat(kind, random_shape(random, fewest_queries)));
    const Lowering lowering = lower(problem, traits);
    if (!wanted(lowering)) continue;
    ++taken;
    for (const Launch& launch : lowering.launches) {
      sources.insert(make_source(launch.key, traits.machine, false).stub);
    }
  }
  return sources;
}

constexpr std::string_view kForward = "attention_forward dtype=bf16 head_dim=128 mask=causal";
constexpr std::string_view kBackward = "attention_backward dtype=bf16 head_dim=128 mask=causal";
constexpr auto kAnyLowering = [](const Lowering&) { return true; };

TEST(Lowering, ShapesShareKernels) {
  for (const std::string_view architecture : kMachines) {
    const auto whole = [](const Lowering& lowering) { return lowering.launches.size() == 1; };
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
    const Lowering once = lowered(architecture, concat(kForward, " seqlen_q=1 seqlen_k=8192"));
    const Lowering again = lowered(architecture, concat(kForward, " seqlen_q=1 seqlen_k=8192"));
    ASSERT_EQ(once.launches.size(), again.launches.size());
    EXPECT_EQ(once.launches[0].key, again.launches[0].key);
    EXPECT_EQ(once.schedule, again.schedule);
    EXPECT_EQ(once.estimated_us, again.estimated_us);
  }
}

enum class Changes { key, parameters, either };

struct Option {
  std::string_view with, without;
  Changes changes;
};

/// Keys of all launches, and the bytes that they are launched with.
struct Effect {
  std::vector<KernelKey> keys;
  std::vector<std::byte> parameters;
};

Effect effect_of(std::string_view architecture, const std::string& text) {
  Effect effect;
  const device::AttentionParams call = contiguous_params(problem_for(architecture, text));
  for (const Launch& launch : lowered(architecture, text).launches) {
    effect.keys.push_back(launch.key);
    const device::KernelParams params{call, launch.grid};
    const auto bytes = std::as_bytes(std::span(&params, 1));
    effect.parameters.insert(effect.parameters.end(), bytes.begin(), bytes.end());
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
      if (option.changes == Changes::parameters) {
        EXPECT_EQ(with.keys, without.keys) << words;
      }
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
    {"batch_invariant=1", "", Changes::either},
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
      {"deterministic=1", "", Changes::either},
  };
  for (const std::string_view architecture : kMachines) {
    expect_changes(architecture, "attention_forward dtype=bf16 seqlen_q=4096 num_heads_q=64 head_dim=128",
                   kForwardOnly);
    expect_changes(architecture, "attention_backward dtype=bf16 seqlen_q=4096 num_heads_q=64 head_dim=128",
                   kBackwardOnly);
  }
}

/// Sums in no fixed order serve only those who asked for neither kind of reproducible dq.
TEST(Lowering, QuerySumsAreAddedWhereOrderIsFree) {
  const auto adds = [](std::string_view architecture, std::string_view options) {
    const Lowering backward = lowered(architecture, concat(kBackward, " seqlen_q=4096 num_heads_q=8 ", options));
    const bool own_kernel = std::ranges::any_of(
        backward.launches, [](const Launch& launch) { return launch.key.kind == KernelKind::query_gradient; });
    const bool sums = backward.workspace.query_sums >= 0;
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

const Launch* find_launch(const Lowering& lowering, KernelKind kind) {
  const auto found = std::ranges::find_if(lowering.launches, [&](const Launch& l) { return l.key.kind == kind; });
  return found == lowering.launches.end() ? nullptr : &*found;
}

TEST(Lowering, FewBlocksOfKeysShareTheirQueriesOut) {
  constexpr std::string_view kFew =
      "attention_backward dtype=bf16 seqlen_q=1024 num_heads_q=16 num_heads_k=2 head_dim=128";
  const Lowering few = lowered("sm_90a", kFew);
  const Launch *fused = find_launch(few, KernelKind::fused_gradient),
               *store = find_launch(few, KernelKind::store_key_sums);
  ASSERT_TRUE(fused != nullptr && store != nullptr);
  EXPECT_TRUE(fused->key.config.split);
  EXPECT_GT(fused->grid.num_splits, 1);
  EXPECT_LE(fused->blocks, static_cast<std::uint32_t>(traits_of("sm_90a").multiprocessors));
  EXPECT_EQ(fused->grid.key_splits, fused->grid.num_splits);
  EXPECT_EQ(store->grid.key_splits, fused->grid.num_splits);
  EXPECT_EQ(store->grid.num_splits, 2) << "dk and dv";
  EXPECT_GE(few.workspace.key_sums, 0);
  for (const std::string_view whole : {" batch_size=16", " batch_invariant=1"}) {
    EXPECT_EQ(find_launch(lowered("sm_90a", concat(kFew, whole)), KernelKind::store_key_sums), nullptr) << whole;
  }
}

TEST(Lowering, FewQueriesAreSplit) {
  for (const std::string_view architecture : kMachines) {
    const Lowering decode =
        lowered(architecture,
                "attention_forward dtype=bf16 seqlen_q=1 seqlen_k=16384 num_heads_q=32 num_heads_k=8 head_dim=128");
    ASSERT_EQ(decode.launches.size(), 2U) << architecture;
    const Launch &forward = decode.launches[0], &merge = decode.launches[1];
    EXPECT_TRUE(forward.key.config.split && forward.key.config.packed_heads);
    EXPECT_EQ(merge.key.kind, KernelKind::merge_splits);
    const std::int32_t splits = forward.grid.num_splits;
    EXPECT_GT(splits, 1);
    EXPECT_LE(splits * 4 * forward.key.config.tile_cols, 16384) << "a split of fewer tiles is not worth a merge";
    EXPECT_EQ(merge.grid.num_splits, splits);
    EXPECT_EQ(forward.blocks, static_cast<std::uint32_t>(8 * splits)) << "8 heads of keys, their queries in one tile";
    EXPECT_NE(decode.schedule.find(concat(splits, " splits")), std::string::npos) << decode.schedule;
  }
}

TEST(Lowering, ManyQueriesAndInvariantBatchesAreNot) {
  for (const std::string_view architecture : kMachines) {
    for (const std::string_view text :
         {"attention_forward dtype=bf16 batch_size=4 seqlen_q=8192 num_heads_q=32 head_dim=128",
          "attention_forward dtype=bf16 seqlen_q=1 seqlen_k=64 num_heads_q=8 head_dim=128",
          "attention_forward dtype=bf16 seqlen_q=1 seqlen_k=16384 num_heads_q=8 head_dim=128 batch_invariant=1"}) {
      const Lowering whole = lowered(architecture, text);
      ASSERT_EQ(whole.launches.size(), 1U) << architecture << ": " << text;
      EXPECT_FALSE(whole.launches[0].key.config.split);
      EXPECT_EQ(whole.launches[0].grid.num_splits, 1);
      EXPECT_EQ(whole.workspace.size, 0U);
    }
  }
}

/// What is split does not depend on the batch, nor does the order of sums: only batch_invariant promises that.
TEST(Lowering, InvariantBatchesShareSchedules) {
  for (const std::string_view architecture : kMachines) {
    const std::string text =
        "attention_forward dtype=bf16 seqlen_q=32 seqlen_k=8192 num_heads_q=8 head_dim=128 "
        "batch_invariant=1";
    const Lowering one = lowered(architecture, text), many = lowered(architecture, text + " batch_size=64");
    EXPECT_EQ(one.launches[0].key, many.launches[0].key);
    EXPECT_EQ(one.launches[0].grid.num_tiles, many.launches[0].grid.num_tiles);
    EXPECT_EQ(one.launches[0].blocks * 64, many.launches[0].blocks);
  }
}

struct Part {
  std::int64_t offset, size;
};

void expect_placed(const WorkspaceParts& workspace, std::vector<Part> parts, const std::string& words) {
  std::ranges::sort(parts, {}, &Part::offset);
  std::int64_t end = 0;
  for (const Part& part : parts) {
    EXPECT_EQ(part.offset % static_cast<std::int64_t>(kWorkspaceAlignment), 0) << words;
    EXPECT_GE(part.offset, end) << words;
    end = part.offset + part.size;
  }
  EXPECT_LE(end, static_cast<std::int64_t>(workspace.size)) << words;
}

TEST(Lowering, WorkspacePartsLieApart) {
  std::mt19937_64 random(3);
  int split = 0;
  for (int i = 0; i < 500; ++i) {
    const std::string_view architecture = kArchitectures[static_cast<std::size_t>(i) % std::size(kArchitectures)];
    const std::string text = concat("attention_forward dtype=f16 head_dim=64", random_shape(random, 1));
    const Lowering forward = lowered(architecture, text);
    const Problem p = problem_for(architecture, text);
    const std::int64_t rows = p.batch_size * p.num_heads_q * p.seqlen_q;
    EXPECT_EQ(forward.workspace.delta, -1);
    EXPECT_EQ(forward.workspace.partial_out >= 0, forward.launches.size() == 2U);
    if (forward.launches.size() == 2U) {
      ++split;
      const std::int64_t splits = forward.launches[0].grid.num_splits;
      expect_placed(forward.workspace,
                    {{forward.workspace.partial_out, 4 * splits * rows * p.head_dim_v},
                     {forward.workspace.partial_lse, 4 * splits * rows}},
                    text);
    }
    const Lowering backward = lowered(architecture, concat("attention_backward", text.substr(text.find(' '))));
    EXPECT_EQ(backward.workspace.partial_out, -1);
    expect_placed(backward.workspace, {{backward.workspace.delta, 4 * rows}}, text);
  }
  EXPECT_GT(split, 50);
}

TEST(Lowering, WorkspacePointersArePlaced) {
  WorkspaceParts parts;
  parts.partial_out = 0;
  parts.partial_lse = 512;
  alignas(kWorkspaceAlignment) std::byte memory[1024];
  device::GridParams grid{};
  grid.num_tiles = 7;
  const device::GridParams placed = place_workspace(grid, parts, memory);
  EXPECT_EQ(placed.num_tiles, 7);
  EXPECT_EQ(static_cast<void*>(placed.partial_out), memory);
  EXPECT_EQ(static_cast<void*>(placed.partial_lse), memory + 512);
  EXPECT_EQ(placed.delta, nullptr);
}

TEST(Lowering, EmptyProblemsLaunchWhatWritesOutputs) {
  for (const std::string_view architecture : kMachines) {
    EXPECT_TRUE(
        lowered(architecture, "attention_forward dtype=bf16 seqlen_q=0 seqlen_k=8 head_dim=64").launches.empty());
    const Lowering no_keys = lowered(architecture, "attention_forward dtype=bf16 seqlen_q=8 seqlen_k=0 head_dim=64");
    ASSERT_EQ(no_keys.launches.size(), 1U) << "out is zero and softmax_lse minus infinity: someone must write them";
    EXPECT_EQ(no_keys.launches[0].blocks, 1U);
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

}  // namespace
}  // namespace tilewise::backends::portable
