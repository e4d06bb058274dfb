// The problems whose Hopper kernels must keep to their registers: those that each test run compiles, near the limit by
// head_dim, pass and option, and the rest, which `make test-compile` adds.
#pragma once

#include <string>
#include <vector>

namespace tilewise::backends::hopper {

enum class Registers { sampled, rest };

/// Options of attention, of both passes.
inline std::string every_but_bias() {
  return " layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=256 softcap=30 alibi_slopes=[h] sink=1 "
         "dropout_p=0.1 seed_tensor=1 seqused_q=1 seqused_k=1 leftpad_k=1";
}
inline std::string every_option() { return every_but_bias() + " bias=query[b,h,q,k]"; }

// Functions of scores that look something up.
inline const std::string kRelative = " score_mod=score+table0[h,clamp(q_idx-kv_idx,-127,127)+127] tables=f32[32,255]",
                         kDocuments = " mask_mod=(table0[q_idx]==table0[kv_idx])&(kv_idx<=q_idx) tables=i32[4096]";

/// Without the heads of queries, which are 32.
inline std::vector<std::string> forward_problems(Registers registers) {
  if (registers == Registers::sampled) {
    return {
        "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal",
        "dtype=bf16 head_dim=128 seqlen_q=4096",
        "dtype=f16 head_dim=128 seqlen_q=4096 mask=causal window_left=256",
        "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal",
        "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal",
        "dtype=bf16 head_dim=80 seqlen_q=4096",
        "dtype=bf16 head_dim=128 seqlen_q=1 num_heads_k=4",
        "dtype=fp8_e4m3 head_dim=128 seqlen_q=64 seqlen_k=8192 num_heads_k=8 q_scale=batch_head",
        "dtype=fp8_e4m3 head_dim=128 seqlen_q=4096 mask=causal seqused_k=1",
        "dtype=bf16 head_dim=256 seqlen_q=64 seqlen_k=8192 num_heads_k=8 bias=query[b,h,q,k]",
        "dtype=fp8_e4m3 head_dim=256 bias=f32[b,h,q,k]" + every_but_bias(),
        "dtype=bf16 head_dim=256" + every_option(),
        "dtype=bf16 head_dim=128" + every_option(),
        "dtype=bf16 head_dim=128 seqlen_q=4096" + kDocuments,
        "dtype=bf16 head_dim=128 seqlen_q=4096" + kRelative,
    };
  }
  return {
      "dtype=bf16 head_dim=64 seqlen_q=4096" + kDocuments,
      "dtype=bf16 head_dim=64 seqlen_q=4096" + kRelative,
      "dtype=bf16 head_dim=256 seqlen_q=4096" + kDocuments,
      "dtype=bf16 head_dim=128 seqlen_q=4096 score_mod=20.0*tanh(score/20.0)",
      "dtype=bf16 head_dim=64 seqlen_q=512",
      "dtype=bf16 head_dim=64 seqlen_q=8192 mask=causal",
      "dtype=bf16 head_dim=64 batch_size=64 seqlen_q=384 bias=query[1,h,q,k]",
      "dtype=f16 head_dim=64 batch_size=64 seqlen_q=128 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=128 seqlen_q=1024 mask=causal window_left=512",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal window_left=1024",
      "dtype=bf16 head_dim=64 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=1024",
      "dtype=bf16 head_dim=256 seqlen_q=4096",
      "dtype=bf16 head_dim=72 seqlen_q=4096",
      "dtype=f16 head_dim=80 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=128 seqlen_q=512 seqlen_k=8192 num_heads_k=8 mask=causal",
      "dtype=bf16 head_dim=128 seqlen_q=64 seqlen_k=8192 num_heads_k=8 mask=causal",
      "dtype=bf16 head_dim=64 seqlen_q=512 seqlen_k=8192 num_heads_k=8",
      "dtype=bf16 head_dim=256 seqlen_q=64 seqlen_k=8192 num_heads_k=8 seqused_k=1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 softcap=30",
      "dtype=fp8_e4m3 head_dim=64 seqlen_q=4096 mask=causal",
      "dtype=fp8_e4m3 head_dim=128 seqlen_q=4096",
      "dtype=fp8_e4m3 head_dim=256 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 alibi_slopes=[h]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 bias=query[b,h,q,k]",
      "dtype=bf16 head_dim=64 seqlen_q=4096 bias=query[b,h,q,k] mask=causal",
      "dtype=f16 head_dim=64 seqlen_q=512 bias=bool[b,1,1,k]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal window_left=1023 softcap=30",
      "dtype=f16 head_dim=128 seqlen_q=4096 bias=query[b,h,q,k] mask=causal",
      "dtype=bf16 head_dim=128 seqlen_q=4096 bias=f32[b,h,q,k] bias_unaligned=1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 bias=bool[b,1,q,k]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 dropout_p=0.1 mask=causal",
      "dtype=bf16 head_dim=256 seqlen_q=4096 bias=query[b,h,q,k]",
      "dtype=bf16 head_dim=256 seqlen_q=4096 bias=f32[b,h,q,k]",
      "dtype=bf16 head_dim=256 seqlen_q=4096 dropout_p=0.1",
      "dtype=bf16 head_dim=64" + every_option(),
  };
}

inline std::vector<std::string> backward_problems(Registers registers) {
  if (registers == Registers::sampled) {
    return {
        "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096",
        "dtype=bf16 head_dim=192 head_dim_v=128 layout=thd max_seqlen_q=512 batch_size=64 mask=causal window_left=256 "
        "deterministic=1",
        "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal",
        "dtype=bf16 head_dim=128 seqlen_q=4096",
        "dtype=bf16 head_dim=256 batch_size=4 seqlen_q=4096 mask=causal num_heads_k=4",
        "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal softcap=30 dropout_p=0.1",
        "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal dropout_p=0.1",
        "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal bias=query[b,h,q,k] dbias=1",
        "dtype=bf16 head_dim=256 seqlen_q=4096 bias=query[b,h,q,k]",
        "dtype=f16 head_dim=128 seqlen_q=4096 mask=causal softcap=30 alibi_slopes=[h] dropout_p=0.1",
        "dtype=f16 head_dim=128 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=256 deterministic=1",
        "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal deterministic=1 dropout_p=0.1",
        "dtype=bf16 head_dim=96 seqlen_q=4000 mask=causal deterministic=1",
        "dtype=bf16 head_dim=160 head_dim_v=256 seqlen_q=4096 mask=causal",
        "dtype=bf16 head_dim=128 seqlen_q=4096" + kDocuments,
        "dtype=bf16 head_dim=128 seqlen_q=4096" + kRelative,
    };
  }
  return {
      "dtype=bf16 head_dim=64 seqlen_q=4096" + kDocuments,
      "dtype=bf16 head_dim=128 seqlen_q=4096 score_mod=20.0*tanh(score/20.0)",
      "dtype=f16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal window_left=1023",
      "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal seqused_k=1",
      "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal deterministic=1",
      "dtype=bf16 head_dim=192 head_dim_v=128 batch_size=64 seqlen_q=512 mask=causal",
      "dtype=bf16 head_dim=192 head_dim_v=128 batch_size=64 seqlen_q=512 num_heads_k=4 deterministic=1",
      "dtype=bf16 head_dim=192 head_dim_v=128 batch_size=64 seqlen_q=512 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=64 seqlen_q=4096",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal",
      "dtype=f16 head_dim=128 seqlen_q=4096 mask=causal window_left=256",
      "dtype=bf16 head_dim=96 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=128 batch_size=16 seqlen_q=512 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=128 batch_size=16 seqlen_q=1024 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=128 batch_size=4 seqlen_q=4096 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=64 batch_size=16 seqlen_q=1024 mask=causal num_heads_k=4",
      "dtype=bf16 head_dim=128 layout=thd max_seqlen_q=4096 batch_size=4 mask=causal num_heads_k=4 deterministic=1",
      "dtype=bf16 head_dim=128 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal",
      "dtype=bf16 head_dim=64 seqlen_q=4096 dropout_p=0.1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 dropout_p=0.1 mask=causal",
      "dtype=f16 head_dim=64 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=256 dropout_p=0.1",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal alibi_slopes=[h]",
      "dtype=bf16 head_dim=64 seqlen_q=4096 bias=f32[b,h,q,k]",
      "dtype=f16 head_dim=128 seqlen_q=4096 bias=bool[b,1,q,k]",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal softcap=30",
      "dtype=bf16 head_dim=128 seqlen_q=4096 softcap=30",
      "dtype=bf16 head_dim=96 seqlen_q=4096 mask=causal softcap=30",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal softcap=30",
      "dtype=bf16 head_dim=64 seqlen_q=4096 mask=causal deterministic=1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 deterministic=1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 mask=causal window_left=1023 deterministic=1",
      "dtype=bf16 head_dim=64 seqlen_q=1000 deterministic=1 softcap=30",
      "dtype=bf16 head_dim=128 seqlen_q=1024 deterministic=1",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal deterministic=1",
      "dtype=bf16 head_dim=256 seqlen_q=4096 deterministic=1",
      "dtype=bf16 head_dim=256 seqlen_q=4096",
      "dtype=bf16 head_dim=256 seqlen_q=4096 mask=causal",
      "dtype=bf16 head_dim=192 head_dim_v=128 seqlen_q=4096 mask=causal",
      "dtype=f16 head_dim=256 layout=thd max_seqlen_q=4096 batch_size=2 mask=causal window_left=256",
      "dtype=bf16 head_dim=160 seqlen_q=4096 mask=causal",
      "dtype=f16 head_dim=64 seqlen_q=4096 mask=causal",
      "dtype=f16 head_dim=64 seqlen_q=1024 mask=causal deterministic=1",
      "dtype=f16 head_dim=96 seqlen_q=4096 mask=causal dropout_p=0.1",
      "dtype=bf16 head_dim=128 seqlen_q=4096 bias=bool[b,1,1,k]",
      "dtype=f16 head_dim=128 seqlen_q=1024 mask=causal bias=query[b,h,q,k] deterministic=1",
      "dtype=bf16 head_dim=64 seqlen_q=1024 mask=causal bias=query[b,h,q,k] deterministic=1",
      "dtype=f16 head_dim=256 seqlen_q=4096 mask=causal softcap=30",
  };
}

/// Of the KV cache step.
inline std::vector<std::string> step_problems(Registers registers) {
  const std::string mla = "mla=1 num_heads_q=128 num_heads_k=1 head_dim=576 head_dim_v=512 ",
                    heads = "mask=causal num_heads_q=32 num_heads_k=8 page_size=16 ",
                    many = heads +
                           "dtype=bf16 seqlen_q=512 head_dim=128 num_pages=8192 max_pages_per_seq=512 batch_size=16";
  if (registers == Registers::sampled) {
    return {
        mla + "dtype=bf16 seqlen_q=1 page_size=64 num_pages=8192 max_pages_per_seq=128 batch_size=64",
        mla + "dtype=f16 seqlen_q=2 mask=causal page_size=16 num_pages=256 max_pages_per_seq=256",
        heads +
            "dtype=bf16 seqlen_q=64 head_dim=128 num_pages=512 max_pages_per_seq=512 append=1 seqlen_k_new=64 "
            "rotary=f32 rotary_dim=128",
        many + kDocuments,
    };
  }
  return {
      mla + "dtype=bf16 seqlen_q=1 mask=causal page_size=64 num_pages=8192 max_pages_per_seq=512 batch_size=64",
      mla + "dtype=f16 seqlen_q=2 page_size=16 num_pages=8192 max_pages_per_seq=1024 batch_size=8",
      many,
      many + kRelative,
      many + " window_left=1024" + kDocuments,
      heads + "dtype=f16 seqlen_q=512 head_dim=256 num_pages=8192 max_pages_per_seq=512 batch_size=16",
  };
}

/// Few tokens, more, many with each number of experts, and what options add.
inline std::vector<std::string> expert_problems(Registers registers) {
  const std::string qwen = " hidden=2048 intermediate=768 num_experts=128 top_k=8",
                    wide = " hidden=7168 intermediate=2048 num_experts=256 top_k=8",
                    gpt_oss =
                        " hidden=2880 intermediate=2880 num_experts=32 top_k=4 gate=interleaved "
                        "activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=bf16",
                    fp8 = "dtype=fp8_e4m3 x_format=fp8_1x128 h_format=fp8_1x128 w_format=fp8_128x128";
  if (registers == Registers::sampled) {
    return {"dtype=bf16 tokens=1" + qwen,
            "dtype=bf16 tokens=256" + wide,
            "dtype=bf16 tokens=16384" + wide,
            "dtype=bf16 tokens=16384" + gpt_oss,
            "dtype=bf16 tokens=16384 save_gate_up=1" + gpt_oss,
            "dtype=bf16 tokens=1 w_format=mxfp4" + gpt_oss,
            "dtype=bf16 tokens=64 w_format=nvfp4" + qwen,
            fp8 + " tokens=16384" + wide};
  }
  return {"dtype=f16 tokens=16" + qwen,
          "dtype=bf16 tokens=16384" + qwen,
          "dtype=bf16 tokens=2" + gpt_oss,
          "dtype=bf16 tokens=64" + gpt_oss,
          "dtype=f16 tokens=64 w_format=mxfp4" + gpt_oss,
          "dtype=bf16 tokens=16 w_format=fp8_128x128" + wide,
          "dtype=f16 tokens=64 w_format=fp8_128x128" + wide,
          "dtype=f16 tokens=4096 weight_on_input=1 gate=none activation=gelu" + qwen,
          fp8 + " tokens=64 gate_up_bias=bf16 down_bias=f32 weight_on_input=1" + qwen};
}

/// Of the backward pass: each tile and layout, and what options add.
inline std::vector<std::string> expert_backward_problems(Registers registers) {
  const std::string qwen = " tokens=4096 hidden=2048 intermediate=768 num_experts=128 top_k=8",
                    mixtral = " tokens=4096 hidden=4096 intermediate=14336 num_experts=8 top_k=2";
  if (registers == Registers::sampled) return {"dtype=bf16" + qwen, "dtype=bf16 save_gate_up=1" + qwen};
  return {"dtype=f16 gate=interleaved activation=swiglu_oai clamp=before gate_up_bias=bf16 down_bias=bf16" + qwen,
          "dtype=bf16 gate=none activation=gelu weight_on_input=1" + mixtral,
          "dtype=bf16 save_gate_up=1 weight_on_input=1 gate_up_bias=bf16" + mixtral};
}

/// Each tile, and what options add.
inline std::vector<std::string> linear_problems(Registers registers) {
  const std::string large = " tokens=8192 n=8192 k=8192",
                    fp8 = "dtype=fp8_e4m3 x_format=fp8_1x128 w_format=fp8_128x128",
                    groups = " groups=offsets_i32 num_experts=64";
  if (registers == Registers::sampled) {
    return {"dtype=f16 w_transposed=1" + large, "dtype=bf16 tokens=64 n=4096 k=4096",
            "dtype=bf16 w_transposed=1 bias=bf16 activation=silu" + groups + large, fp8 + large,
            fp8 + " bias=bf16 activation=silu" + groups + large};
  }
  return {"dtype=bf16" + large, "dtype=bf16 tokens=512 n=4096 k=4096", "dtype=bf16 bias=f32 activation=gelu" + large,
          fp8 + " tokens=64 n=4096 k=4096", fp8 + " tokens=512 n=4096 k=4096"};
}

/// Rows by expert whose sides are swapped.
inline std::vector<std::string> grouped_problems() {
  return {"dtype=bf16 bias=bf16 activation=silu groups=offsets_i32 num_experts=128 tokens=16384 n=1536 k=2048"};
}

}  // namespace tilewise::backends::hopper
