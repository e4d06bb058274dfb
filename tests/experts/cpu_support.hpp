// CPU kernels of linear layers and experts on drawn problems: which there are, how they are run and compared.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <sstream>

#include "backends/cpu/gemm/grouped_product.hpp"
#include "backends/cpu/linear/linear_kernel.hpp"
#include "backends/cpu/moe/moe_kernel.hpp"
#include "support.hpp"

namespace tilewise::experts_test {

using backends::cpu::GemmKernels, backends::cpu::gemm_kernels_of, backends::cpu::Isa;
using device::ActivationClamp, device::ActivationKind, device::GateLayout;
using operations::linear::LinearParams;
using operations::moe::MoeParams;

inline constexpr DType kDTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

inline std::vector<Isa> isas() {
  std::vector<Isa> found;
  for (const auto& status : backends::cpu::machine_isas()) {
    if (status.available) found.push_back(status.isa);
  }
  return found;
}

inline bool has(const GemmKernels& kernels, DType x, DType w) {
  return backends::cpu::gemm_kernel(kernels, x, w) != nullptr;
}
inline bool has(const GemmKernels& kernels, DType dtype) { return has(kernels, dtype, dtype); }

/// Half a unit in the last place of 1, and a little.
inline double rounding_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1.02p-8 : dtype == DType::f16 ? 0x1.02p-11 : dtype == DType::f64 ? 0x1p-53 : 0x1p-24;
}

inline std::vector<std::byte> poisoned(std::size_t size) { return std::vector<std::byte>(size + 64, std::byte{0xFF}); }

inline void* aligned(std::vector<std::byte>& memory) {
  auto at = reinterpret_cast<std::uintptr_t>(memory.data());
  return reinterpret_cast<void*>((at + 63) / 64 * 64);
}

inline void fill_with_nan(const Matrix& m) {
  for (std::int64_t i = 0; i < m.rows * m.columns; ++i) set(m, i / m.columns, i % m.columns, std::nan(""));
}

inline void run(const LinearParams& p, const GemmKernels& kernels) {
  fill_with_nan(p.out);
  std::vector<std::byte> workspace = poisoned(backends::cpu::linear_workspace_size(p));
  backends::cpu::run_linear(p, kernels, aligned(workspace));
}

inline void run(const MoeParams& p, const GemmKernels& kernels) {
  fill_with_nan(p.out);
  std::vector<std::byte> workspace = poisoned(backends::cpu::moe_workspace_size(p));
  backends::cpu::run_moe(p, kernels, aligned(workspace));
}

/// Errors of each row within `own` of the value and `rest` of the row's greatest, or of `terms` where that is more.
inline void expect_near(const Matrix& out, const Matrix& expected, double own, double rest, const std::string& what,
                        double terms = 0) {
  // Where numbers lie as far apart from 0 on, and what underflows before.
  const double least = out.dtype == DType::f16 ? 0x1p-24 : 0x1p-120;
  for (std::int64_t row = 0; row < out.rows; ++row) {
    double greatest = terms;
    for (std::int64_t n = 0; n < out.columns; ++n) greatest = std::max(greatest, std::abs(at(expected, row, n)));
    for (std::int64_t n = 0; n < out.columns; ++n) {
      const double value = at(expected, row, n);
      ASSERT_NEAR(at(out, row, n), value, own * std::abs(value) + rest * greatest + least)
          << what << " row " << row << ", " << n;
    }
  }
}

inline Layout draw_layout(Tensors& tensors, bool any) {
  return {any && tensors.random.chance(0.4), tensors.random.chance(0.3) ? tensors.random.integer(1, 9) : 0};
}

inline device::Activation draw_activation(Tensors& tensors, bool gated) {
  using enum ActivationKind;
  device::Activation activation{};
  activation.kind = tensors.random.pick({identity, silu, gelu, gelu_tanh, relu, relu_squared});
  activation.clamp = tensors.random.pick(
      {ActivationClamp::none, ActivationClamp::none, ActivationClamp::before, ActivationClamp::after});
  activation.limit = 0.75;
  if (gated && tensors.random.chance(0.3)) activation = {swiglu_oai, ActivationClamp::before, 1.702, 0.9};
  return activation;
}

/// Now and then rows enough for packing, and for two tasks.
inline std::int64_t draw_rows(Tensors& tensors) {
  if (tensors.random.chance(0.1)) return tensors.random.integer(380, 500);
  return tensors.random.chance(0.5) ? tensors.random.integer(0, 12) : tensors.random.integer(13, 120);
}

inline LinearParams draw_linear(Tensors& tensors, DType dtype) {
  verify::Random& random = tensors.random;
  const std::int64_t tokens = draw_rows(tensors), experts = random.integer(1, 4), n = random.integer(1, 90);
  const std::int64_t k = random.chance(0.05)  ? 0
                         : random.chance(0.3) ? random.integer(250, 700)
                                              : random.integer(1, 90);
  LinearParams p{};
  p.x = tensors.matrix(dtype, tokens, k, draw_layout(tensors, false));
  tensors.deviation = 1 / std::sqrt(static_cast<double>(k + 1));
  p.w = tensors.weights(dtype, experts, n, k, draw_layout(tensors, true));
  p.out = tensors.matrix(dtype == DType::f64 ? dtype : random.pick({DType::f32, DType::bf16, DType::f16}), tokens, n,
                         draw_layout(tensors, false));
  tensors.deviation = 1;
  if (random.chance(0.5))
    p.bias = tensors.vectors(random.chance(0.5) || dtype == DType::f64 ? dtype : DType::f32, experts, n);
  if (experts > 1 || random.chance(0.5)) {
    std::vector<std::int64_t> groups(1, random.chance(0.3) ? random.integer(-2, 5) : 0);
    for (std::int64_t e = 0; e < experts; ++e)
      groups.push_back(random.chance(0.3) ? groups.back() : random.integer(0, tokens + 2));
    if (random.chance(0.8)) std::sort(groups.begin(), groups.end());
    p.groups_counted = random.chance(0.2);
    if (p.groups_counted) groups.pop_back();
    p.groups = tensors.integers(random.pick({DType::i32, DType::i64}), groups);
  }
  p.activation = draw_activation(tensors, false);
  p.batch_invariant = random.chance(0.2);
  return p;
}

inline MoeParams draw_moe(Tensors& tensors, DType dtype) {
  verify::Random& random = tensors.random;
  const std::int64_t tokens = draw_rows(tensors), hidden = random.integer(1, 140), inner = random.integer(1, 70);
  const std::int64_t experts = random.integer(1, 6), top_k = random.integer(1, 4);
  MoeParams p{};
  p.gate_layout = random.pick({GateLayout::none, GateLayout::concatenated, GateLayout::interleaved});
  const std::int64_t rows = (p.gate_layout == GateLayout::none ? 1 : 2) * inner;
  p.x = tensors.matrix(dtype, tokens, hidden, draw_layout(tensors, false));
  p.out = tensors.matrix(dtype, tokens, hidden, draw_layout(tensors, false));
  p.first_expert = random.chance(0.5) ? 0 : random.integer(1, 5);
  const std::int64_t low = p.first_expert - 1, high = p.first_expert + experts;  // one of others on either side
  p.topk_ids = tensors.ids(random.pick({DType::i32, DType::i64}), tokens, top_k, [&] {
    return random.chance(0.02) ? random.pick<std::int64_t>({-1, INT32_MAX, INT32_MIN}) : random.integer(low, high);
  });
  p.topk_weights = tensors.matrix(random.chance(0.5) || dtype == DType::f64 ? dtype : DType::f32, tokens, top_k);
  tensors.deviation = 1 / std::sqrt(static_cast<double>(hidden));
  p.gate_up = tensors.weights(dtype, experts, rows, hidden, draw_layout(tensors, true));
  tensors.deviation = 1 / std::sqrt(static_cast<double>(inner));
  p.down = tensors.weights(dtype, experts, hidden, inner, draw_layout(tensors, true));
  tensors.deviation = 0.5;
  if (random.chance(0.5)) p.gate_up_bias = tensors.vectors(dtype, experts, rows);
  if (random.chance(0.5)) p.down_bias = tensors.vectors(dtype, experts, hidden);
  p.activation = draw_activation(tensors, p.gate_layout != GateLayout::none);
  p.weight_on_input = random.chance(0.2);
  p.batch_invariant = random.chance(0.2);
  return p;
}

inline std::vector<double> values_of(const Matrix& m) {
  std::vector<double> values;
  for (std::int64_t i = 0; i < m.rows * m.columns; ++i) values.push_back(at(m, i / m.columns, i % m.columns));
  return values;
}

/// Memory of which few pages are ever touched.
class Reserved {
 public:
  explicit Reserved(std::size_t bytes)
      : bytes_(bytes),
        data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Reserved() { munmap(data_, bytes_); }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  [[nodiscard]] void* data() const { return data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

}  // namespace tilewise::experts_test
