// Which look-ups of score_mod have gradients.
#include <algorithm>
#include <string>

#include "core/message.hpp"
#include "core/tensor_checks.hpp"
#include "operations/attention/score_functions.hpp"

namespace tilewise::operations::attention {

std::vector<expression::LookUpDerivative> wanted_look_ups(const AttentionProblem& p) {
  const auto score_mod = score_function(p, ScoreFunction::score_mod);
  if (!score_mod || p.dtables == 0) return {};
  std::vector<expression::LookUpDerivative> look_ups = look_up_derivatives(*score_mod, "score_mod");
  std::erase_if(look_ups, [&p](const auto& look_up) { return !wants_table_gradient(p, look_up.table); });
  return look_ups;
}

std::int64_t described_table_gradients(const AttentionOptions& o, Device device) {
  std::int64_t wanted = 0;
  for (std::size_t i = 0; i < o.dtables.size(); ++i) {
    const TensorView& gradient = o.dtables[i];
    if (!gradient.defined()) continue;
    const std::string_view name = dtable_name(i);
    if (i >= o.tables.size()) {
      core::invalid_argument(name, ": requires ", table_name(i), " (got ", o.tables.size(), " tables)");
    }
    const TensorView& table = o.tables[i];
    core::Shape shape;
    shape.rank = table.rank;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(table.rank); ++axis)
      shape.dims[axis] = {"as its table", table.shape[axis]};
    core::check_view(gradient, name, device, "q");
    core::check_dtype(gradient, name, table.dtype);
    core::check_shape(gradient, name, shape);
    core::check_writable(gradient, name);
    wanted |= std::int64_t{1} << i;
  }
  return wanted;
}

void validate_table_gradients(const AttentionProblem& p) {
  const std::size_t count = p.tables.size();
  if (p.dtables < 0 || p.dtables >> std::min(count, kMostTables) != 0) {
    core::invalid_argument("dtables: must be bits of ", count, " tables (got ", p.dtables, ")");
  }
  if (p.score_mod.empty()) core::invalid_argument("dtables: requires score_mod (got none)");
  for (std::size_t i = 0; i < count; ++i) {
    if (wants_table_gradient(p, i) && !has_table_gradient(p.tables[i].dtype)) {
      core::invalid_type(dtable_name(i), ": dtype of ", table_name(i), " must be f32, bf16, f16 or f64 (got ",
                         to_string(p.tables[i].dtype), ")");
    }
  }
  for (const expression::LookUpDerivative& look_up : wanted_look_ups(p)) {
    if (std::ranges::any_of(look_up.indices, [](const auto& index) { return index.speaks_of("score"); })) {
      core::invalid_argument(dtable_name(look_up.table), ": ", table_name(look_up.table),
                             " must not be looked up by what depends on score");
    }
  }
}

}  // namespace tilewise::operations::attention
