// From tensors to a problem and to what kernels take.
#include "operations/quantize/call.hpp"

#include "core/message.hpp"
#include "operations/derived/describe.hpp"
#include "operations/quantize/rules.hpp"

namespace tilewise::operations::quantize {

QuantizeProblem describe(const Call& call) {
  validate_format(call.stated());
  const DType stated = call.stated().dtype, given = call.one("out").dtype;
  if (call.one("out").defined() && stated != DType::none && given != stated)
    core::invalid_type("out: dtype must be dtype, ", to_string(stated), " (got ", to_string(given), ")");
  return canonical(schema::Describer(call).describe());
}

QuantizeParams make_params(const Call& call, const QuantizeProblem& p) {
  return {call.one(p.pass == QuantizePass::quantize ? schema::Role<kSchema>("x") : schema::Role<kSchema>("out")),
          {call.one("elements"), call.one("scales"), call.one("global_scale")},
          p.format,
          p.power_of_two};
}

}  // namespace tilewise::operations::quantize
