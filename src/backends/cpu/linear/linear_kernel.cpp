// The groups' rows by one grouped product, and zeros for all others.
#include "backends/cpu/linear/linear_kernel.hpp"

#include <cstring>

#include "backends/cpu/gemm/grouped_product.hpp"
#include "backends/cpu/rows.hpp"
#include "operations/linear/groups.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::linear::Groups, operations::linear::LinearParams;

void clear_rows(const operations::Matrix& m, std::int64_t begin, std::int64_t end) {
  const std::size_t size = size_of(m.dtype);
  for (std::int64_t row = begin; row < end; ++row)
    std::memset(advance(m.data, row * m.row_stride, size), 0, static_cast<std::size_t>(m.columns) * size);
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
  Groups ends(p);
  groups[0] = ends.end();
  for (std::int64_t expert = 0; expert < p.w.num_experts; ++expert) groups[expert + 1] = ends.next();
  clear_rows(p.out, 0, groups[0]);
  clear_rows(p.out, groups[p.w.num_experts], p.x.rows);

  GroupedProduct product{};
  product.kernels = &kernels;
  product.dtype = p.x.dtype;
  product.x = p.x.data;
  product.x_stride = p.x.row_stride;
  product.x_scales = p.x_scales;
  product.groups = groups;
  product.w = p.w;
  product.bias = p.bias;
  product.activation = p.activation;
  product.out = p.out.data;
  product.out_stride = p.out.row_stride;
  product.out_dtype = p.out.dtype;
  product.batch_invariant = p.batch_invariant;
  run_grouped_product(product, groups + p.w.num_experts + 1);
}

}  // namespace tilewise::backends::cpu
