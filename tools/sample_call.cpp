// Draws the tensors of a sample call and counts its work.
#include "sample_call.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "device/common/mask.h"
#include "expression/expression.hpp"
#include "listed_blocks.hpp"
#include "operations/attention/block_mask.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/schema.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/attention/tensors.hpp"
#include "operations/derived/shapes.hpp"

namespace tilewise::tools {

namespace attention = operations::attention;
namespace schema = operations::schema;

TensorView SampleCall::add_lengths(std::int32_t length, std::string_view name) {
  const TensorView view = tensors_.add(DType::i32, {problem_.batch_size}, name);
  std::fill_n(static_cast<std::int32_t*>(view.data), problem_.batch_size, length);
  return view;
}

TensorView SampleCall::add_starts(std::int32_t length, std::string_view name) {
  const TensorView view = tensors_.add(DType::i32, {problem_.batch_size + 1}, name);
  auto* values = static_cast<std::int32_t*>(view.data);
  for (std::int64_t b = 0; b <= problem_.batch_size; ++b) values[b] = static_cast<std::int32_t>(b * length);
  return view;
}

/// Spread over the keys, each query's starting elsewhere.
TensorView SampleCall::add_indices(const std::vector<std::int64_t>& sizes) {
  const TensorView view = tensors_.add(DType::i32, sizes, "key_indices");
  auto* values = static_cast<std::int32_t*>(view.data);
  const std::int64_t keys = std::max<std::int64_t>(length_of("seqused_k"), 1), count = problem_.top_k;
  for (std::int64_t i = 0; i < view.numel(); ++i)
    values[i] = static_cast<std::int32_t>((i % count * std::max<std::int64_t>(keys / count, 1) + i / count) % keys);
  return view;
}

std::int32_t SampleCall::length_of(std::string_view name) const {
  const Problem& p = problem_;
  if (name == "leftpad_k") return 0;
  const bool queries = name.ends_with("_q");
  const std::int64_t longest = queries ? p.seqlen_q : p.seqlen_k, total = queries ? p.total_q : p.total_k;
  if (p.layout != Layout::thd) return static_cast<std::int32_t>(longest);
  return static_cast<std::int32_t>(std::min(longest, total / std::max<std::int64_t>(p.batch_size, 1)));
}

TensorView SampleCall::add(std::size_t place) {
  const auto& tensor = schema::kTensors<attention::kSchema>[place];
  const DType dtype = schema::dtype_of<attention::kSchema>(tensor, problem_);
  const std::vector<std::int64_t> sizes = schema::sizes_of(schema::shape_of(tensor, problem_));
  if (tensor.name.starts_with("cu_seqlens")) return add_starts(length_of(tensor.name), tensor.name);
  if (tensor.name == "key_indices") return add_indices(sizes);
  if (dtype == DType::i32) return add_lengths(length_of(tensor.name), tensor.name);
  if (tensor.name.ends_with("_scale")) {
    const TensorView ones = tensors_.add(dtype, sizes, tensor.name);
    std::fill_n(static_cast<float*>(ones.data), ones.numel(), 1.0f);
    return ones;
  }
  const bool random = tensor.access == core::Access::read && dtype != DType::i64 && tensor.name != "dlse";
  return random ? tensors_.add_random(dtype, sizes, tensor.name) : tensors_.add(dtype, sizes, tensor.name);
}

std::vector<TensorView> SampleCall::add_tables() {
  std::vector<TensorView> tables;
  for (const TableShape& table : problem_.tables) {
    const std::span shape(table.shape.data(), static_cast<std::size_t>(table.rank));
    const std::string_view name = attention::table_name(tables.size());
    // Of ints zeros, which are indices of any table and documents alike.
    const bool whole = expression::table_type(table.dtype, name) == expression::Type::integer;
    tables.push_back(whole ? tensors_.add(table.dtype, shape, name) : tensors_.add_random(table.dtype, shape, name));
  }
  return tables;
}

void SampleCall::add_block_mask() {
  const operations::BlockedScores scores = attention::blocked_scores(problem_);
  forward_.options.block_rows = problem_.block_mask.rows;
  forward_.options.block_keys = problem_.block_mask.keys;
  for (std::size_t i = 0; i < operations::block_mask_tensors(problem_.block_mask); ++i) {
    const TableShape shape = operations::block_mask_shape(scores, i);
    const auto sizes = std::span(shape.shape).first(static_cast<std::size_t>(shape.rank));
    forward_.options.block_mask.push_back(tensors_.add(shape.dtype, sizes, operations::block_mask_name(i)));
  }
  list_every_block(forward_.options.block_mask);
}

SampleCall::SampleCall(const Problem& problem) : problem_(problem) {
  const Problem& p = problem_;
  constexpr auto kForward = static_cast<std::size_t>(Operation::attention_forward);
  const auto make = [this](std::size_t place, std::size_t) { return add(place); };
  forward_ = schema::arguments_of<attention::kSchema, ForwardArguments>(p, make);
  forward_.options.tables = add_tables();
  if (operations::has_block_mask(p)) add_block_mask();
  if (p.operation == Operation::attention_forward) {
    problem_ = describe(forward_);
    return;
  }
  if (p.device == DeviceType::cpu) attention_forward(forward_);
  backward_ = schema::arguments_of<attention::kSchema, BackwardArguments>(p, [&](std::size_t place, std::size_t) {
    return schema::kRoles<attention::kSchema>[kForward][place] ? TensorView() : add(place);
  });
  backward_.q = forward_.q;
  backward_.k = forward_.k;
  backward_.v = forward_.v;
  backward_.out = forward_.out;
  backward_.softmax_lse = forward_.softmax_lse;
  backward_.options = forward_.options;
  for (std::size_t i = 0; i < p.tables.size(); ++i) {
    const TableShape& table = p.tables[i];
    const std::span shape(table.shape.data(), static_cast<std::size_t>(table.rank));
    const bool wanted = attention::wants_table_gradient(p, i);
    backward_.options.dtables.push_back(wanted ? tensors_.add(table.dtype, shape, attention::dtable_name(i))
                                               : TensorView());
  }
  problem_ = describe(backward_);
}

void SampleCall::move_to(Device device) {
  const auto move = [&](TensorView& view) {
    if (!view.defined()) return;
    const std::span<const std::byte> host = tensors_.memory_of(view);
    const core::DeviceMemory& memory = on_device_.emplace_back(device, std::max<std::size_t>(host.size(), 1));
    memory.write(memory.data(), host);
    view.data = memory.data();
    view.device = device;
  };
  if (problem_.operation == Operation::attention_forward) {
    attention::change_each_tensor(forward_, move);
    problem_ = describe(forward_);
    return;
  }
  attention::change_each_tensor(backward_, move);
  const auto& [dout, dlse, q, k, v, out, softmax_lse, dq, dk, dv, dbias, dsink, options] = backward_;
  forward_ = {q, k, v, out, softmax_lse, options};
  attention_forward(forward_);
  problem_ = describe(backward_);
}

void SampleCall::run(const Plan& plan) const {
  if (problem_.operation == Operation::attention_forward) return tilewise::run(plan, forward_);
  tilewise::run(plan, backward_);
}

double SampleCall::flops() const {
  const Problem& p = problem_;
  const bool backward = p.operation == Operation::attention_backward;
  const device::AttentionParams params =
      attention::make_params(backward ? attention::call_of(backward_) : attention::call_of(forward_), problem_);
  double pairs = 0.0;
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const device::Sequence sequence = device::sequence_of(params, b);
    const std::int64_t d = device::diagonal_offset(params, sequence);
    for (std::int64_t i = 0; i < sequence.seqlen_q; ++i) {
      const device::KeyRange keys = device::visible_keys(params, sequence, d, i);
      pairs += static_cast<double>(keys.end - keys.begin);
    }
  }
  const auto dim = static_cast<double>(p.head_dim), dim_v = static_cast<double>(p.head_dim_v);
  const double products = backward ? 3.0 * dim + 2.0 * dim_v : dim + dim_v;
  return 2.0 * pairs * static_cast<double>(p.num_heads_q) * products;
}

}  // namespace tilewise::tools
