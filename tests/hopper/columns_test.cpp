// Heads whose columns are turned: which problems have such, what maps their launches get, and which heads of a call
// they are.
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "backends/cuda/hopper/forward_launch.hpp"
#include "support.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::concat, device::HopperForwardParams, device::OddStarts, device::Tensor4;

bool turns(const std::string& rest) {
  const gpu::Lowering lowering = lowered(concat("num_heads_q=16 ", rest));
  return gpu::config_of<Forward>(lowering.launches().at(0)->key).turned_columns != 0;
}

TEST(HopperColumns, AreTurnedWhereThePieceIsAlone) {
  const std::string some = " batch_size=2 seqlen_q=600 ", many = " batch_size=2 seqlen_q=2048 ";
  for (const std::string dims :
       {"head_dim=72", "head_dim=136 mask=causal", "head_dim=200 softcap=9", "head_dim=72 head_dim_v=136"}) {
    EXPECT_TRUE(turns("dtype=bf16 " + dims + some)) << dims;
    EXPECT_TRUE(turns("dtype=f16 " + dims + some)) << dims;
  }
  for (const std::string dims :
       {"head_dim=88", "head_dim=64", "head_dim=8", "head_dim=72 head_dim_v=80", "head_dim=80 head_dim_v=72"}) {
    EXPECT_FALSE(turns("dtype=bf16 " + dims + some)) << dims;
  }
  EXPECT_FALSE(turns("dtype=fp8_e4m3 out_dtype=bf16 head_dim=144" + some));
  EXPECT_FALSE(turns("dtype=bf16 head_dim=136" + many)) << "blocks share keys";
  EXPECT_FALSE(turns("dtype=bf16 head_dim=72 seqlen_q=8 seqlen_k=4000")) << "keys in parts";
}

TEST(HopperColumns, OfACacheAreInTheirOrder) {
  const KvCacheProblem p = parse_problem(
      "kv_cache_attention device=cuda dtype=bf16 batch_size=64 seqlen_q=600 num_heads_q=16 head_dim=72 capacity=700");
  const gpu::Outcome outcome = lower(p, h200());
  ASSERT_EQ(outcome.refusal, "");
  EXPECT_EQ(gpu::config_of<Forward>(outcome.lowering.launches().at(0)->key).turned_columns, 0);
}

TEST(HopperColumns, HaveMapsOfTheFirstOnes) {
  const gpu::Lowering lowering =
      lowered("dtype=bf16 batch_size=2 seqlen_q=600 num_heads_q=16 head_dim=72 bias=query[1,h,q,k]");
  const std::vector<gpu::TensorMapParameter>& maps = lowering.launches().at(0)->tensor_maps;
  using Params = HopperForwardParams;
  const std::array<std::size_t, 4> places{offsetof(Params, q_map), offsetof(Params, k_map), offsetof(Params, v_map),
                                          offsetof(Params, out_map)},
      firsts{offsetof(Params, q_first_map), offsetof(Params, k_first_map), offsetof(Params, v_first_map),
             offsetof(Params, out_first_map)};
  ASSERT_EQ(maps.size(), 2 * places.size() + 1);  // and the bias'
  for (std::size_t i = 0; i < places.size(); ++i) {
    const gpu::TensorMapParameter &all = maps[i], &first = maps[places.size() + i];
    EXPECT_EQ(all.param_offset, places[i]);
    EXPECT_EQ(all.most_columns, 0U);
    EXPECT_EQ(first.param_offset, firsts[i]);
    EXPECT_EQ(first.most_columns, 8U);
    EXPECT_EQ(first.map, all.map);
    EXPECT_EQ(first.bind, all.bind);
  }
}

/// Of tensors of [2, 600, 16, 72] from `start` on.
Tensor4 tensor_at(std::byte* start) { return {start, 600 * 16 * 72, 16 * 72, 72}; }

TEST(HopperColumns, AreTurnedOfHeadsThatBeginBetweenSectors) {
  alignas(32) std::byte memory[32];
  const OddStarts even = odd_starts(tensor_at(memory)), odd = odd_starts(tensor_at(memory + 16));
  for (const int head : {0, 1, 2, 3}) {
    EXPECT_EQ(device::is_turned(even, head), head % 2 == 1) << head;
    EXPECT_EQ(device::is_turned(odd, head), head % 2 == 0) << head;
  }
  Tensor4 padded = tensor_at(memory + 16);
  padded.head_stride = 80;
  EXPECT_TRUE(device::is_turned(odd_starts(padded), 0));
  EXPECT_TRUE(device::is_turned(odd_starts(padded), 1));
  // Rows that begin differently: no order suits all.
  Tensor4 rows = tensor_at(memory), entries = tensor_at(memory);
  rows.seq_stride = 72;
  entries.batch_stride += 8;
  for (const int head : {0, 1}) {
    EXPECT_FALSE(device::is_turned(odd_starts(rows), head));
    EXPECT_FALSE(device::is_turned(odd_starts(entries), head));
  }
}

}  // namespace
}  // namespace tilewise::backends::hopper
