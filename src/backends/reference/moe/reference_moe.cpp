// docs/semantics.md in code: one (token, expert) after the other, whose intermediate values the backward pass makes
// again.
#include "backends/reference/moe/reference_moe.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "backends/reference/activation_math.hpp"
#include "backends/reference/matrix_access.hpp"
#include "core/parallel.hpp"
#include "formats/quantize.hpp"

namespace tilewise::backends::reference {
namespace {

using device::GateLayout;
using operations::moe::MoeParams;

constexpr std::int64_t kNobody = -1;

/// The expert of (token, j) as the weights here count them.
std::int64_t expert_of(const MoeParams& p, std::int64_t token, std::int64_t j) {
  const std::int64_t id = operations::load_integer(p.topk_ids.dtype, p.topk_ids.data,
                                                   token * p.topk_ids.row_stride + j * p.topk_ids.column_stride);
  const bool here = id >= p.first_expert && id - p.first_expert < p.gate_up.num_experts;
  return here ? id - p.first_expert : kNobody;
}

std::int64_t intermediate(const MoeParams& p) { return p.down.columns; }

std::int64_t gate_row(const MoeParams& p, std::int64_t i) {
  return p.gate_layout == GateLayout::interleaved ? 2 * i : i;
}
std::int64_t up_row(const MoeParams& p, std::int64_t i) {
  if (p.gate_layout == GateLayout::none) return i;
  return p.gate_layout == GateLayout::interleaved ? 2 * i + 1 : intermediate(p) + i;
}

/// The row of gate_up whose sum gate_up_out has in a column.
std::int64_t row_of(const MoeParams& p, std::int64_t column) {
  if (p.gate_layout == GateLayout::none || column >= intermediate(p))
    return up_row(p, p.gate_layout == GateLayout::none ? column : column - intermediate(p));
  return gate_row(p, column);
}

/// Rows of gate_up_out by pair, of a call that has one.
class SavedRows {
 public:
  explicit SavedRows(const MoeParams& p) : top_k_(p.topk_ids.columns) {
    if (p.gate_up_out.data != nullptr) rows_ = saved_rows(p);
  }
  [[nodiscard]] std::int64_t of(std::int64_t token, std::int64_t j) const {
    return rows_.empty() ? kNobody : rows_[static_cast<std::size_t>(token * top_k_ + j)];
  }

 private:
  std::int64_t top_k_;
  std::vector<std::int64_t> rows_;
};

/// One token at one expert.
template <typename Real>
struct Part {
  Real input_weight = 1, output_weight = 1;
  std::vector<Real> sums;      ///< of the first product, before weight and bias: gates, then ups
  std::vector<Gated<Real>> h;  ///< intermediate values; by_gate is 0 where there is no gate
  std::vector<Real> z;         ///< down h + b''

  /// saved: the row of gate_up_out that holds the sums; kNobody: they are made.
  Part(const MoeParams& p, std::int64_t token, std::int64_t j, std::int64_t expert, std::int64_t saved) {
    (p.weight_on_input ? input_weight : output_weight) = load(p.topk_weights, token, j);
    const bool has_gate = p.gate_layout != GateLayout::none;
    for (std::int64_t column = 0; column < p.gate_up.rows; ++column)
      sums.push_back(saved == kNobody ? product(p, token, expert, row_of(p, column))
                                      : load(p.gate_up_out, saved, column));
    const auto activated = [&](std::int64_t column) {
      return input_weight * sums[static_cast<std::size_t>(column)] + load(p.gate_up_bias, expert, row_of(p, column));
    };
    for (std::int64_t i = 0; i < intermediate(p); ++i) {
      const Real up = activated(has_gate ? intermediate(p) + i : i);
      if (has_gate) {
        h.push_back(gated(p.activation, activated(i), up));
      } else {
        const Slope<Real> active = clamped(p.activation, up);
        h.push_back({active.value, 0, active.derivative});
      }
    }
    if (p.h_format.defined()) quantize_h(p.h_format);
    for (std::int64_t n = 0; n < p.down.rows; ++n) {
      Real sum = load(p.down_bias, expert, n);
      for (std::int64_t i = 0; i < intermediate(p); ++i)
        sum += h[static_cast<std::size_t>(i)].value * Real{load(p.down, expert, n, i)};
      z.push_back(sum);
    }
    if (p.norm_weight.data != nullptr) normalise(p, expert);
  }

 private:
  static Real product(const MoeParams& p, std::int64_t token, std::int64_t expert, std::int64_t row) {
    Real sum = 0;
    for (std::int64_t k = 0; k < p.x.columns; ++k)
      sum += Real{load(p.x, p.x_scales, token, k)} * Real{load(p.gate_up, expert, row, k)};
    return sum;
  }

  void quantize_h(const BlockFormat& format) {
    std::vector<float> values;
    for (const Gated<Real>& one : h) values.push_back(static_cast<float>(one.value));
    const auto size = static_cast<std::int64_t>(values.size());
    const auto row = [&](void* data, DType dtype, std::int64_t columns) {
      return TensorView(data, dtype, {1, columns});
    };
    const TensorView numbers = row(values.data(), DType::f32, size);
    const std::int64_t blocks = formats::scales_shape(format, numbers.shape, numbers.rank)[1];
    std::vector<std::uint8_t> elements(values.size() + 1);
    std::vector<float> scales(static_cast<std::size_t>(blocks) + 1);
    const formats::Quantized quantized{
        row(elements.data(), format.element, size), row(scales.data(), format.scale, blocks), {}};
    formats::quantize(numbers, format, quantized);
    formats::dequantize(quantized, format, numbers);
    for (std::size_t i = 0; i < h.size(); ++i) h[i].value = Real{values[i]};
  }

  void normalise(const MoeParams& p, std::int64_t expert) {
    Real squares = 0;
    for (const Real value : z) squares += value * value;
    const Real root = std::sqrt(squares / static_cast<Real>(z.size()) + static_cast<Real>(p.norm_epsilon));
    for (std::size_t n = 0; n < z.size(); ++n)
      z[n] *= Real{load(p.norm_weight, expert, static_cast<std::int64_t>(n))} / root;
  }
};

/// Rows behind the last expert's.
void clear_saved_rows(const MoeParams& p, const std::vector<std::int64_t>& rows) {
  const auto of_somebody = std::ranges::count_if(rows, [](std::int64_t row) { return row != kNobody; });
  for (std::int64_t row = of_somebody; row < p.gate_up_out.rows; ++row)
    for (std::int64_t column = 0; column < p.gate_up_out.columns; ++column) store(p.gate_up_out, row, column, 0.0);
}

template <typename Real>
void forward(const MoeParams& p) {
  const SavedRows rows(p);
  if (p.gate_up_out.data != nullptr) clear_saved_rows(p, saved_rows(p));
  core::parallel_for(p.x.rows, [&](std::int64_t token, int) {
    std::vector<Real> sum(static_cast<std::size_t>(p.down.rows));
    for (std::int64_t j = 0; j < p.topk_ids.columns; ++j) {
      const std::int64_t expert = expert_of(p, token, j);
      if (expert == kNobody) continue;
      const Part<Real> part(p, token, j, expert, kNobody);
      for (std::size_t i = 0; i < part.sums.size() && p.gate_up_out.data != nullptr; ++i)
        store(p.gate_up_out, rows.of(token, j), static_cast<std::int64_t>(i), static_cast<double>(part.sums[i]));
      for (std::size_t n = 0; n < sum.size(); ++n) sum[n] += part.output_weight * part.z[n];
    }
    for (std::size_t n = 0; n < sum.size(); ++n)
      store(p.out, token, static_cast<std::int64_t>(n), static_cast<double>(sum[n]));
  });
}

/// Gradients of what one part is made of.
template <typename Real>
struct PartGradients {
  std::vector<Real> dz, dh, products;  ///< products: of rows of gate_up, without the bias
  Real of_sums = 0;                    ///< products times the sums: the gradient of a weight on the input

  PartGradients(const MoeParams& p, std::int64_t token, std::int64_t expert, const Part<Real>& part)
      : dh(part.h.size()), products(static_cast<std::size_t>(p.gate_up.rows)) {
    for (std::size_t n = 0; n < part.z.size(); ++n)
      dz.push_back(part.output_weight * Real{load(p.dout, token, static_cast<std::int64_t>(n))});
    for (std::size_t i = 0; i < dh.size(); ++i) {
      const auto column = static_cast<std::int64_t>(i);
      for (std::size_t n = 0; n < dz.size(); ++n)
        dh[i] += dz[n] * Real{load(p.down, expert, static_cast<std::int64_t>(n), column)};
      products[static_cast<std::size_t>(up_row(p, column))] = dh[i] * part.h[i].by_up;
      if (p.gate_layout != GateLayout::none)
        products[static_cast<std::size_t>(gate_row(p, column))] = dh[i] * part.h[i].by_gate;
    }
    for (std::size_t i = 0; i < products.size(); ++i)
      of_sums += products[static_cast<std::size_t>(row_of(p, static_cast<std::int64_t>(i)))] * part.sums[i];
  }
};

/// dx and dtopk_weights of one token.
template <typename Real>
void token_gradients(const MoeParams& p, const SavedRows& rows, std::int64_t token) {
  std::vector<Real> dx(static_cast<std::size_t>(p.x.columns));
  for (std::int64_t j = 0; j < p.topk_ids.columns; ++j) {
    const std::int64_t expert = expert_of(p, token, j);
    Real dweight = 0;
    if (expert != kNobody) {
      const Part<Real> part(p, token, j, expert, rows.of(token, j));
      const PartGradients<Real> d(p, token, expert, part);
      for (std::size_t n = 0; n < part.z.size() && !p.weight_on_input; ++n)
        dweight += part.z[n] * Real{load(p.dout, token, static_cast<std::int64_t>(n))};
      for (std::size_t k = 0; k < dx.size(); ++k) {
        const auto column = static_cast<std::int64_t>(k);
        Real dinput = 0;  // of x times its weight
        for (std::size_t r = 0; r < d.products.size(); ++r)
          dinput += d.products[r] * Real{load(p.gate_up, expert, static_cast<std::int64_t>(r), column)};
        dx[k] += part.input_weight * dinput;
      }
      if (p.weight_on_input) dweight = d.of_sums;
    }
    if (p.dtopk_weights.data != nullptr) store(p.dtopk_weights, token, j, static_cast<double>(dweight));
  }
  for (std::size_t k = 0; k < dx.size() && p.dx.data != nullptr; ++k)
    store(p.dx, token, static_cast<std::int64_t>(k), static_cast<double>(dx[k]));
}

/// Sums of one expert's tokens.
template <typename Real>
class ExpertGradients {
 public:
  explicit ExpertGradients(const MoeParams& p)
      : p_(p),
        gate_up_(static_cast<std::size_t>(p.gate_up.rows * p.gate_up.columns)),
        down_(static_cast<std::size_t>(p.down.rows * p.down.columns)),
        gate_up_bias_(static_cast<std::size_t>(p.gate_up.rows)),
        down_bias_(static_cast<std::size_t>(p.down.rows)) {}

  void add(std::int64_t token, std::int64_t j, std::int64_t expert, std::int64_t saved) {
    const Part<Real> part(p_, token, j, expert, saved);
    const PartGradients<Real> d(p_, token, expert, part);
    const std::size_t columns = static_cast<std::size_t>(p_.x.columns);
    for (std::size_t r = 0; r < gate_up_bias_.size(); ++r) {
      gate_up_bias_[r] += d.products[r];
      for (std::size_t k = 0; k < columns; ++k)
        gate_up_[r * columns + k] +=
            d.products[r] * part.input_weight * Real{load(p_.x, p_.x_scales, token, static_cast<std::int64_t>(k))};
    }
    for (std::size_t n = 0; n < down_bias_.size(); ++n) {
      down_bias_[n] += d.dz[n];
      for (std::size_t i = 0; i < part.h.size(); ++i) down_[n * part.h.size() + i] += d.dz[n] * part.h[i].value;
    }
  }

  void store_to(std::int64_t expert) const {
    store_matrix(p_.dgate_up, expert, gate_up_);
    store_matrix(p_.ddown, expert, down_);
    store_vector(p_.dgate_up_bias, expert, gate_up_bias_);
    store_vector(p_.ddown_bias, expert, down_bias_);
  }

 private:
  static void store_matrix(const operations::ExpertMatrices& w, std::int64_t expert, const std::vector<Real>& values) {
    for (std::int64_t i = 0; i < w.rows * w.columns && w.data != nullptr; ++i)
      store(w, expert, i / w.columns, i % w.columns, static_cast<double>(values[static_cast<std::size_t>(i)]));
  }
  static void store_vector(const operations::ExpertVectors& v, std::int64_t expert, const std::vector<Real>& values) {
    for (std::int64_t i = 0; i < v.size && v.data != nullptr; ++i)
      store(v, expert, i, static_cast<double>(values[static_cast<std::size_t>(i)]));
  }

  const MoeParams& p_;
  std::vector<Real> gate_up_, down_, gate_up_bias_, down_bias_;
};

template <typename Real>
void backward(const MoeParams& p) {
  const SavedRows rows(p);
  core::parallel_for(p.x.rows, [&](std::int64_t token, int) { token_gradients<Real>(p, rows, token); });
  core::parallel_for(p.gate_up.num_experts, [&](std::int64_t expert, int) {
    ExpertGradients<Real> sums(p);
    for (std::int64_t token = 0; token < p.x.rows; ++token) {
      for (std::int64_t j = 0; j < p.topk_ids.columns; ++j) {
        if (expert_of(p, token, j) == expert) sums.add(token, j, expert, rows.of(token, j));
      }
    }
    sums.store_to(expert);
  });
}

}  // namespace

std::vector<std::int64_t> saved_rows(const MoeParams& p) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(p.topk_ids.rows * p.topk_ids.columns), kNobody);
  std::vector<std::vector<std::size_t>> pairs(static_cast<std::size_t>(p.gate_up.num_experts));
  for (std::size_t pair = 0; pair < rows.size(); ++pair) {
    const auto place = static_cast<std::int64_t>(pair);
    const std::int64_t expert = expert_of(p, place / p.topk_ids.columns, place % p.topk_ids.columns);
    if (expert != kNobody) pairs[static_cast<std::size_t>(expert)].push_back(pair);
  }
  std::int64_t row = 0;
  for (const std::vector<std::size_t>& of_expert : pairs)
    for (const std::size_t pair : of_expert) rows[pair] = row++;
  return rows;
}

void moe_forward(const MoeParams& p) {
  return p.out.dtype == DType::f64 ? forward<long double>(p) : forward<double>(p);
}

void moe_backward(const MoeParams& p) {
  return p.dout.dtype == DType::f64 ? backward<long double>(p) : backward<double>(p);
}

}  // namespace tilewise::backends::reference
