// attention's torch operators with functions of scores: overloads for calls without other options.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "operations/attention/block_mask.hpp"
#include "operations/attention/score_functions.hpp"
#include "torch_attention.hpp"
#include "torch_kernel.hpp"
#include "torch_shim.hpp"
#include "torch_stack.hpp"

namespace tilewise::python {
namespace {

namespace shim = torch_shim;

/// Texts, "" where there is none; the tensors that they look up, and after so many those of a block mask. Without
/// defaults: these are all passed.
constexpr const char* kFunctionsSchema =
    "int form, float? softmax_scale, str score_mod, str mask_mod, Tensor[] tensors, int num_tables, int block_rows, "
    "int block_keys";

/// What torch's stack holds of kFunctionsSchema after plain_options(), owned until the kernel returns.
class FunctionsOnStack {
 public:
  explicit FunctionsOnStack(shim::StackReader& stack)
      : score_mod_(stack.string()),
        mask_mod_(stack.string()),
        tensors_(stack.tensors()),
        num_tables_(stack.integer()),
        block_rows_(stack.integer()),
        block_keys_(stack.integer()) {}

  void set(AttentionOptions& options) const {
    options.score_mod = score_mod_.view();
    options.mask_mod = mask_mod_.view();
    const auto num_tables = static_cast<std::size_t>(num_tables_);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (i < num_tables)
        options.tables.push_back(tensors_[i].view(operations::table_name(i)));
      else
        options.block_mask.push_back(tensors_[i].view(operations::block_mask_name(i - num_tables)));
    }
    options.block_rows = block_rows_;
    options.block_keys = block_keys_;
  }

 private:
  shim::String score_mod_, mask_mod_;
  std::vector<shim::Tensor> tensors_;
  std::int64_t num_tables_, block_rows_, block_keys_;
};

template <bool with_lse>
void forward_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const shim::Tensor q = reader.tensor(), k = reader.tensor(), v = reader.tensor();
  shim::Tensor out, lse;
  run_kernel([&] {
    AttentionOptions options = plain_options(reader);
    const FunctionsOnStack functions(reader);
    functions.set(options);
    run_forward({q.view("q"), k.view("k"), v.view("v"), {}, {}, std::move(options)}, {}, &out,
                with_lse ? &lse : nullptr);
  });
  stack[0] = shim::returned(out);
  if (with_lse) stack[1] = shim::returned(lse);
}

/// `needed`: 1 for dq, 2 for dk, 4 for dv and 8 << i for the gradient of table i, added up.
void functions_backward_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const BackwardTensors tensors = BackwardTensors::read(reader);
  const std::int64_t needed = reader.integer();
  const bool deterministic = reader.boolean();
  Gradients gradients;
  std::vector<shim::Tensor> of_tables;
  run_kernel([&] {
    AttentionOptions options = plain_options(reader);
    const FunctionsOnStack functions(reader);
    functions.set(options);
    options.deterministic = deterministic;
    BackwardArguments arguments = tensors.arguments(std::move(options));
    std::vector<TensorView>& tables = arguments.options.tables;
    const std::int64_t of_rows = (1 << kPlainGradients) - 1;
    if (needed > of_rows) arguments.options.dtables.resize(tables.size());
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const bool wanted = (needed >> (kPlainGradients + i) & 1) != 0;
      TensorView nowhere;
      TensorView* const place = wanted ? &arguments.options.dtables[i] : &nowhere;
      // Contiguous: a table has no rows in an order of their own.
      of_tables.push_back(
          gradient(arguments.q, tables[i], Layout::bshd, wanted, operations::attention::dtable_name(i), place));
    }
    gradients = run_backward(std::move(arguments), {(needed & 1) != 0, (needed & 2) != 0, (needed & 4) != 0},
                             kPlainGradients, {});
  });
  give(gradients, kPlainGradients, stack);
  stack[kPlainGradients] = shim::returned(of_tables);
}

}  // namespace

std::vector<TorchOperator> function_operators() {
  const auto schema = [](const char* name, const char* tensors, const char* needed, const char* returns) {
    return core::concat(name, '(', tensors, needed, ", ", kFunctionsSchema, ") -> ", returns);
  };
  const auto forward = [&schema](const char* name, const char* returns, shim::BoxedKernel kernel) {
    return TorchOperator{name, schema(name, kForwardTensors, "", returns), kernel};
  };
  constexpr const char* kBackward = "attention_backward.functions";
  return {
      forward("attention_forward.functions", "Tensor", forward_kernel<false>),
      forward("attention_forward.functions_lse", "(Tensor out, Tensor softmax_lse)", forward_kernel<true>),
      {kBackward,
       schema(kBackward, kBackwardTensors, ", int needed, bool deterministic", "(Tensor, Tensor, Tensor, Tensor[])"),
       functions_backward_kernel}};
}

}  // namespace tilewise::python
