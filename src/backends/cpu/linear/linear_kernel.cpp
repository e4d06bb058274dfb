// The groups' rows by one grouped product, and zeros for all others.
#include "backends/cpu/linear/linear_kernel.hpp"

#include <algorithm>
#include <cstring>

#include "backends/cpu/gemm/gradients.hpp"
#include "backends/cpu/gemm/grouped_product.hpp"
#include "backends/cpu/rows.hpp"
#include "core/message.hpp"
#include "operations/linear/groups.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::linear::Groups, operations::linear::LinearParams;

/// First rows of all groups, and the last one's end.
void find_groups(const LinearParams& p, std::int64_t* groups) {
  Groups ends(p);
  groups[0] = ends.end();
  for (std::int64_t expert = 0; expert < p.w.num_experts; ++expert) groups[expert + 1] = ends.next();
}

void clear_rows(const operations::Matrix& m, std::int64_t begin, std::int64_t end) {
  const std::size_t size = size_of(m.dtype);
  for (std::int64_t row = begin; row < end; ++row)
    std::memset(advance(m.data, row * m.row_stride, size), 0, static_cast<std::size_t>(m.columns) * size);
}

void clear_outside(const operations::Matrix& m, const std::int64_t* groups, std::int64_t num_groups) {
  clear_rows(m, 0, groups[0]);
  clear_rows(m, groups[num_groups], m.rows);
}

bool has_activation(const LinearParams& p) {
  return p.activation.kind != device::ActivationKind::identity || p.activation.clamp != device::ActivationClamp::none;
}

/// Whether products can take dout as it is.
bool is_taken(const LinearParams& p) {
  return !has_activation(p) && (p.dout.dtype == p.x.dtype || p.dout.dtype == gradient_dtype(p.x.dtype));
}

/// Rows whose sums share the workspace at a time.
std::int64_t chunk_of(const LinearParams& p) {
  constexpr std::int64_t kMostBytes = std::int64_t{64} << 20;
  const std::int64_t bytes =
      std::max<std::int64_t>(p.w.rows, 1) * static_cast<std::int64_t>(size_of(sum_dtype(p.x.dtype)));
  return has_activation(p) ? std::min(std::max<std::int64_t>(kMostBytes / bytes, 1), p.x.rows) : 0;
}

/// The workspace of a backward pass.
struct BackwardWorkspace {
  std::int64_t* groups;  ///< [num_experts + 1], and those of a chunk
  void *tasks, *dsums, *sums;
  std::size_t bytes = 0;

  BackwardWorkspace(const LinearParams& p, void* base) : base_(static_cast<std::byte*>(base)) {
    groups = static_cast<std::int64_t*>(take(2 * (p.w.num_experts + 1), sizeof(std::int64_t)));
    tasks = take(static_cast<std::int64_t>(grouped_product_workspace(p.w.num_experts)), 1);
    dsums = take(is_taken(p) ? 0 : p.x.rows * p.w.rows, size_of(gradient_dtype(p.x.dtype)));
    sums = take(chunk_of(p) * p.w.rows, size_of(sum_dtype(p.x.dtype)));
  }

 private:
  void* take(std::int64_t count, std::size_t size) {
    void* taken = base_ == nullptr ? nullptr : base_ + bytes;
    bytes += (static_cast<std::size_t>(count) * size + 63) / 64 * 64;
    return taken;
  }
  std::byte* base_;
};

/// x times w, without activation and dtype of out.
GroupedProduct product_of(const LinearParams& p, const GemmKernels& kernels, const std::int64_t* groups) {
  GroupedProduct product{};
  product.kernels = &kernels;
  product.dtype = p.x.dtype;
  product.x = p.x.data;
  product.x_stride = p.x.row_stride;
  product.x_scales = p.x_scales;
  product.groups = groups;
  product.w = p.w;
  product.bias = p.bias;
  product.batch_invariant = p.batch_invariant;
  return product;
}

/// The gradient of what the activation is given, in gradient_dtype(); those sums are computed again.
void find_dsums(const LinearParams& p, const GemmKernels& kernels, const GemmKernel& kernel,
                const BackwardWorkspace& w) {
  const DType dtype = gradient_dtype(p.x.dtype), real = sum_dtype(p.x.dtype);
  ActivationTask t{};
  t.activation = p.activation;
  t.results = p.w.rows;
  t.dresult_element = gemm_element(p.dout.dtype);
  t.dresult_stride = p.dout.row_stride;
  t.argument_stride = t.dargument_stride = p.w.rows;
  t.element = gemm_element(dtype);
  std::int64_t* part = w.groups + p.w.num_experts + 1;
  const std::int64_t end = w.groups[p.w.num_experts], chunk = has_activation(p) ? chunk_of(p) : end;
  for (std::int64_t first = w.groups[0]; first < end; first += chunk) {
    t.rows = std::min(chunk, end - first);
    if (has_activation(p)) {
      for (std::int64_t e = 0; e <= p.w.num_experts; ++e)
        part[e] = std::clamp(w.groups[e], first, first + t.rows) - first;
      GroupedProduct product = product_of(p, kernels, part);
      product.x = advance(p.x.data, first * p.x.row_stride, size_of(p.x.dtype));
      product.out = w.sums;
      product.out_stride = p.w.rows;
      product.out_dtype = real;
      run_grouped_product(product, w.tasks);
      t.arguments = w.sums;
    }
    t.dresult = advance(p.dout.data, first * p.dout.row_stride, size_of(p.dout.dtype));
    t.dargument = advance(w.dsums, first * p.w.rows, size_of(dtype));
    run_activation_gradient(kernel, t);
  }
}

void check_backward(const LinearParams& p, const GemmKernels& kernels) {
  check_rows("x", p.x);
  if (is_quantized(p.x.dtype))
    core::invalid_type("x: dtype must be one that is not quantised (got ", to_string(p.x.dtype), ")");
  if (is_quantized(p.w.dtype) && p.dw.data != nullptr)
    core::invalid_argument("dw: quantised weights have no gradient (got w in ", to_string(p.w.dtype), ")");
  check_weights("w", p.w, p.x.dtype);
  check_results("dout", p.dout, p.x.dtype);
  if (p.dx.data != nullptr) check_results("dx", p.dx, p.x.dtype);
  if (p.dw.data != nullptr) check_weight_gradient("dw", p.dw, p.x.dtype);
  check_kernel(kernels, p.x.dtype, p.w.dtype);
}

}  // namespace

std::size_t linear_workspace_size(const LinearParams& p) {
  return static_cast<std::size_t>(p.w.num_experts + 1) * sizeof(std::int64_t) +
         grouped_product_workspace(p.w.num_experts);
}

void run_linear(const LinearParams& p, const GemmKernels& kernels, void* workspace) {
  check_rows("x", p.x);
  check_results("out", p.out, p.x.dtype);
  check_scales("x", p.x_scales, p.x.dtype, p.x.columns);
  check_weights("w", p.w, p.x.dtype);
  check_kernel(kernels, p.x.dtype, p.w.dtype);
  auto* groups = static_cast<std::int64_t*>(workspace);
  find_groups(p, groups);
  clear_outside(p.out, groups, p.w.num_experts);

  GroupedProduct product = product_of(p, kernels, groups);
  product.activation = p.activation;
  product.out = p.out.data;
  product.out_stride = p.out.row_stride;
  product.out_dtype = p.out.dtype;
  run_grouped_product(product, groups + p.w.num_experts + 1);
}

std::size_t linear_backward_workspace_size(const LinearParams& p) { return BackwardWorkspace(p, nullptr).bytes; }

void run_linear_backward(const LinearParams& p, const GemmKernels& kernels, void* workspace) {
  check_backward(p, kernels);
  const BackwardWorkspace w(p, workspace);
  const GemmKernel& kernel = *gemm_kernel(kernels, p.x.dtype, p.w.dtype);
  find_groups(p, w.groups);
  GroupedRows dsums{p.dout.data, p.dout.dtype, p.w.rows, p.dout.row_stride, nullptr, nullptr};
  if (!is_taken(p)) {
    find_dsums(p, kernels, kernel, w);
    dsums.data = w.dsums;
    dsums.dtype = gradient_dtype(p.x.dtype);
    dsums.stride = p.w.rows;
  }
  if (p.dx.data != nullptr) {
    clear_outside(p.dx, w.groups, p.w.num_experts);
    GroupedProduct product = product_of(p, kernels, w.groups);
    product.dtype = dsums.dtype;
    product.x = dsums.data;
    product.x_stride = dsums.stride;
    product.w = transposed(p.w);
    product.bias = {};
    product.out = p.dx.data;
    product.out_stride = p.dx.row_stride;
    product.out_dtype = p.dx.dtype;
    run_grouped_product(product, w.tasks);
  }
  const GroupedRows x{p.x.data, p.x.dtype, p.x.columns, p.x.row_stride, nullptr, nullptr};
  if (p.dw.data != nullptr) run_weight_gradient(kernel, w.groups, dsums, x, p.dw);
  if (p.dbias.data != nullptr) run_bias_gradient(w.groups, dsums, sum_dtype(p.x.dtype), p.dbias);
}

}  // namespace tilewise::backends::cpu
