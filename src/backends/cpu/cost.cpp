// The constants are fitted to the tables of docs/benchmarks (AMD EPYC of family 25, Intel Xeon with AMX) and, for
// the sets that are not chosen there, to calls that name them.
#include "backends/cpu/cost.hpp"

#include <algorithm>
#include <cmath>

#include "backends/cpu/decode_kernel.hpp"
#include "backends/cpu/rows.hpp"
#include "operations/attention/work.hpp"

namespace tilewise::backends::cpu {
namespace {

constexpr double kAssumedGigahertz = 3.7;  // what servers hold on few cores; processors don't tell it reliably
// Of the multiply-adds that a core can do in a cycle.
constexpr double kOfFma512 = 0.86, kOfFma256 = 0.79, kOfDot = 0.82, kOfTiles = 0.33;
constexpr double kGenericFlops = 8.0;
constexpr double kMostGigabytes = 250.0;  // of all cores together

// Nanoseconds of one core.
constexpr double kCallNs = 500.0;
constexpr double kRowNs = 80.0, kGradientRowNs = 60.0;
constexpr double kPackedNs = 0.1, kGradientPackedNs = 0.7;  // for an element of keys or values
constexpr double kDropoutNs = 3.2, kSoftcapNs = 0.6, kBiasNs = 0.8, kAlibiNs = 0.2;
constexpr double kScoreModNs = 0.8, kMaskModNs = 0.4;  // of some five instructions
constexpr double kDecodeFlop = 0.5;                    // of a flop of the products, which wait for memory
constexpr double kWakeNs = 30e3;                       // until another thread works too

constexpr double kRowsTogether = 24.0;                   // that see a span of keys between them
constexpr double kSpanKeys = 32.0;                       // that a span is widened by, on average
constexpr double kDepthUnit = 16.0, kColumnUnit = 32.0;  // what head dims are padded to
constexpr double kPartKeys = 512.0, kKeysASplit = 1024.0, kBackwardTasks = 16.0;
constexpr double kWorkerNs = 5e3;  // of the fastest instruction set: about as much work as workers_for() asks for

double f(std::int64_t n) { return static_cast<double>(n); }
double padded(std::int64_t n, double unit) { return std::ceil(f(n) / unit) * unit; }

/// The part of a call that one core works through, and what is shared out.
struct Cost {
  double core_ns = 0.0;  // divided among the threads
  double bytes = 0.0;    // read from memory
  double tasks = 1.0;    // that it can be cut into
};

class Model {
 public:
  Model(const Problem& p, const KernelSet& kernels, const IsaRates& rates, const CpuTraits& traits)
      : p_(p),
        kernels_(kernels),
        rates_(rates),
        cycle_ns_(1.0 / traits.gigahertz),
        fresh_gigabytes_(traits.fresh_gigabytes),
        extent_(operations::attention::typical_extent(p)) {}

  [[nodiscard]] Cost cost() const {
    if (p_.operation == Operation::attention_backward) return backward();
    return suits_decode(p_, kernels_) ? decode() : forward();
  }

 private:
  [[nodiscard]] double group() const { return f(group_of(p_)); }
  [[nodiscard]] double rows_q() const { return extent_.total_q * f(p_.num_heads_q); }
  [[nodiscard]] double rows_k() const { return extent_.total_k * f(p_.num_heads_k); }
  [[nodiscard]] double dims() const { return f(p_.head_dim + p_.head_dim_v); }
  [[nodiscard]] double key_bytes() const { return rows_k() * dims() * static_cast<double>(size_of(p_.dtype)); }
  [[nodiscard]] double heads() const { return f(p_.batch_size) * f(p_.num_heads_k); }

  /// One product of scores and one of their weights, for one score.
  [[nodiscard]] double products_ns() const {
    const double flops = 2.0 * (padded(p_.head_dim, kDepthUnit) + padded(p_.head_dim_v, kColumnUnit));
    return numbers_width() * flops / rates_.flops_a_cycle * cycle_ns_;
  }
  /// A vector holds half as many doubles.
  [[nodiscard]] double numbers_width() const { return p_.dtype == DType::f64 ? 2.0 : 1.0; }
  [[nodiscard]] double score_ns() const {
    return numbers_width() * rates_.score_cycles * cycle_ns_ + (p_.dropout_p > 0.0 ? kDropoutNs : 0.0) +
           (p_.softcap > 0.0 ? kSoftcapNs : 0.0) + (p_.bias != BiasKind::none ? kBiasNs : 0.0) +
           (p_.alibi_slopes != AlibiKind::none ? kAlibiNs : 0.0) + (p_.score_mod.empty() ? 0.0 : kScoreModNs) +
           (p_.mask_mod.empty() ? 0.0 : kMaskModNs);
  }
  [[nodiscard]] double widening_ns() const {
    return (p_.dtype == DType::bf16  ? rates_.bf16_cycles
            : p_.dtype == DType::f16 ? rates_.f16_cycles
                                     : 0.0) *
           cycle_ns_;
  }
  /// Keys that each row of a group pays for.
  [[nodiscard]] double keys_paid(double rows) const {
    return std::min(operations::attention::keys_seen(p_, rows) + kSpanKeys,
                    padded(static_cast<std::int64_t>(extent_.seqlen_k), 16.0));
  }

  [[nodiscard]] Cost forward() const {
    const double rows = kernels_.max_rows, seqlen_q = std::max(extent_.seqlen_q, 1.0);
    const double heads_a_tile = std::clamp(std::floor(rows / seqlen_q), 1.0, group());
    const double queries_a_tile = std::min(seqlen_q, rows / heads_a_tile);
    const double visits =
        operations::attention::keys_seen(p_, queries_a_tile) / (queries_a_tile * heads_a_tile);  // for each row
    Cost cost;
    cost.core_ns = rows_q() * (kRowNs + keys_paid(kRowsTogether) * (products_ns() + score_ns()) +
                               visits * dims() * (kPackedNs + widening_ns()));
    cost.bytes = key_bytes();
    cost.tasks = rows_q() / kRowsTogether;
    return cost;
  }

  [[nodiscard]] Cost decode() const {
    const double seen =
        operations::attention::keys_seen(p_, std::max(extent_.seqlen_q, 1.0)) / std::max(extent_.seqlen_k, 1.0);
    Cost cost;
    cost.core_ns =
        rows_q() * (kRowNs + operations::attention::keys_seen(p_) * (kDecodeFlop * products_ns() + score_ns())) +
        seen * rows_k() * dims() * widening_ns();
    cost.bytes = seen * key_bytes();
    cost.tasks = heads() * std::max(1.0, extent_.seqlen_k / kKeysASplit);
    return cost;
  }

  [[nodiscard]] Cost backward() const {
    constexpr double kProducts = 2.5, kPasses = 2.0;
    Cost cost;
    cost.core_ns = rows_q() * (kGradientRowNs +
                               keys_paid(kernels_.backward_rows) * (kProducts * products_ns() + kPasses * score_ns())) +
                   rows_k() * dims() * (kGradientPackedNs + widening_ns()) + key_bytes() / fresh_gigabytes_;
    if (p_.dbias) cost.core_ns += rows_q() * keys_paid(kernels_.backward_rows) * (products_ns() + kPasses * score_ns());
    cost.bytes = key_bytes();
    cost.tasks = std::max(heads(), std::min(kBackwardTasks, heads() * std::max(1.0, extent_.seqlen_k / kPartKeys)));
    return cost;
  }

  const Problem& p_;
  const KernelSet& kernels_;
  const IsaRates& rates_;
  double cycle_ns_, fresh_gigabytes_;
  operations::attention::Extent extent_;
};

}  // namespace

CpuTraits traits_of(const Processor& processor) {
  const bool intel = processor.vendor == Processor::Vendor::intel;
  constexpr int kZen5 = 0x1A;
  // Multiply-adds a cycle, times 2: of two units of 256 bits, and of 512, which AMD had as two halves at first.
  const double fma256 = 32.0, fma512 = intel || processor.family >= kZen5 ? 64.0 : 32.0;
  // Products of bf16 pairs take Intel's cores two cycles, which leaves them no faster than single precision.
  const double dot = intel ? 32.0 : 2.0 * fma512, tiles = 1024.0;
  CpuTraits traits;
  traits.gigahertz = kAssumedGigahertz;
  traits.core_gigabytes = intel ? 11.0 : 24.0;
  traits.share_gigabytes = intel ? 11.0 : 14.0;
  traits.fresh_gigabytes = intel ? 6.0 : 2.5;
  const auto set = [&traits](Isa isa, const IsaRates& rates) { traits.rates[static_cast<std::size_t>(isa)] = rates; };
  set(Isa::generic, {kGenericFlops, 3.0, 1.8, 7.0});
  set(Isa::avx2, {kOfFma256 * fma256, 0.8});
  set(Isa::avx512, {kOfFma512 * fma512, 0.47});
  set(Isa::avx512_bf16, {kOfDot * dot, 0.47});
  set(Isa::amx_bf16, {kOfTiles * tiles, 0.9});
  // Of four units of 128 bits, as a Neoverse V1 has; not measured.
  constexpr double kNeonFma = 32.0, kNeonDot = 2.0 * kNeonFma;
  set(Isa::neon, {kOfFma256 * kNeonFma, 0.8});
  set(Isa::neon_bf16, {kOfDot * kNeonDot, 0.8});
  return traits;
}

double estimate_us(const Problem& problem, Isa isa, const KernelSet& kernels, const CpuTraits& traits, int threads) {
  const auto cost_of = [&](Isa set) {
    return Model(problem, kernels, traits.rates[static_cast<std::size_t>(set)], traits).cost();
  };
  const Cost cost = cost_of(isa);
  // Like workers_for(), but without its steps, at which more work would seem to take less time: judged by the set that
  // spends least on arithmetic, so that whatever grows takes no other set less time either.
  const double limit = std::max(1.0, std::min(static_cast<double>(threads), cost.tasks));
  const double workers = std::clamp(cost_of(Isa::amx_bf16).core_ns / kWorkerNs, 1.0, limit);
  const double gigabytes = std::min(std::max(traits.core_gigabytes, traits.share_gigabytes * workers), kMostGigabytes);
  const double ns = kCallNs + cost.core_ns / workers + cost.bytes / gigabytes + kWakeNs * (1.0 - 1.0 / workers);
  return 1e-3 * ns;
}

}  // namespace tilewise::backends::cpu
