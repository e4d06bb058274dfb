// The public functions of quantising.
#include "operations/quantize/quantize.hpp"

#include "tilewise/quantize.hpp"

namespace tilewise {

using operations::Quantize;

const core::OperationInterface& operation_of(const QuantizeProblem*) noexcept {
  static constexpr core::OperationOf<Quantize> kOperation;
  return kOperation;
}

std::size_t hash_value(const QuantizeProblem& problem) noexcept { return operation_of(&problem).hash(&problem); }
std::string to_string(const QuantizeProblem& problem) { return operation_of(&problem).text(&problem); }
void validate(const QuantizeProblem& problem) { operations::quantize::validate(problem); }

namespace {

/// Unlike Quantize::describe() this tells everything that is wrong with a call.
QuantizeProblem describe_whole(const Quantize::Call& call) {
  QuantizeProblem problem = Quantize::describe(call);
  validate(problem);
  core::check_call_apart<Quantize>(call, nullptr, 0);
  return problem;
}

}  // namespace

QuantizeProblem describe(const QuantizeArguments& arguments) { return describe_whole(Quantize::Call(arguments)); }
QuantizeProblem describe(const DequantizeArguments& arguments) { return describe_whole(Quantize::Call(arguments)); }

void run(const Plan& plan, const QuantizeArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Quantize>(plan, Quantize::Call(arguments), workspace, stream);
}
void run(const Plan& plan, const DequantizeArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Quantize>(plan, Quantize::Call(arguments), workspace, stream);
}

void quantize(const QuantizeArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Quantize>(Quantize::Call(arguments), select, stream, nullptr);
}
void dequantize(const DequantizeArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Quantize>(Quantize::Call(arguments), select, stream, nullptr);
}

template void core::run_call<operations::Quantize>(const operations::Quantize::Call&, const SelectOptions&, void*,
                                                   WorkspaceSource*);

}  // namespace tilewise
