// Gradients of captured tensors on the CPU; see table_gradients.hpp.
#include "backends/cpu/table_gradients.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <span>

#include "backends/cpu/flush_denormals.hpp"
#include "backends/cpu/gradient_rows.hpp"
#include "core/parallel.hpp"
#include "operations/attention/table_sums.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::attention::LookUpPlaces, operations::attention::TableSums;

/// Of all groups' sums. Fewer groups take their heads one after another.
constexpr std::int64_t kMostBytes = std::int64_t{64} << 20, kMostGroups = 64;

/// The scores' parts of one look-up's gradient, block by block.
class LookUpPass {
 public:
  LookUpPass(const device::AttentionParams& p, const ScoreParams& score, const KernelSet& kernels, ElementIndex element,
             std::size_t kernel_scratch)
      : p_(p), score_(score), kernels_(kernels), element_(element), kernel_scratch_(kernel_scratch) {}

  void add_head(std::int64_t batch, std::int64_t head, LookUpPlaces& places, TableSums& sums) const {
    const device::Sequence s = device::sequence_of(p_, batch);
    const GradientRows rows(p_, kernels_, element_, batch, s);
    const std::int64_t head_k = head / (p_.num_heads_q / p_.num_heads_k);
    const std::int64_t keys = kernels_.backward_keys, queries = kernels_.backward_rows;
    const std::size_t part_bytes = static_cast<std::size_t>(queries * keys) * real_size(element_);
    constexpr std::size_t kRowBytes = 2 * kMaxBackwardRows * sizeof(double);
    auto* scratch = static_cast<std::byte*>(thread_scratch(kernel_scratch_ + kRowBytes + part_bytes));
    auto* lse = reinterpret_cast<double*>(scratch + kernel_scratch_);
    double* delta = lse + kMaxBackwardRows;
    void* parts = delta + kMaxBackwardRows;
    for (std::int64_t key = 0; key < s.seqlen_k; key += keys) {
      const std::int64_t num_keys = std::min(keys, s.seqlen_k - key);
      KeyBlock block = rows.key_block(score_, head_k, key, num_keys);
      block.wants_dk = block.wants_dv = false;
      kernels_.begin_keys[element_](block, scratch);
      for (std::int64_t i = 0; i < s.seqlen_q && !core::abandoned(); i += queries) {
        const std::int64_t count = std::min(queries, s.seqlen_q - i);
        std::memset(parts, 0, part_bytes);
        rows.statistics(head, i, count, lse, delta);
        if (!rows.add_block(block, head, i, count, lse, delta, nullptr, 0, {parts, keys, 1, 0, s.seqlen_k}, scratch))
          continue;
        for (std::int64_t n = 0; n < count; ++n)
          add_row(batch, head, i + n, key, advance(parts, n * keys, real_size(element_)), num_keys, places, sums);
      }
    }
  }

 private:
  void add_row(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key, const void* parts,
               std::int64_t count, LookUpPlaces& places, TableSums& sums) const {
    const auto add = [&](auto* reals) {
      using Real = std::remove_const_t<std::remove_pointer_t<decltype(reals)>>;
      places.add(batch, head, query, key, std::span<const Real>(reals, static_cast<std::size_t>(count)), sums);
    };
    real_of(element_) == DType::f64 ? add(static_cast<const double*>(parts)) : add(static_cast<const float*>(parts));
  }

  const device::AttentionParams& p_;
  const ScoreParams& score_;
  const KernelSet& kernels_;
  ElementIndex element_;
  std::size_t kernel_scratch_;
};

/// Groups of heads, by the problem alone.
std::int64_t groups_of(const Problem& p) {
  const std::int64_t bytes =
      operations::attention::elements_of_wanted_tables(p) * static_cast<std::int64_t>(sizeof(double));
  const std::int64_t heads = std::max<std::int64_t>(p.batch_size * p.num_heads_q, 1);
  return std::clamp<std::int64_t>(kMostBytes / std::max<std::int64_t>(bytes, 1), 1, std::min(heads, kMostGroups));
}

}  // namespace

TableGradients::TableGradients(const Problem& problem)
    : problem_(problem), look_ups_(operations::attention::wanted_look_ups(problem)) {
  for (const expression::LookUpDerivative& look_up : look_ups_)
    functions_.push_back(std::make_unique<CompiledFunctions>(problem, look_up.slope));
}

void TableGradients::write(const device::AttentionParams& p, const ScoreParams& score, const KernelSet& kernels,
                           ElementIndex element, std::size_t kernel_scratch, int workers) const {
  const std::int64_t groups = groups_of(problem_), heads = p.batch_size * p.num_heads_q;
  std::vector<TableSums> sums(static_cast<std::size_t>(groups), TableSums(problem_));
  for (std::size_t n = 0; n < look_ups_.size(); ++n) {
    CapturedTables tables;
    ScoreParams own = score;
    own.functions = functions_[n]->bind(p.tables, tables);
    const LookUpPass pass(p, own, kernels, element, kernel_scratch);
    core::parallel_for(groups, workers, [&](std::int64_t group, int) {
      const FlushDenormals flush;
      LookUpPlaces places(look_ups_[n], std::span(p.tables, problem_.tables.size()));
      for (std::int64_t head = group; head < heads && !core::abandoned(); head += groups)
        pass.add_head(head / p.num_heads_q, head % p.num_heads_q, places, sums[static_cast<std::size_t>(group)]);
    });
  }
  for (std::size_t group = 1; group < sums.size(); ++group) sums.front().add(sums[group]);
  sums.front().store(problem_, p.dtables);
}

}  // namespace tilewise::backends::cpu
