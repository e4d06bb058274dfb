// Host-side pieces of the CPU kernels; see rows.hpp.
#include "backends/cpu/rows.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "core/parallel.hpp"
#include "operations/elements.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::cpu {
namespace {

constexpr std::size_t kScratchAlignment = 64;

/// In the order of ElementIndex.
constexpr std::array<DType, kElementCount> kDTypes{DType::f32, DType::bf16, DType::f16, DType::f64};

struct AlignedFree {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{kScratchAlignment}); }
};

const void* offset_bias(const device::AttendedRows& p, std::int64_t elements) {
  const auto size = static_cast<std::int64_t>(size_of(operations::dtype_of(p.bias_type)));
  return static_cast<const std::byte*>(p.bias.data) + elements * size;
}

}  // namespace

ElementIndex element_of(DType dtype) {
  return static_cast<ElementIndex>(std::find(kDTypes.begin(), kDTypes.end(), dtype) - kDTypes.begin());
}

DType dtype_of(ElementIndex element) { return kDTypes[static_cast<std::size_t>(element)]; }

std::size_t element_size(ElementIndex element) { return size_of(dtype_of(element)); }

DType real_of(ElementIndex element) { return element == kElementF64 ? DType::f64 : DType::f32; }

std::size_t real_size(ElementIndex element) { return size_of(real_of(element)); }

std::int64_t group_of(const Problem& problem) {
  return problem.num_heads_k > 0 ? std::max<std::int64_t>(problem.num_heads_q / problem.num_heads_k, 1) : 1;
}

double forward_flops(const Problem& problem) {
  const auto f = [](std::int64_t n) { return static_cast<double>(n); };
  const std::int64_t keys = problem.top_k > 0 ? problem.top_k : problem.seqlen_k;
  return 2.0 * f(problem.batch_size) * f(problem.num_heads_q) * f(problem.seqlen_q) * f(keys) *
         f(problem.head_dim + problem.head_dim_v);
}

ScoreParams make_score_params(const device::AttendedRows& p, const device::ScoreFactors& factors) {
  ScoreParams s{};
  static_cast<device::ScoreFactors&>(s) = factors;
  s.bias_type = p.bias_type;
  s.bias_key_stride = p.bias.key_stride;
  s.has_alibi = p.alibi_slopes != nullptr;
  s.has_sink = p.sink.data != nullptr;
  s.dropout_threshold = p.dropout_threshold;
  s.seed = p.seed_and_offset ? static_cast<std::uint64_t>(p.seed_and_offset[0]) : p.seed;
  s.offset = p.seed_and_offset ? static_cast<std::uint64_t>(p.seed_and_offset[p.seed_and_offset_stride]) : p.offset;
  return s;
}

double sink_of(const device::AttendedRows& p, std::int64_t head) {
  if (!p.sink.data) return -std::numeric_limits<double>::infinity();
  return operations::load_element(operations::dtype_of(p.sink.type), p.sink.data, head * p.sink.stride);
}

void* lse_address(const device::LseTensor& t, const device::Sequence& sequence, std::int64_t batch, std::int64_t i,
                  std::int64_t head, ElementIndex element) {
  if (!t.data) return nullptr;
  const std::int64_t at = batch * t.batch_stride + head * t.head_stride + (sequence.q_row + i) * t.seq_stride;
  return advance(t.data, at, real_size(element));
}

RowInfo RowMaker::row(std::int64_t i, std::int64_t head) const {
  RowInfo r{};
  r.q = row_address(p_.q, batch_, sequence_.q_row + i, head, element_size(element_));
  const device::KeyRange keys = device::visible_keys(p_, sequence_, diagonal_, i);
  r.key_begin = static_cast<std::int32_t>(keys.begin);
  r.key_end = static_cast<std::int32_t>(keys.end);
  r.diagonal = static_cast<std::int32_t>(i + diagonal_);
  r.batch_head = static_cast<std::uint32_t>(batch_ * p_.num_heads_q + head);
  r.query = static_cast<std::uint32_t>(i);
  if (p_.bias_type != device::kBiasNone) {
    r.bias = offset_bias(p_, batch_ * p_.bias.batch_stride + head * p_.bias.head_stride + i * p_.bias.query_stride +
                                 sequence_.leftpad * p_.bias.key_stride);
  }
  if (p_.alibi_slopes) {
    const std::int64_t at = batch_ * p_.alibi_batch_stride + head * p_.alibi_head_stride;
    r.alibi_slope = operations::load_element(real_of(element_), p_.alibi_slopes, at);
  }
  r.sink = sink_of(p_, head);
  return r;
}

void* thread_memory(ThreadMemory use, std::size_t bytes) {
  struct Block {
    std::unique_ptr<std::byte, AlignedFree> memory;
    std::size_t size = 0;
  };
  thread_local std::array<Block, static_cast<std::size_t>(ThreadMemory::count_)> blocks;
  auto& [memory, size] = blocks[static_cast<std::size_t>(use)];
  if (size < bytes) {
    memory.reset();
    size = 0;
    try {
      memory.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kScratchAlignment})));
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::runtime, "scratch: could not allocate " + std::to_string(bytes) + " bytes for a CPU tile");
    }
    size = bytes;
  }
  return memory.get();
}

int workers_for(double flops) {
  constexpr double kFlopsPerWorker = 2e6;
  const double useful = std::max(1.0, flops / kFlopsPerWorker);
  const int limit = core::num_threads();
  return useful >= limit ? limit : static_cast<int>(useful);
}

}  // namespace tilewise::backends::cpu
