// See saved.hpp.
#include "backends/cpu/moe/saved.hpp"

#include <algorithm>

#include "backends/cpu/gemm/elements.hpp"
#include "backends/cpu/merge/merge_rows.hpp"
#include "backends/cpu/rows.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::moe::MoeParams;

constexpr double kFlopsOfOne = 8.0;  // it is rounded or widened, and moved

bool is_interleaved(const MoeParams& p) { return p.gate_layout == device::GateLayout::interleaved; }

void* saved_row(const MoeParams& p, std::int64_t row) {
  return advance(p.gate_up_out.data, row * p.gate_up_out.row_stride, size_of(p.gate_up_out.dtype));
}

/// Gates and then ups of values in the order of gate_up's rows; `room` holds them where that differs.
template <typename Real>
const Real* by_gates(const MoeParams& p, const Real* values, Real* room) {
  if (!is_interleaved(p)) return values;
  const std::int64_t size = p.down.columns;
  for (std::int64_t i = 0; i < size; ++i) room[i] = values[2 * i], room[size + i] = values[2 * i + 1];
  return room;
}

/// sums become arguments: times what stands on the input, and with the bias.
template <typename Real>
void add_bias(const MoeParams& p, const Parts& parts, std::int64_t part, Real* sums) {
  const std::int64_t expert = expert_of_part(parts, p.gate_up.num_experts, part), columns = p.gate_up_out.columns;
  if (p.weight_on_input) {
    const Real factor = static_cast<const Real*>(parts.factor)[part];
    for (std::int64_t i = 0; i < columns; ++i) sums[i] *= factor;
  }
  const operations::ExpertVectors& bias = p.gate_up_bias;
  for (std::int64_t i = 0; bias.data != nullptr && i < columns; ++i)
    sums[i] += static_cast<Real>(
        operations::load_element(bias.dtype, bias.data, expert * bias.expert_stride + i * bias.stride));
}

/// visit(i, a row of Reals as room), in parallel.
template <typename Real, typename Visit>
void for_each_row(const MoeParams& p, std::int64_t count, const Visit& visit) {
  const std::int64_t columns = p.gate_up_out.columns;
  core::parallel_for(count, workers_for(kFlopsOfOne * static_cast<double>(count * columns)), [&](std::int64_t i, int) {
    visit(i, static_cast<Real*>(thread_scratch(static_cast<std::size_t>(columns) * sizeof(Real))));
  });
}

template <typename Visit>
void with_real(const MoeParams& p, const Visit& visit) {
  if (p.x.dtype == DType::f64) return visit(double{});
  visit(float{});
}

}  // namespace

void save_sums(const MoeParams& p, const Parts& chunk, std::int64_t* next, void* sums) {
  const std::int64_t experts = p.gate_up.num_experts, columns = p.gate_up_out.columns;
  with_real(p, [&]<typename Real>(Real) {
    for_each_row<Real>(p, chunk.groups[experts], [&](std::int64_t part, Real* room) {
      Real* const row = static_cast<Real*>(sums) + part * columns;
      const std::int64_t expert = expert_of_part(chunk, experts, part), to = next[expert] + part - chunk.groups[expert];
      store_weighted(saved_row(p, to), p.gate_up_out.dtype, by_gates(p, row, room), columns, Real{1});
      add_bias(p, chunk, part, row);
    });
  });
  for (std::int64_t e = 0; e < experts; ++e) next[e] += chunk.groups[e + 1] - chunk.groups[e];
}

void clear_saved(const MoeParams& p, std::int64_t first) {
  for (std::int64_t row = first; row < p.gate_up_out.rows; ++row)
    clear_row(saved_row(p, row), p.gate_up_out.dtype, p.gate_up_out.columns);
}

void load_arguments(const MoeParams& p, const Parts& all, std::int64_t first, std::int64_t count, void* arguments) {
  const std::int64_t columns = p.gate_up_out.columns, size = p.down.columns;
  with_real(p, [&]<typename Real>(Real) {
    for_each_row<Real>(p, count, [&](std::int64_t i, Real* room) {
      Real* const to = static_cast<Real*>(arguments) + i * columns;
      load_row(is_interleaved(p) ? room : to, saved_row(p, first + i), p.gate_up_out.dtype, columns);
      for (std::int64_t j = 0; is_interleaved(p) && j < size; ++j) to[2 * j] = room[j], to[2 * j + 1] = room[size + j];
      add_bias(p, all, first + i, to);
    });
  });
}

void multiply_saved(const MoeParams& p, std::int64_t first, std::int64_t count, const void* gradients, DType dtype,
                    void* weights) {
  const std::int64_t columns = p.gate_up_out.columns;
  with_real(p, [&]<typename Real>(Real) {
    const auto bytes = 2 * static_cast<std::size_t>(columns) * sizeof(Real);
    core::parallel_for(
        count, workers_for(kFlopsOfOne * static_cast<double>(count * columns)), [&](std::int64_t i, int) {
          auto* const room = static_cast<Real*>(thread_scratch(bytes));
          load_row(room, advance(const_cast<void*>(gradients), i * columns, size_of(dtype)), dtype, columns);
          static_cast<Real*>(weights)[i] =
              dot(by_gates(p, room, room + columns), saved_row(p, first + i), p.gate_up_out.dtype, columns);
        });
  });
}

}  // namespace tilewise::backends::cpu
