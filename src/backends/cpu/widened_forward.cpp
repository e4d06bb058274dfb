// Every e4m3 number is a bf16 and an f16 one: a table of 256 entries each is the whole conversion. It is a pass over
// q, k and v beside a product of each query with each key; a cache in fp8, where one query meets many keys, belongs to
// the KV cache step, whose kernels widen in registers.
#include "backends/cpu/widened_forward.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "backends/cpu/forward_kernel.hpp"
#include "backends/cpu/rows.hpp"
#include "core/parallel.hpp"
#include "device/common/float16.h"
#include "device/common/float8.h"

namespace tilewise::backends::cpu {
namespace {

constexpr std::size_t kAlignment = 64;

using Table = std::array<std::uint16_t, 256>;

template <typename Round>
constexpr Table table_of(const Round& round) {
  Table table{};
  for (std::size_t code = 0; code < table.size(); ++code) {
    table[code] = round(device::e4m3_to_float(static_cast<std::uint8_t>(code)));
  }
  return table;
}
constexpr Table kToBf16 = table_of([](float x) { return device::float_to_bf16(x); });
constexpr Table kToF16 = table_of([](float x) { return device::float_to_f16(x); });

/// A tensor's own numbers in the workspace: [batch, rows, heads, dim].
struct Copy {
  std::int64_t batch, rows, heads, dim;

  [[nodiscard]] std::size_t bytes() const {
    const auto whole = static_cast<std::size_t>(batch * rows * heads * dim) * sizeof(std::uint16_t);
    return (whole + kAlignment - 1) / kAlignment * kAlignment;
  }
  [[nodiscard]] device::Tensor4 tensor(void* data) const {
    return {data, batch == 1 ? 0 : rows * heads * dim, heads * dim, dim};
  }
};

/// Those of q, k and v.
std::array<Copy, 3> copies_of(const Problem& p) {
  const bool packed = p.layout == Layout::thd;
  const std::int64_t batch = packed ? 1 : p.batch_size;
  const std::int64_t rows_q = packed ? p.total_q : p.seqlen_q, rows_k = packed ? p.total_k : p.seqlen_k;
  return {Copy{batch, rows_q, p.num_heads_q, p.head_dim}, Copy{batch, rows_k, p.num_heads_k, p.head_dim},
          Copy{batch, rows_k, p.num_heads_k, p.head_dim_v}};
}

class WidenedForwardKernel final : public operations::attention::Kernel {
 public:
  WidenedForwardKernel(const Problem& problem, const KernelSet& kernels)
      : copies_(copies_of(problem)),
        table_(operations::attention::out_dtype_of(problem) == DType::f16 ? kToF16 : kToBf16),
        inner_(make_forward_kernel(widened(problem), kernels)) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override { return offset(3) + inner_->workspace_size(); }

  [[nodiscard]] std::string schedule() const override { return "fp8 widened first, " + inner_->schedule(); }

  void launch(const device::AttentionParams& p, void* workspace, void* stream) const override {
    device::AttentionParams wide = p;
    const std::array<std::pair<const device::Tensor4*, device::Tensor4*>, 3> tensors{
        {{&p.q, &wide.q}, {&p.k, &wide.k}, {&p.v, &wide.v}}};
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      *tensors[i].second = copies_[i].tensor(advance(workspace, static_cast<std::int64_t>(offset(i)), 1));
      widen(copies_[i], *tensors[i].first, *tensors[i].second);
    }
    inner_->launch_on(&wide, advance(workspace, static_cast<std::int64_t>(offset(3)), 1), stream);
  }

 private:
  [[nodiscard]] std::size_t offset(std::size_t index) const noexcept {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < index; ++i) bytes += copies_[i].bytes();
    return bytes;
  }

  /// A task is a row of all heads.
  void widen(const Copy& copy, const device::Tensor4& from, const device::Tensor4& to) const {
    constexpr double kFlopsAnElement = 100.0;  // what workers_for() counts work in: an element takes as long as these
    const int workers =
        workers_for(kFlopsAnElement * static_cast<double>(copy.batch * copy.rows * copy.heads * copy.dim));
    core::parallel_for(copy.batch * copy.rows, workers, [&](std::int64_t task, int) {
      const std::int64_t b = task / copy.rows, row = task % copy.rows;
      for (std::int64_t h = 0; h < copy.heads; ++h) {
        const auto* codes = static_cast<const std::uint8_t*>(row_address(from, b, row, h, 1));
        auto* numbers = static_cast<std::uint16_t*>(mutable_row_address(to, b, row, h, sizeof(std::uint16_t)));
        for (std::int64_t d = 0; d < copy.dim; ++d) numbers[d] = table_[codes[d]];
      }
    });
  }

  std::array<Copy, 3> copies_;
  const Table& table_;
  std::unique_ptr<core::Kernel> inner_;
};

}  // namespace

Problem widened(Problem problem) {
  problem.dtype = operations::attention::out_dtype_of(problem);
  problem.out_dtype = DType::none;
  return problem;
}

double widening_us(const Problem& problem) {
  constexpr double kElementUs = 0.8e-3;
  double elements = 0.0;
  for (const Copy& c : copies_of(problem)) {
    elements += static_cast<double>(c.batch) * static_cast<double>(c.rows) * static_cast<double>(c.heads * c.dim);
  }
  return kElementUs * elements;
}

std::unique_ptr<core::Kernel> make_widened_forward_kernel(const Problem& problem, const KernelSet& kernels) {
  return std::make_unique<WidenedForwardKernel>(problem, kernels);
}

}  // namespace tilewise::backends::cpu
