// A call whose tensors are contiguous, on stand-ins: what launch.json tells of strides and pointers.
#include "backends/portable/attention/lowering.hpp"
#include "core/message.hpp"
#include "operations/attention/block_mask.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/schema.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/attention/tensors.hpp"
#include "operations/derived/shapes.hpp"

namespace tilewise::backends::portable {
namespace {

TensorView contiguous(const TableShape& table) {
  core::Shape shape;
  shape.rank = table.rank;
  for (std::size_t d = 0; d < static_cast<std::size_t>(table.rank); ++d) shape.dims[d] = {"", table.shape[d]};
  return operations::schema::contiguous(shape, table.dtype);
}

}  // namespace

gpu::DescribedCall contiguous_call(const Problem& problem) {
  namespace attention = operations::attention;
  return attention::kSchema.with_arguments(problem, [&]<typename Arguments> {
    const auto make = [&](std::size_t place, std::size_t) {
      return operations::schema::compact<attention::kSchema>(place, problem);
    };
    auto arguments = operations::schema::arguments_of<attention::kSchema, Arguments>(problem, make);
    for (std::size_t i = 0; i < problem.tables.size(); ++i) {
      const TensorView table = contiguous(problem.tables[i]);
      arguments.options.tables.push_back(table);
      arguments.options.dtables.push_back(attention::wants_table_gradient(problem, i) ? table : TensorView());
    }
    if (operations::has_block_mask(problem)) {
      const operations::BlockedScores scores = attention::blocked_scores(problem);
      for (std::size_t i = 0; i < operations::block_mask_tensors(problem.block_mask); ++i)
        arguments.options.block_mask.push_back(contiguous(operations::block_mask_shape(scores, i)));
    }
    return gpu::describe_call(
        std::move(arguments), [](Arguments& a, const auto& visit) { attention::change_each_tensor(a, visit); },
        [](const Arguments& a, const auto& visit) {
          attention::for_each_tensor(attention::call_of(a),
                                     [&visit](const core::ArgumentName& name, const TensorView& view,
                                              core::Access access) { visit(core::concat(name), view, access); });
        },
        [&problem](const Arguments& a) { return attention::make_params(attention::call_of(a), problem); });
  });
}

}  // namespace tilewise::backends::portable
