// The backward pass: parts sorted by expert, their activations computed again, of sums that are too or were saved, and
// what remains of them kept for the weights' gradients. Sums over experts of a token are in the order of j, those over
// tokens in theirs.
#include <algorithm>
#include <cmath>

#include "backends/cpu/gemm/gradients.hpp"
#include "backends/cpu/gemm/grouped_product.hpp"
#include "backends/cpu/merge/merge_rows.hpp"
#include "backends/cpu/moe/moe_kernel.hpp"
#include "backends/cpu/moe/parts.hpp"
#include "backends/cpu/moe/saved.hpp"
#include "backends/cpu/rows.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::cpu {
namespace {

using operations::moe::MoeParams;

/// Bytes of what a chunk of parts, or of tokens, needs at a time.
constexpr std::int64_t kChunkBytes = std::int64_t{128} << 20;

struct Sizes {
  std::int64_t parts, experts, hidden, intermediate, arguments;
  DType real, gradient;
  std::int64_t chunk_parts, chunk_tokens;
  bool converts_dout;

  explicit Sizes(const MoeParams& p)
      : parts(p.x.rows * p.topk_ids.columns),
        experts(p.gate_up.num_experts),
        hidden(p.x.columns),
        intermediate(p.down.columns),
        arguments(p.gate_up.rows),
        real(sum_dtype(p.x.dtype)),
        gradient(gradient_dtype(p.x.dtype)),
        converts_dout(p.dout.dtype != p.x.dtype && p.dout.dtype != gradient) {
    const auto size = static_cast<std::int64_t>(size_of(real));
    const auto fitting = [&](std::int64_t row, std::int64_t all) {
      return std::min(std::max<std::int64_t>(kChunkBytes / std::max<std::int64_t>(row * size, 1), 1), all);
    };
    chunk_parts = fitting(arguments + intermediate, parts);
    chunk_tokens = fitting(hidden * std::max<std::int64_t>(p.topk_ids.columns, 1), p.x.rows);
  }
};

struct BackwardWorkspace {
  Parts all, chunk;      ///< of all tokens, and of a chunk of them
  std::int64_t* groups;  ///< of a chunk of parts
  std::int64_t* sorted;  ///< of a chunk of tokens: parts' places among all of them
  void* dout;            ///< of another dtype
  void *dproducts, *h;   ///< of all parts, in gradient_dtype()
  void* weights;         ///< gradients of all parts' weights
  void *arguments, *dh;  ///< of a chunk of parts
  void* dx;              ///< of a chunk of tokens
  void* tasks;
  std::size_t bytes = 0;

  BackwardWorkspace(const MoeParams& p, void* base) {
    const Sizes s(p);
    Carver carver(base);
    all = Parts(carver, s.parts, s.experts, s.real);
    chunk = Parts(carver, s.chunk_tokens * p.topk_ids.columns, s.experts, s.real);
    groups = carver.integers(s.experts + 1);
    sorted = carver.integers(s.chunk_tokens * p.topk_ids.columns);
    dout = carver.take(s.converts_dout ? p.x.rows * s.hidden : 0, size_of(s.gradient));
    dproducts = carver.take(s.parts * s.arguments, size_of(s.gradient));
    h = carver.take(s.parts * s.intermediate, size_of(s.gradient));
    weights = carver.take(s.parts, size_of(s.real));
    arguments = carver.take(s.chunk_parts * s.arguments, size_of(s.real));
    dh = carver.take(s.chunk_parts * s.intermediate, size_of(s.real));
    dx = carver.take(s.chunk_tokens * p.topk_ids.columns * s.hidden, size_of(s.real));
    tasks = carver.take(static_cast<std::int64_t>(grouped_product_workspace(s.experts)), 1);
    bytes = carver.used();
  }
};

class Backward {
 public:
  Backward(const MoeParams& p, const GemmKernels& kernels, void* workspace)
      : p_(p),
        kernels_(kernels),
        kernel_(*gemm_kernel(kernels, p.x.dtype, p.gate_up.dtype)),
        s_(p),
        w_(p, workspace),
        dout_{p.dout.data, p.dout.dtype, s_.hidden, p.dout.row_stride, w_.all.token, nullptr} {
    if (!s_.converts_dout) return;
    ActivationTask t{};
    t.rows = p.x.rows;
    t.results = s_.hidden;
    t.dresult = p.dout.data;
    t.dresult_element = gemm_element(p.dout.dtype);
    t.dresult_stride = p.dout.row_stride;
    t.dargument = w_.dout;
    t.dargument_stride = s_.hidden;
    t.element = gemm_element(s_.gradient);
    run_activation_gradient(kernel_, t);
    dout_.data = w_.dout;
    dout_.dtype = s_.gradient;
    dout_.stride = s_.hidden;
  }

  void run() {
    sort_parts(p_, 0, p_.x.rows, w_.all);
    const std::int64_t parts = w_.all.groups[s_.experts];
    for (std::int64_t first = 0; first < parts; first += s_.chunk_parts)
      find_dproducts(first, std::min(s_.chunk_parts, parts - first));
    if (p_.dx.data != nullptr || (p_.dtopk_weights.data != nullptr && p_.weight_on_input && !is_saved(p_))) find_dx();
    if (p_.dtopk_weights.data != nullptr) store_weights();
    find_weight_gradients();
  }

 private:
  /// Arguments of the activation, h and the gradients of the former, of parts in the order of experts.
  void find_dproducts(std::int64_t first, std::int64_t count) {
    for (std::int64_t e = 0; e <= s_.experts; ++e)
      w_.groups[e] = std::clamp(w_.all.groups[e], first, first + count) - first;
    if (is_saved(p_))
      load_arguments(p_, w_.all, first, count, w_.arguments);
    else
      find_arguments(first);

    GroupedProduct product = product_of_parts(first);
    product.dtype = dout_.dtype;
    product.x = dout_.data;
    product.x_stride = dout_.stride;
    product.w = transposed(p_.down);
    product.out = w_.dh;
    product.out_stride = s_.intermediate;
    run_grouped_product(product, w_.tasks);

    ActivationTask t{};
    t.activation = p_.activation;
    t.layout = p_.gate_layout;
    t.rows = count;
    t.results = s_.intermediate;
    t.arguments = w_.arguments;
    t.argument_stride = t.dargument_stride = s_.arguments;
    t.dresult = w_.dh;
    t.dresult_element = gemm_element(s_.real);
    t.dresult_stride = t.result_stride = s_.intermediate;
    t.factor = p_.weight_on_input ? nullptr : factor(first);
    t.dargument = advance(w_.dproducts, first * s_.arguments, size_of(s_.gradient));
    t.result = advance(w_.h, first * s_.intermediate, size_of(s_.gradient));
    t.element = gemm_element(s_.gradient);
    t.products = advance(w_.weights, first, size_of(s_.real));
    run_activation_gradient(kernel_, t);
    if (is_saved(p_) && p_.weight_on_input && p_.dtopk_weights.data != nullptr)
      multiply_saved(p_, first, count, t.dargument, s_.gradient, t.products);
  }

  void find_arguments(std::int64_t first) {
    GroupedProduct product = product_of_parts(first);
    product.dtype = p_.x.dtype;
    product.x = p_.x.data;
    product.x_stride = p_.x.row_stride;
    product.w = p_.gate_up;
    product.bias = p_.gate_up_bias;
    product.factor = p_.weight_on_input ? factor(first) : nullptr;
    product.factor_on_product = true;
    product.out = w_.arguments;
    product.out_stride = s_.arguments;
    run_grouped_product(product, w_.tasks);
  }
  /// Of rows of tokens.
  [[nodiscard]] GroupedProduct product_of_parts(std::int64_t first) const {
    GroupedProduct product{};
    product.kernels = &kernels_;
    product.groups = w_.groups;
    product.row_index = w_.all.token + first;
    product.out_dtype = s_.real;
    product.batch_invariant = p_.batch_invariant;
    return product;
  }

  [[nodiscard]] const void* factor(std::int64_t first) const { return advance(w_.all.factor, first, size_of(s_.real)); }

  void find_dx() {
    const std::int64_t top_k = p_.topk_ids.columns;
    for (std::int64_t first = 0; first < p_.x.rows; first += s_.chunk_tokens) {
      const std::int64_t count = std::min(s_.chunk_tokens, p_.x.rows - first);
      sort_parts(p_, first, count, w_.chunk);
      for (std::int64_t i = 0; i < count * top_k; ++i) {
        if (w_.chunk.place[i] != kNowhere) w_.sorted[w_.chunk.place[i]] = w_.all.place[first * top_k + i];
      }
      GroupedProduct product{};
      product.kernels = &kernels_;
      product.groups = w_.chunk.groups;
      product.row_index = w_.sorted;
      product.dtype = s_.gradient;
      product.x = w_.dproducts;
      product.x_stride = s_.arguments;
      product.w = transposed(p_.gate_up);
      product.out = w_.dx;
      product.out_stride = s_.hidden;
      product.out_dtype = s_.real;
      product.batch_invariant = p_.batch_invariant;
      run_grouped_product(product, w_.tasks);
      if (s_.real == DType::f64)
        combine<double>(first, count);
      else
        combine<float>(first, count);
    }
  }

  /// dx of tokens; where weights stand on the input, their gradients are products of its rows.
  template <typename Real>
  void combine(std::int64_t first, std::int64_t count) {
    const std::int64_t top_k = p_.topk_ids.columns;
    const int workers = workers_for(4.0 * static_cast<double>(count * top_k * s_.hidden));
    core::parallel_for(count, workers, [&](std::int64_t t, int) {
      auto* sum = static_cast<Real*>(thread_scratch(static_cast<std::size_t>(s_.hidden) * sizeof(Real)));
      std::fill_n(sum, s_.hidden, Real{0});
      for (std::int64_t j = 0; j < top_k; ++j) {
        const std::int64_t part = w_.chunk.place[t * top_k + j];
        if (part == kNowhere) continue;
        const Real* row = static_cast<const Real*>(w_.dx) + part * s_.hidden;
        const std::int64_t place = w_.sorted[part];
        const Real weight = p_.weight_on_input ? static_cast<const Real*>(w_.all.factor)[place] : Real{1};
        add_weighted(sum, row, s_.real, s_.hidden, weight);
        if (p_.weight_on_input && !is_saved(p_))
          static_cast<Real*>(w_.weights)[place] =
              dot(row, advance(p_.x.data, (first + t) * p_.x.row_stride, size_of(p_.x.dtype)), p_.x.dtype, s_.hidden);
      }
      if (p_.dx.data != nullptr)
        store_weighted(advance(p_.dx.data, (first + t) * p_.dx.row_stride, size_of(p_.dx.dtype)), p_.dx.dtype, sum,
                       s_.hidden, Real{1});
    });
  }

  void store_weights() {
    const std::int64_t top_k = p_.topk_ids.columns;
    core::parallel_for(
        p_.x.rows, workers_for(2.0 * static_cast<double>(s_.parts * s_.hidden)), [&](std::int64_t t, int) {
          for (std::int64_t j = 0; j < top_k; ++j) {
            const std::int64_t place = w_.all.place[t * top_k + j];
            operations::store_element(p_.dtopk_weights.dtype, p_.dtopk_weights.data,
                                      t * p_.dtopk_weights.row_stride + j * p_.dtopk_weights.column_stride,
                                      place == kNowhere ? 0 : weight_gradient(t, place));
          }
        });
  }

  /// h times dh so far: of what the bias adds to a part that the weight multiplies, dout times it is missing.
  [[nodiscard]] double weight_gradient(std::int64_t token, std::int64_t place) const {
    double sum = operations::load_element(s_.real, w_.weights, place);
    const operations::ExpertVectors& bias = p_.down_bias;
    if (bias.data == nullptr || p_.weight_on_input) return sum;
    const std::int64_t expert = expert_of_part(w_.all, s_.experts, place);
    for (std::int64_t n = 0; n < s_.hidden; ++n)
      sum +=
          operations::load_element(bias.dtype, bias.data, expert * bias.expert_stride + n * bias.stride) *
          operations::load_element(p_.dout.dtype, p_.dout.data, token * p_.dout.row_stride + n * p_.dout.column_stride);
    return sum;
  }

  void find_weight_gradients() {
    const std::int64_t* groups = w_.all.groups;
    const GroupedRows dproducts{w_.dproducts, s_.gradient, s_.arguments, s_.arguments, nullptr, nullptr};
    const GroupedRows h{w_.h, s_.gradient, s_.intermediate, s_.intermediate, nullptr, nullptr};
    const GroupedRows x{p_.x.data, p_.x.dtype, s_.hidden, p_.x.row_stride, w_.all.token, nullptr};
    const auto weighted = [&](GroupedRows rows, bool is) {
      rows.factor = is ? w_.all.factor : nullptr;
      return rows;
    };
    const GroupedRows dout = weighted(dout_, !p_.weight_on_input);
    if (p_.dgate_up.data != nullptr)
      run_weight_gradient(kernel_, groups, weighted(dproducts, p_.weight_on_input), x, p_.dgate_up);
    if (p_.ddown.data != nullptr) run_weight_gradient(kernel_, groups, dout, h, p_.ddown);
    if (p_.dgate_up_bias.data != nullptr) run_bias_gradient(groups, dproducts, s_.real, p_.dgate_up_bias);
    if (p_.ddown_bias.data != nullptr) run_bias_gradient(groups, dout, s_.real, p_.ddown_bias);
  }

  const MoeParams& p_;
  const GemmKernels& kernels_;
  const GemmKernel& kernel_;
  Sizes s_;
  BackwardWorkspace w_;
  GroupedRows dout_;
};

void check_backward(const MoeParams& p, const GemmKernels& kernels) {
  check_rows("x", p.x);
  if (is_quantized(p.x.dtype))
    core::invalid_type("x: dtype must be one that is not quantised (got ", to_string(p.x.dtype), ")");
  check_weights("gate_up", p.gate_up, p.x.dtype);
  check_weights("down", p.down, p.x.dtype);
  if (is_quantized(p.gate_up.dtype) && p.dgate_up.data != nullptr)
    core::invalid_argument("dgate_up: quantised weights have no gradient (got gate_up in ", to_string(p.gate_up.dtype),
                           ")");
  if (is_quantized(p.down.dtype) && p.ddown.data != nullptr)
    core::invalid_argument("ddown: quantised weights have no gradient (got down in ", to_string(p.down.dtype), ")");
  check_results("dout", p.dout, p.x.dtype);
  if (p.dx.data != nullptr) check_results("dx", p.dx, p.x.dtype);
  if (p.dgate_up.data != nullptr) check_weight_gradient("dgate_up", p.dgate_up, p.x.dtype);
  if (p.ddown.data != nullptr) check_weight_gradient("ddown", p.ddown, p.x.dtype);
  if (p.h_format.defined() || p.norm_weight.data != nullptr)
    core::invalid_argument("h_format: gradients are of layers without one, and without a norm (got ",
                           to_string(p.h_format), p.norm_weight.data != nullptr ? " and a norm)" : ")");
  check_kernel(kernels, p.x.dtype, p.gate_up.dtype);
  check_kernel(kernels, p.x.dtype, p.down.dtype);
}

}  // namespace

std::size_t moe_backward_workspace_size(const MoeParams& p) { return BackwardWorkspace(p, nullptr).bytes; }

void run_moe_backward(const MoeParams& p, const GemmKernels& kernels, void* workspace) {
  check_backward(p, kernels);
  Backward(p, kernels, workspace).run();
}

}  // namespace tilewise::backends::cpu
