// The parameter block's layout, frozen: launch.json, code objects in the cache and bundles all depend on it.
#include "backends/portable/launch_description.hpp"

#include <algorithm>
#include <cstring>

#include "../support/dense_call.hpp"
#include "operations/attention/call.hpp"
#include "support.hpp"

namespace tilewise::backends::portable {
namespace {

using device::AttentionParams, device::GridParams, device::KernelParams;

static_assert(sizeof(KernelParams) == 760 && alignof(KernelParams) == 8);
static_assert(sizeof(AttentionParams) == 688 && sizeof(GridParams) == 72);

const ParameterField& field_named(const std::vector<ParameterField>& fields, std::string_view name) {
  const auto found = std::ranges::find(fields, name, &ParameterField::name);
  EXPECT_NE(found, fields.end()) << name;
  return found == fields.end() ? fields.front() : *found;
}

/// Fields follow each other, each on a multiple of its size, with no room left that a field could hide in.
TEST(ParameterFields, CoverTheBlock) {
  std::size_t end = 0;
  for (const ParameterField& field : parameter_fields()) {
    EXPECT_EQ(field.offset % field.size, 0U) << field.name;
    EXPECT_EQ(field.offset, (end + field.size - 1) / field.size * field.size) << field.name;
    end = field.offset + field.size;
  }
  EXPECT_EQ(end, sizeof(KernelParams));
}

TEST(ParameterFields, StandWhereTheStructHasThem) {
  struct Expected {
    std::string_view name, type;
    std::size_t offset;
  };
  const Expected expected[] = {
      {"call.batch_size", "int64_t", 0},
      {"call.total_k", "int64_t", 64},
      {"call.q.data", "void*", 72},
      {"call.k.seq_stride", "int64_t", 120},
      {"call.softmax_lse.data", "float*", 200},
      {"call.cu_seqlens_q", "const int32_t*", 232},
      {"call.leftpad_k", "const int32_t*", 264},
      {"call.window_left", "int64_t", 272},
      {"call.top_left", "int32_t", 288},
      {"call.softmax_scale", "float", 292},
      {"call.bias_type", "int32_t", 300},
      {"call.sink_type", "int32_t", 304},
      {"call.bias.key_stride", "int64_t", 344},
      {"call.alibi_slopes", "const float*", 352},
      {"call.sink", "const void*", 376},
      {"call.dropout_threshold", "uint32_t", 392},
      {"call.seed", "uint64_t", 400},
      {"call.seed_and_offset", "const int64_t*", 416},
      {"call.dout.data", "void*", 432},
      {"call.dbias_shape[3]", "int64_t", 656},
      {"call.dsink", "void*", 664},
      {"call.batch_invariant", "int32_t", 684},
      {"grid.num_tiles", "int32_t", offsetof(KernelParams, grid)},
      {"grid.partial_out", "float*", offsetof(KernelParams, grid) + offsetof(GridParams, partial_out)},
      {"grid.delta", "float*", offsetof(KernelParams, grid) + offsetof(GridParams, delta)},
  };
  const std::vector<ParameterField> fields = parameter_fields();
  for (const Expected& field : expected) {
    EXPECT_EQ(field_named(fields, field.name).offset, field.offset) << field.name;
    EXPECT_EQ(field_named(fields, field.name).type, field.type) << field.name;
  }
}

TEST(ParameterFields, ReadTheirValues) {
  KernelParams params{};
  params.call.batch_size = -3;
  params.call.softmax_scale = 0.25F;
  params.call.dropout_threshold = 4000000000U;
  params.call.seed = 1ULL << 63;
  params.grid.num_splits = 9;
  const std::vector<ParameterField> fields = parameter_fields();
  using Value = ParameterField::Value;
  EXPECT_EQ(field_named(fields, "call.batch_size").value_in(params), Value(std::int64_t{-3}));
  EXPECT_EQ(field_named(fields, "call.softmax_scale").value_in(params), Value(0.25F));
  EXPECT_EQ(field_named(fields, "call.dropout_threshold").value_in(params), Value(std::uint64_t{4000000000U}));
  EXPECT_EQ(field_named(fields, "call.seed").value_in(params), Value(std::uint64_t{1} << 63));
  EXPECT_EQ(field_named(fields, "grid.num_splits").value_in(params), Value(std::int64_t{9}));
  EXPECT_EQ(field_named(fields, "call.q.data").value_in(params), Value());
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
  EXPECT_EQ(packed.q.data, nullptr);
}

/// Every value but addresses is what Tilewise itself passes for a call with contiguous tensors.
template <typename Arguments>
void expect_values_of(const Arguments& arguments) {
  const operations::attention::Call call = operations::attention::call_of(arguments);
  const Problem problem = operations::attention::describe(call);
  const KernelParams real{operations::attention::make_params(call, problem), {}}, told{contiguous_params(problem), {}};
  for (const ParameterField& field : parameter_fields()) {
    EXPECT_EQ(field.value_in(told), field.value_in(real)) << field.name << " of " << to_string(problem);
  }
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
