// All tensors of an attention call: those of the schema, and the tables of functions of scores with their gradients,
// and those of a block mask.
#pragma once

#include <cstddef>

#include "core/tensor_checks.hpp"
#include "operations/attention/block_mask.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/derived/call.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::operations::attention {

/// Calls visit(name, view, access) for every tensor, given or not.
template <typename Visit>
void for_each_tensor(const Call& call, const Visit& visit) {
  schema::for_each_tensor(call, visit);
  for (std::size_t i = 0; i < call.options.tables.size(); ++i)
    visit(core::ArgumentName(table_name(i)), call.options.tables[i], core::Access::read);
  for (std::size_t i = 0; i < call.options.dtables.size(); ++i)
    visit(core::ArgumentName(dtable_name(i)), call.options.dtables[i], core::Access::write);
  for (std::size_t i = 0; i < call.options.block_mask.size(); ++i)
    visit(core::ArgumentName(block_mask_name(i)), call.options.block_mask[i], core::Access::read);
}

/// Of arguments that may be changed: calls visit(view).
template <typename Arguments, typename Visit>
void change_each_tensor(Arguments& arguments, const Visit& visit) {
  schema::change_each_tensor<kSchema>(arguments, visit);
  for (TensorView& table : arguments.options.tables) visit(table);
  for (TensorView& gradient : arguments.options.dtables) visit(gradient);
  for (TensorView& lists : arguments.options.block_mask) visit(lists);
}

}  // namespace tilewise::operations::attention
