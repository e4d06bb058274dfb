// docs/semantics.md in code: one output after the other, and in the backward pass one expert after the other.
#include "backends/reference/linear/reference_linear.hpp"

#include <vector>

#include "backends/reference/activation_math.hpp"
#include "backends/reference/matrix_access.hpp"
#include "core/parallel.hpp"
#include "operations/linear/groups.hpp"

namespace tilewise::backends::reference {
namespace {

using operations::linear::Groups, operations::linear::LinearParams;

constexpr std::int64_t kNobody = -1;

/// The expert of each row.
std::vector<std::int64_t> experts_of_rows(const LinearParams& p) {
  std::vector<std::int64_t> experts(static_cast<std::size_t>(p.x.rows), kNobody);
  Groups groups(p);
  for (std::int64_t expert = 0; expert < p.w.num_experts; ++expert) {
    const std::int64_t begin = groups.end();
    std::fill(experts.begin() + begin, experts.begin() + groups.next(), expert);
  }
  return experts;
}

/// What the activation is given.
template <typename Real>
Real sum(const LinearParams& p, std::int64_t row, std::int64_t expert, std::int64_t n) {
  Real sum = load(p.bias, expert, n);
  for (std::int64_t k = 0; k < p.w.columns; ++k)
    sum += Real{load(p.x, p.x_scales, row, k)} * Real{load(p.w, expert, n, k)};
  return sum;
}

template <typename Real>
void forward(const LinearParams& p) {
  const std::vector<std::int64_t> experts = experts_of_rows(p);
  core::parallel_for(p.x.rows, [&](std::int64_t row, int) {
    const std::int64_t expert = experts[static_cast<std::size_t>(row)];
    for (std::int64_t n = 0; n < p.w.rows; ++n) {
      const Real value = expert == kNobody ? 0 : clamped(p.activation, sum<Real>(p, row, expert, n)).value;
      store(p.out, row, n, static_cast<double>(value));
    }
  });
}

template <typename Real>
class Backward {
 public:
  explicit Backward(const LinearParams& p)
      : p_(p), experts_(experts_of_rows(p)), dsums_(static_cast<std::size_t>(p.x.rows * p.w.rows)) {
    core::parallel_for(p.x.rows, [&](std::int64_t row, int) {
      const std::int64_t expert = experts_[static_cast<std::size_t>(row)];
      for (std::int64_t n = 0; expert != kNobody && n < p.w.rows; ++n)
        dsum(row, n) = Real{load(p.dout, row, n)} * clamped(p.activation, sum<Real>(p, row, expert, n)).derivative;
    });
  }

  void rows() {
    core::parallel_for(p_.x.rows, [&](std::int64_t row, int) {
      const std::int64_t expert = experts_[static_cast<std::size_t>(row)];
      for (std::int64_t k = 0; k < p_.w.columns; ++k) {
        Real sum = 0;
        for (std::int64_t n = 0; expert != kNobody && n < p_.w.rows; ++n)
          sum += dsum(row, n) * Real{load(p_.w, expert, n, k)};
        store(p_.dx, row, k, static_cast<double>(sum));
      }
    });
  }

  void weights() {
    for_each_output([&](std::int64_t expert, std::int64_t n) {
      for (std::int64_t k = 0; k < p_.w.columns; ++k) {
        const Real sum = over_rows(expert, n, [&](std::int64_t row) { return Real{load(p_.x, p_.x_scales, row, k)}; });
        store(p_.dw, expert, n, k, static_cast<double>(sum));
      }
    });
  }

  void biases() {
    for_each_output([&](std::int64_t expert, std::int64_t n) {
      const Real sum = over_rows(expert, n, [](std::int64_t) { return Real{1}; });
      store(p_.dbias, expert, n, static_cast<double>(sum));
    });
  }

 private:
  Real& dsum(std::int64_t row, std::int64_t n) { return dsums_[static_cast<std::size_t>(row * p_.w.rows + n)]; }

  template <typename Visit>
  void for_each_output(Visit&& visit) {
    core::parallel_for(p_.w.num_experts * p_.w.rows, [&](std::int64_t i, int) { visit(i / p_.w.rows, i % p_.w.rows); });
  }

  template <typename Factor>
  Real over_rows(std::int64_t expert, std::int64_t n, Factor&& factor) {
    Real sum = 0;
    for (std::int64_t row = 0; row < p_.x.rows; ++row) {
      if (experts_[static_cast<std::size_t>(row)] == expert) sum += dsum(row, n) * factor(row);
    }
    return sum;
  }

  const LinearParams& p_;
  std::vector<std::int64_t> experts_;
  std::vector<Real> dsums_;  ///< gradients of what the activation is given, [rows, n]
};

template <typename Real>
void backward(const LinearParams& p) {
  Backward<Real> pass(p);
  if (p.dx.data != nullptr) pass.rows();
  if (p.dw.data != nullptr) pass.weights();
  if (p.dbias.data != nullptr) pass.biases();
}

}  // namespace

void linear_forward(const LinearParams& p) {
  return p.out.dtype == DType::f64 ? forward<long double>(p) : forward<double>(p);
}

void linear_backward(const LinearParams& p) {
  return p.dout.dtype == DType::f64 ? backward<long double>(p) : backward<double>(p);
}

}  // namespace tilewise::backends::reference
