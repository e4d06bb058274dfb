// Tokens are sorted by expert, pass both products, and are summed up in the order of their experts.
#include "backends/cpu/moe/moe_kernel.hpp"

#include <algorithm>
#include <cstring>

#include "backends/cpu/gemm/grouped_product.hpp"
#include "backends/cpu/merge/merge_rows.hpp"
#include "backends/cpu/rows.hpp"
#include "core/ceil_div.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::moe::MoeParams;

constexpr std::int64_t kNowhere = -1;

/// Tokens that share the workspace at a time: equal parts of the call.
std::int64_t chunk_of(const MoeParams& p) {
  constexpr std::int64_t kMostBytes = std::int64_t{256} << 20;
  const ElementIndex element = element_of(p.x.dtype);
  const std::int64_t part_bytes = p.down.columns * static_cast<std::int64_t>(element_size(element)) +
                                  (p.down.rows + 1) * static_cast<std::int64_t>(real_size(element)) + 16;
  const std::int64_t most =
      std::max<std::int64_t>(kMostBytes / (part_bytes * std::max<std::int64_t>(p.topk_ids.columns, 1)), 1);
  return core::ceil_div(p.x.rows, std::max<std::int64_t>(core::ceil_div(p.x.rows, most), 1));
}

/// The workspace's parts. A part is one token at one expert; parts are sorted by expert.
struct Workspace {
  std::int64_t *groups,  ///< [num_experts + 1] first parts
      *token, *place;    ///< of each part its token; of each (token, j) its part
  void *factor, *h, *y;  ///< Reals, elements of x, Reals
  void* tasks;
  std::size_t bytes = 0;

  Workspace(const MoeParams& p, void* base) : base_(static_cast<std::byte*>(base)) {
    const ElementIndex element = element_of(p.x.dtype);
    const std::int64_t parts = chunk_of(p) * p.topk_ids.columns, experts = p.gate_up.num_experts;
    groups = static_cast<std::int64_t*>(take(experts + 1, sizeof(std::int64_t)));
    token = static_cast<std::int64_t*>(take(parts, sizeof(std::int64_t)));
    place = static_cast<std::int64_t*>(take(parts, sizeof(std::int64_t)));
    factor = take(parts, real_size(element));
    h = take(parts * p.down.columns, element_size(element));
    y = take(parts * p.down.rows, real_size(element));
    tasks = take(static_cast<std::int64_t>(grouped_product_workspace(experts)), 1);
  }

 private:
  void* take(std::int64_t count, std::size_t size) {
    void* taken = base_ == nullptr ? nullptr : base_ + bytes;
    bytes += (static_cast<std::size_t>(count) * size + 63) / 64 * 64;
    return taken;
  }
  std::byte* base_;
};

/// Tokens [first, first + count) by expert, in their order and that of j.
void sort(const MoeParams& p, std::int64_t first, std::int64_t count, const Workspace& w) {
  const std::int64_t experts = p.gate_up.num_experts, top_k = p.topk_ids.columns;
  const DType real = real_of(element_of(p.x.dtype));
  const auto expert_of = [&](std::int64_t i) {
    const std::int64_t at = (first + i / top_k) * p.topk_ids.row_stride + i % top_k * p.topk_ids.column_stride;
    const std::int64_t id = operations::load_integer(p.topk_ids.dtype, p.topk_ids.data, at);
    return id >= p.first_expert && id - p.first_expert < experts ? id - p.first_expert : kNowhere;
  };
  std::fill_n(w.groups, experts + 1, std::int64_t{0});
  for (std::int64_t i = 0; i < count * top_k; ++i) {
    if (const std::int64_t expert = w.place[i] = expert_of(i); expert != kNowhere) ++w.groups[expert + 1];
  }
  for (std::int64_t e = 0; e < experts; ++e) w.groups[e + 1] += w.groups[e];
  // Each group's first part counts up to the next one's while parts are placed, and is set back afterwards.
  for (std::int64_t i = 0; i < count * top_k; ++i) {
    if (w.place[i] == kNowhere) continue;
    const std::int64_t part = w.groups[w.place[i]]++, t = first + i / top_k;
    w.place[i] = part;
    w.token[part] = t;
    const std::int64_t at = t * p.topk_weights.row_stride + i % top_k * p.topk_weights.column_stride;
    operations::store_element(real, w.factor, part,
                              operations::load_element(p.topk_weights.dtype, p.topk_weights.data, at));
  }
  std::copy_backward(w.groups, w.groups + experts, w.groups + experts + 1);
  w.groups[0] = 0;
}

void multiply(const MoeParams& p, const GemmKernels& kernels, const Workspace& w) {
  GroupedProduct product{};
  product.kernels = &kernels;
  product.dtype = p.x.dtype;
  product.x = p.x.data;
  product.x_stride = p.x.row_stride;
  product.row_index = w.token;
  product.groups = w.groups;
  product.w = p.gate_up;
  product.bias = p.gate_up_bias;
  product.layout = p.gate_layout;
  product.activation = p.activation;
  product.factor = p.weight_on_input ? w.factor : nullptr;
  product.factor_on_product = p.weight_on_input;
  product.out = w.h;
  product.out_stride = p.down.columns;
  product.out_dtype = p.x.dtype;
  product.batch_invariant = p.batch_invariant;
  run_grouped_product(product, w.tasks);

  product.x = w.h;
  product.x_stride = p.down.columns;
  product.row_index = nullptr;
  product.w = p.down;
  product.bias = p.down_bias;
  product.layout = device::GateLayout::none;
  product.activation = {};
  product.factor = p.weight_on_input ? nullptr : w.factor;
  product.factor_on_product = false;
  product.out = w.y;
  product.out_stride = p.down.rows;
  product.out_dtype = real_of(element_of(p.x.dtype));
  run_grouped_product(product, w.tasks);
}

template <typename Real>
void combine(const MoeParams& p, std::int64_t first, std::int64_t count, const Workspace& w) {
  const std::int64_t top_k = p.topk_ids.columns, columns = p.down.rows;
  const DType real = real_of(element_of(p.x.dtype));
  const int workers = workers_for(4.0 * static_cast<double>(count * top_k * columns));
  core::parallel_for(count, workers, [&](std::int64_t t, int) {
    auto* sum = static_cast<Real*>(thread_scratch(static_cast<std::size_t>(columns) * sizeof(Real)));
    std::fill_n(sum, columns, Real{0});
    for (std::int64_t j = 0; j < top_k; ++j) {
      const std::int64_t part = w.place[t * top_k + j];
      if (part != kNowhere) add_weighted(sum, static_cast<const Real*>(w.y) + part * columns, real, columns, Real{1});
    }
    store_weighted(advance(p.out.data, (first + t) * p.out.row_stride, size_of(p.out.dtype)), p.out.dtype, sum, columns,
                   Real{1});
  });
}

}  // namespace

std::size_t moe_workspace_size(const MoeParams& p) { return Workspace(p, nullptr).bytes; }

void run_moe(const MoeParams& p, const GemmKernels& kernels, void* workspace) {
  check_rows("x", p.x, p.x.dtype);
  check_results("out", p.out, p.x.dtype);
  check_weights("gate_up", p.gate_up, p.x.dtype);
  check_weights("down", p.down, p.x.dtype);
  const Workspace w(p, workspace);
  const std::int64_t chunk = chunk_of(p);
  for (std::int64_t first = 0; first < p.x.rows; first += chunk) {
    const std::int64_t count = std::min(chunk, p.x.rows - first);
    sort(p, first, count, w);
    multiply(p, kernels, w);
    if (p.x.dtype == DType::f64)
      combine<double>(p, first, count, w);
    else
      combine<float>(p, first, count, w);
  }
}

}  // namespace tilewise::backends::cpu
