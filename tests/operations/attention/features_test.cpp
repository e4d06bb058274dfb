// The feature rule: each option asks for its own feature and nothing else.
#include "operations/attention/features.hpp"

#include "../../core/support.hpp"

namespace tilewise {
namespace {

using operations::attention::Feature;
using operations::attention::FeatureSet;
using operations::attention::required_features;

FeatureSet features_of(const std::string& options) {
  return required_features(parse_problem("attention_forward seqlen_q=16 num_heads_q=4 head_dim=64 " + options));
}
FeatureSet backward_features_of(const std::string& options) {
  return required_features(parse_problem("attention_backward seqlen_q=16 num_heads_q=4 head_dim=64 " + options));
}

TEST(Features, PlainProblemsNeedTheirOperationAndDtype) {
  EXPECT_EQ(features_of(""), (FeatureSet{Feature::forward, Feature::f32}));
  EXPECT_EQ(features_of("dtype=bf16"), (FeatureSet{Feature::forward, Feature::bf16}));
  EXPECT_EQ(backward_features_of("dtype=f16"), (FeatureSet{Feature::backward, Feature::f16}));
  EXPECT_EQ(features_of("dtype=f64"), (FeatureSet{Feature::forward, Feature::f64}));
  EXPECT_EQ(features_of("dtype=fp8_e4m3"), (FeatureSet{Feature::forward, Feature::fp8_e4m3}));
  EXPECT_EQ(features_of("dtype=fp8_e4m3 out_dtype=f16 q_scale=head k_scale=tensor v_scale=batch_head"),
            (FeatureSet{Feature::forward, Feature::fp8_e4m3, Feature::f16_out}));
}

TEST(Features, EachOptionAddsItsFeatures) {
  const FeatureSet plain = features_of("");
  const auto added = [&](const std::string& options) { return to_string(features_of(options).minus(plain)); };
  EXPECT_EQ(added("num_heads_k=2"), "gqa");
  EXPECT_EQ(added("head_dim_v=32"), "head_dim_v");
  EXPECT_EQ(added("window_left=3"), "window_left");
  EXPECT_EQ(added("window_right=3"), "window_right");
  EXPECT_EQ(added("mask=causal"), "window_right");
  EXPECT_EQ(added("mask=causal_top_left"), "window_right, top_left");
  EXPECT_EQ(added("softmax_scale=0"), "scale_sign");
  EXPECT_EQ(added("softmax_scale=-1"), "scale_sign");
  EXPECT_EQ(added("softmax_scale=2"), "");
  EXPECT_EQ(added("softcap=30"), "softcap");
  EXPECT_EQ(added("bias=f32[1,h,q,k]"), "bias");
  EXPECT_EQ(added("bias=bool[1,h,q,k]"), "bias, bias_boolean");
  EXPECT_EQ(added("alibi_slopes=[h]"), "alibi");
  EXPECT_EQ(added("alibi_slopes=[b,h] alignment=top_left"), "top_left, alibi");
  EXPECT_EQ(added("sink=1"), "sink");
  EXPECT_EQ(added("sink=query"), "sink");
  EXPECT_EQ(added("dropout_p=0.5"), "dropout");
  EXPECT_EQ(added("dropout_p=0.5 seed_tensor=1"), "dropout, seed_tensor");
  EXPECT_EQ(added("seqused_q=1 seqused_k=1 leftpad_k=1"), "seqused_q, seqused_k, leftpad_k");
  EXPECT_EQ(added("batch_invariant=1"), "batch_invariant");
  EXPECT_EQ(added("score_mod=score*2"), "score_mod");
  EXPECT_EQ(added("mask_mod=q_idx<kv_idx"), "mask_mod");
  EXPECT_EQ(added("mask_mod=table0[h]<1 tables=i32[4]"), "mask_mod");
  EXPECT_EQ(added("top_k=5"), "key_indices");
  EXPECT_EQ(added("top_k=5 key_indices_per_head=1"), "key_indices");
  EXPECT_EQ(added("block_mask=16x16[1,1]"), "block_mask");
  EXPECT_EQ(added("score_mod=score*1.0 mask_mod=1<2"), "");  // which change nothing
  EXPECT_EQ(added("clear_rest=1"), "");                      // rows that are not packed have no rest
  EXPECT_EQ(added("deterministic=1"), "");                   // the forward pass always is
  const std::string packed = "attention_forward layout=thd max_seqlen_q=16 num_heads_q=4 head_dim=64";
  EXPECT_EQ(to_string(required_features(parse_problem(packed)).minus(plain)), "packed");
  EXPECT_EQ(to_string(required_features(parse_problem(packed + " clear_rest=1")).minus(plain)), "packed, clear_rest");
}

TEST(Features, GradientsAddTheirs) {
  const FeatureSet plain = backward_features_of("");
  const auto added = [&](const std::string& options) { return to_string(backward_features_of(options).minus(plain)); };
  EXPECT_EQ(added("dlse=1"), "dlse");
  EXPECT_EQ(added("bias=f32[b,h,q,k] dbias=1"), "bias, dbias");
  EXPECT_EQ(added("sink=1 dsink=1"), "sink, dsink");
  EXPECT_EQ(added("score_mod=score*table0[h] tables=f32[4] dtables=1"), "score_mod, dtables");
  EXPECT_EQ(added("score_mod=score tables=f32[4] dtables=1"), "score_mod, dtables");  // which is 0, and written
  EXPECT_EQ(added("deterministic=1"), "deterministic");
  EXPECT_EQ(added("dq=0"), "");
}

TEST(Features, EveryFeatureIsReachableAndNamed) {
  FeatureSet reached = required_features(
      parse_problem("attention_forward layout=thd max_seqlen_q=9 num_heads_q=4 num_heads_k=2 head_dim=64 head_dim_v=32 "
                    "window_left=1 window_right=2 alignment=top_left softmax_scale=-1 softcap=3 bias=bool[b,h,q,k] "
                    "alibi_slopes=[h] sink=1 dropout_p=0.5 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1 "
                    "batch_invariant=1 clear_rest=1 score_mod=score*2 mask_mod=b<1 top_k=3 block_mask=16x16[1,1]"));
  FeatureSet missing = FeatureSet::all().minus(reached);
  missing =
      missing.minus(backward_features_of("dtype=bf16 bias=f32[b,h,q,k] dbias=1 sink=1 dsink=1 dlse=1 "
                                         "deterministic=1 score_mod=score*table0[0] tables=f32[1] dtables=1"));
  missing = missing.minus(backward_features_of("dtype=f16")).minus(features_of("dtype=f64"));
  missing = missing.minus(features_of("dtype=fp8_e4m3 out_dtype=f16"));
  EXPECT_TRUE(missing.empty()) << to_string(missing);
  for (int i = 0; i < static_cast<int>(Feature::count_); ++i) EXPECT_FALSE(to_string(static_cast<Feature>(i)).empty());
}

}  // namespace
}  // namespace tilewise
