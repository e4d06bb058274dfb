// The CPU's rows for the KV cache step: what they honour, and how long they take.
#include "backends/cpu/kv_cache/kv_cache_backend.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>

#include "backends/cpu/cost.hpp"
#include "backends/cpu/cpu_features.hpp"
#include "backends/cpu/kv_cache/append.hpp"
#include "backends/cpu/kv_cache/attend.hpp"
#include "backends/cpu/kv_cache/block_states.hpp"
#include "backends/cpu/rows.hpp"
#include "backends/cpu/selected_keys.hpp"
#include "core/device.hpp"
#include "operations/kv_cache/kv_cache.hpp"

namespace tilewise::backends {
namespace cpu {
namespace {

class KvCacheKernel final : public operations::kv_cache::Kernel {
 public:
  KvCacheKernel(const KvCacheProblem& problem, const KernelSet& kernels, const KernelSet& prefill_kernels,
                CacheLookUpCheck check)
      : problem_(problem), check_(check) {
    using namespace operations;
    if (kv_cache::appends_alone(problem)) return;
    attention_.emplace(with_block_table(problem, kv_cache::blocked_scores(problem)), kernels, prefill_kernels);
    if (has_block_mask(problem)) blocks_.emplace(problem);
  }
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return blocks_ ? blocks_->bytes() : 0; }
  [[nodiscard]] std::string schedule() const override {
    return attention_ ? attention_->schedule() : "16 tokens a task";
  }
  void launch(const operations::kv_cache::KvCacheParams& params, void* workspace, void*) const override {
    if (params.append) append_keys(params);
    if (!problem_.tables.empty() && core::checks_requested()) check_(params, problem_);
    if (blocks_)
      blocks_->run(params, workspace, [this](const auto& with_table) { attention_->run(with_table); });
    else if (attention_)
      attention_->run(params);
  }

 private:
  KvCacheProblem problem_;
  CacheLookUpCheck check_;
  std::optional<CacheAttention> attention_;
  std::optional<CacheBlockStates> blocks_;
};

struct IsaKernels {
  Isa isa;
  const char* name;
  const KernelSet* kernels;
  const KernelSet *fp8_kernels, *f32_kernels;  // fp8 caches: those that decode, and prefill's, which widens them
};

class KvCacheImplementation final : public operations::kv_cache::Implementation {
 public:
  KvCacheImplementation(const IsaKernels& set, CacheLookUpCheck check) : set_(set), check_(check) {}

  [[nodiscard]] std::string_view name() const noexcept override { return set_.name; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::kv_cache::FeatureSet supported() const noexcept override {
    using enum operations::kv_cache::Feature;
    operations::kv_cache::FeatureSet set{
        attend,        append,          scale_tensor,  scale_head,   scale_batch_head,
        scale_token,   paged,           packed,        mla,          slots,
        cache_seqlens, cache_batch_idx, cache_leftpad, rotary,       rotary_interleaved,
        gqa,           head_dim_v,      window_left,   window_right, scale_sign,
        softcap,       alibi,           sink,          num_splits,   batch_invariant,
        score_mod,     mask_mod,        key_indices,   block_mask};
    if (set_.kernels->forward[kElementF32]) set.insert(f32);
    if (set_.fp8_kernels) set.insert(fp8);
    if (set_.kernels->forward[kElementBf16]) set.insert(bf16);
    if (set_.kernels->forward[kElementF16]) set.insert(f16);
    return set;
  }

  /// Of a cache that is full: attention's time over as many keys, at the cache's bytes, and the append's.
  [[nodiscard]] core::Verdict judge(const KvCacheProblem& p, const core::DeviceDescription& cpu) const override {
    for (const core::DeviceDescription::Lack& lack : cpu.lacks) {
      if (lack.instruction_set == to_string(set_.isa)) return core::Verdict::refuse(lack.reason);
    }
    const CpuTraits traits = traits_of({cpu.intel ? Processor::Vendor::intel : Processor::Vendor::other, cpu.family});
    constexpr double kCallUs = 2.0, kElementUs = 2e-3;
    const auto f = [](std::int64_t n) { return static_cast<double>(n); };
    const double appended = f(operations::kv_cache::rows_of_new_keys(p)) * f(p.num_heads_k);
    double us = kCallUs + appended * f(p.head_dim + p.head_dim_v) * kElementUs;
    if (!operations::kv_cache::appends_alone(p))
      us += (p.top_k > 0 ? kSelectedCost : 1.0) *
            estimate_us(attention_alike(p), set_.isa, *set_.kernels, traits, cpu.threads);
    return core::Verdict::accept(us, std::make_unique<KvCacheKernel>(p, decode_kernels(p), prefill_kernels(p), check_));
  }

 private:
  [[nodiscard]] const KernelSet& decode_kernels(const KvCacheProblem& p) const {
    return operations::kv_cache::is_fp8(p) ? *set_.fp8_kernels : *set_.kernels;
  }
  [[nodiscard]] const KernelSet& prefill_kernels(const KvCacheProblem& p) const {
    return operations::kv_cache::is_fp8(p) ? *set_.f32_kernels : *set_.kernels;
  }

  /// Dense attention over full caches, which takes about as long.
  [[nodiscard]] AttentionProblem attention_alike(const KvCacheProblem& p) const {
    AttentionProblem a;
    a.dtype =
        operations::kv_cache::is_fp8(p) && !decode_kernels(p).decode_fp8[element_of(p.dtype)] ? DType::f32 : p.dtype;
    a.batch_size = p.batch_size;
    a.seqlen_q = operations::kv_cache::is_packed(p) ? (p.total_q + std::max<std::int64_t>(p.batch_size, 1) - 1) /
                                                          std::max<std::int64_t>(p.batch_size, 1)
                                                    : p.seqlen_q;
    a.seqlen_k = operations::kv_cache::capacity_of(p);
    if (p.top_k > 0) a.seqlen_k = std::min(a.seqlen_k, p.top_k);
    a.num_heads_q = p.num_heads_q;
    a.num_heads_k = p.num_heads_k;
    a.head_dim = p.head_dim;
    a.head_dim_v = p.head_dim_v;
    a.mask = p.mask;
    a.window_left = p.window_left;
    a.window_right = p.window_right;
    a.softmax_scale = p.softmax_scale;
    a.softcap = p.softcap;
    return a;
  }

  IsaKernels set_;
  CacheLookUpCheck check_;
};

}  // namespace
}  // namespace cpu

std::span<const core::Implementation* const> cpu_kv_cache_implementations(CacheLookUpCheck check) {
  using cpu::KvCacheImplementation, cpu::Isa;
#if defined(__x86_64__)
  const cpu::KernelSet *vbmi = cpu::has_vbmi() ? &cpu::kAvx512VbmiKernels : &cpu::kAvx512Bf16Kernels,
                       *avx512s = &cpu::kAvx512Kernels, *avx2s = &cpu::kAvx2Kernels, *any = &cpu::kGenericKernels;
  static const KvCacheImplementation amx_bf16({Isa::amx_bf16, "cpu.amx_bf16", &cpu::kAmxBf16Kernels, nullptr, nullptr},
                                              check);
  static const KvCacheImplementation avx512_bf16(
      {Isa::avx512_bf16, "cpu.avx512_bf16", &cpu::kAvx512Bf16Kernels, vbmi, avx512s}, check);
  static const KvCacheImplementation avx512({Isa::avx512, "cpu.avx512", avx512s, avx512s, avx512s}, check);
  static const KvCacheImplementation avx2({Isa::avx2, "cpu.avx2", avx2s, avx2s, avx2s}, check);
  static const KvCacheImplementation generic({Isa::generic, "cpu.generic", any, any, any}, check);
  static const std::array<const core::Implementation*, 5> table = {&amx_bf16, &avx512_bf16, &avx512, &avx2, &generic};
#elif defined(__aarch64__)
  const cpu::KernelSet *bf16s = &cpu::kNeonBf16Kernels, *neons = &cpu::kNeonKernels, *any = &cpu::kGenericKernels;
  static const KvCacheImplementation neon_bf16({Isa::neon_bf16, "cpu.neon_bf16", bf16s, bf16s, neons}, check);
  static const KvCacheImplementation neon({Isa::neon, "cpu.neon", neons, neons, neons}, check);
  static const KvCacheImplementation generic({Isa::generic, "cpu.generic", any, any, any}, check);
  static const std::array<const core::Implementation*, 3> table = {&neon_bf16, &neon, &generic};
#else
  const cpu::KernelSet* any = &cpu::kGenericKernels;
  static const KvCacheImplementation generic({Isa::generic, "cpu.generic", any, any, any}, check);
  static const std::array<const core::Implementation*, 1> table = {&generic};
#endif
  return table;
}

}  // namespace tilewise::backends
