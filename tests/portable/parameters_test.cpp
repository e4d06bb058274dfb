// The parameter blocks: layouts, frozen, since launch.json, code objects in the cache and bundles depend on them; and
// the tables of pointers.
#include "backends/portable/attention/parameters.hpp"

#include <algorithm>
#include <cstring>
#include <set>

#include "../support/dense_call.hpp"
#include "backends/portable/attention/bind.hpp"
#include "operations/attention/call.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using device::AttentionParams;
using gpu::ParameterField;

static_assert(sizeof(device::AttentionShape) == 112 && sizeof(device::ScoreParams) == 136);
static_assert(sizeof(device::ForwardParams) == 536 && sizeof(device::BwdParams) == 576);

const ParameterField& field_named(const std::vector<ParameterField>& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, &ParameterField::name);
  EXPECT_NE(found, fields.end()) << name;
  return found == fields.end() ? fields.front() : *found;
}

/// Fields follow each other, each on a multiple of its size, with no room left that a field could hide in.
TEST(ParameterFields, CoverEachBlock) {
  for_each_kernel([]<typename Kernel> {
    std::size_t end = 0;
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.offset % field.size, 0U) << field.name;
      EXPECT_EQ(field.offset, end) << Kernel::kName << "." << field.name;
      end = field.offset + field.size;
    }
    EXPECT_EQ(end, sizeof(typename Kernel::Params)) << Kernel::kName;
  });
}

TEST(ParameterFields, StandWhereTheStructHasThem) {
  struct Expected {
    std::string_view name, type;
    std::size_t offset;
  };
  const Expected expected[] = {
      {"shape.batch_size", "int64_t", 0},
      {"shape.total_k", "int64_t", 64},
      {"shape.cu_seqlens_q", "const int32_t*", 72},
      {"shape.leftpad_k", "const int32_t*", 104},
      {"grid.num_tiles", "int32_t", 112},
      {"grid.by_group.shift", "uint32_t", 156},
      {"q.data", "void*", 160},
      {"out_accum", "float*", 256},
      {"lse_accum", "float*", 264},
      {"score.window_left", "int64_t", 272},
      {"score.softmax_scale", "float", 296},
      {"score.bias.key_stride", "int64_t", 336},
      {"score.dropout_threshold", "uint32_t", 368},
      {"score.seed", "uint64_t", 376},
      {"softmax_lse.data", "float*", 440},
      {"sink.type", "int32_t", 488},
  };
  const std::vector<ParameterField> fields = gpu::fields_of<device::ForwardParams>();
  for (const Expected& field : expected) {
    EXPECT_EQ(field_named(fields, field.name).offset, field.offset) << field.name;
    EXPECT_EQ(field_named(fields, field.name).type, field.type) << field.name;
  }
}

TEST(ParameterFields, ReadTheirValues) {
  device::ForwardParams params{};
  params.shape.batch_size = -3;
  params.score.softmax_scale = 0.25F;
  params.score.dropout_threshold = 4000000000U;
  params.score.seed = 1ULL << 63;
  params.grid.num_splits = 9;
  const std::vector<ParameterField> fields = gpu::fields_of<device::ForwardParams>();
  using Value = ParameterField::Value;
  EXPECT_EQ(field_named(fields, "shape.batch_size").value_in(&params), Value(std::int64_t{-3}));
  EXPECT_EQ(field_named(fields, "score.softmax_scale").value_in(&params), Value(0.25F));
  EXPECT_EQ(field_named(fields, "score.dropout_threshold").value_in(&params), Value(std::uint64_t{4000000000U}));
  EXPECT_EQ(field_named(fields, "score.seed").value_in(&params), Value(std::uint64_t{1} << 63));
  EXPECT_EQ(field_named(fields, "grid.num_splits").value_in(&params), Value(std::int64_t{9}));
  EXPECT_EQ(field_named(fields, "q.data").value_in(&params), Value());
}

/// A pointer that the table lacks would be null in the workspace, unchecked under emulation and untold in launch.json.
TEST(PointerTables, HaveEveryPointer) {
  for_each_kernel([]<typename Kernel> {
    std::set<std::size_t> pointers, listed;
    for (const ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      if (field.is_pointer()) pointers.insert(field.offset);
    }
    const typename Kernel::Params params{};
    Kernel::for_each_pointer(params, [&](const gpu::Region& region, std::size_t offset) {
      EXPECT_TRUE(listed.insert(offset).second) << Kernel::kName << ": " << region.name << " twice";
    });
    EXPECT_EQ(listed, pointers) << Kernel::kName;
  });
}

/// Pointers to const are read, others written or added to.
TEST(PointerTables, AgreeWithTheTypes) {
  for_each_kernel([]<typename Kernel> {
    const std::vector<ParameterField> fields = gpu::fields_of<typename Kernel::Params>();
    const typename Kernel::Params params{};
    Kernel::for_each_pointer(params, [&](const gpu::Region& region, std::size_t offset) {
      const auto field = std::ranges::find(fields, offset, &ParameterField::offset);
      ASSERT_NE(field, fields.end());
      if (field->type.starts_with("const ")) {
        EXPECT_EQ(region.access, gpu::Access::read) << Kernel::kName << ": " << region.name;
      } else if (region.workspace) {
        EXPECT_NE(region.access, gpu::Access::read) << Kernel::kName << ": " << region.name;
      }
    });
  });
}

TEST(ContiguousParams, HaveTheStridesOfEachLayout) {
  const auto q = [](std::string_view layout) {
    return contiguous_params(problem_for("sm_80", core::concat("attention_forward dtype=bf16 batch_size=2 seqlen_q=3 "
                                                               "num_heads_q=4 head_dim=8 layout=",
                                                               layout)))
        .q;
  };
  const device::Tensor4 bshd = q("bshd"), sbhd = q("sbhd"), bhsd = q("bhsd");
  EXPECT_EQ((std::array{bshd.batch_stride, bshd.seq_stride, bshd.head_stride}),
            (std::array<std::int64_t, 3>{96, 32, 8}));
  EXPECT_EQ((std::array{sbhd.batch_stride, sbhd.seq_stride, sbhd.head_stride}),
            (std::array<std::int64_t, 3>{32, 64, 8}));
  EXPECT_EQ((std::array{bhsd.batch_stride, bhsd.seq_stride, bhsd.head_stride}),
            (std::array<std::int64_t, 3>{96, 8, 24}));
  const AttentionParams packed = contiguous_params(
      problem_for("sm_80",
                  "attention_backward dtype=bf16 layout=thd max_seqlen_q=5 max_seqlen_k=7 total_q=9 total_k=11 "
                  "batch_size=2 num_heads_q=4 head_dim=8 bias=f32[1,h,q,k] dbias=1"));
  EXPECT_EQ(packed.q.batch_stride, 0);
  EXPECT_EQ(packed.softmax_lse.head_stride, 9);
  EXPECT_EQ(packed.dq.seq_stride, 32);
  EXPECT_EQ(packed.dbias.head_stride, 35);
  EXPECT_EQ(packed.dbias_shape[1], 4);
  EXPECT_EQ(packed.total_k, 11);
}

/// Every value but addresses is what Tilewise itself passes for a call with contiguous tensors: each kernel's block.
template <typename Arguments>
void expect_values_of(const Arguments& arguments) {
  const operations::attention::Call call = operations::attention::call_of(arguments);
  const Problem problem = operations::attention::describe(call);
  const AttentionParams real = operations::attention::make_params(call, problem), told = contiguous_params(problem);
  for_each_kernel([&]<typename Kernel> {
    typename Kernel::Params of_call{}, of_told{};
    bind(real, of_call);
    bind(told, of_told);
    for (const gpu::ParameterField& field : gpu::fields_of<typename Kernel::Params>()) {
      EXPECT_EQ(field.value_in(&of_told), field.value_in(&of_call))
          << Kernel::kName << "." << field.name << " of " << to_string(problem);
    }
  });
}

TEST(ContiguousParams, AreThoseOfACall) {
  test::DenseCall call({.batch = 2, .seqlen_q = 5, .seqlen_k = 7, .heads_q = 4, .heads_k = 2, .dim = 8, .dim_v = 6});
  expect_values_of(call.forward_arguments());
  call.prepare_backward();
  expect_values_of(call.backward_arguments());

  call.options.mask = Mask::causal;
  call.options.alignment = Alignment::top_left;
  call.options.window_left = 3;
  call.options.softcap = 20.0;
  call.options.softmax_scale = 0.5;
  call.options.dropout_p = 0.25;
  call.bias = call.normal(DType::f32, {2, 1, 5, 7});
  call.alibi_slopes = call.normal(DType::f32, {2, 4});
  call.sink = call.normal(DType::f32, {4});
  call.seqused_q = test::DenseCall::lengths({5, 4});
  call.seqused_k = test::DenseCall::lengths({6, 5});
  call.leftpad_k = test::DenseCall::lengths({1, 0});
  expect_values_of(call.forward_arguments());
  call.prepare_backward(true);
  expect_values_of(call.backward_arguments());
}

}  // namespace
}  // namespace tilewise::backends::portable
