// One problem, one seed: the reference's results once, then any implementation against them.
#include <exception>

#include "core/message.hpp"
#include "core/select.hpp"
#include "tilewise/error.hpp"
#include "verify/compare.hpp"
#include "verify/device_run.hpp"
#include "verify/verifier.hpp"
#include "verify/verify.hpp"

namespace tilewise::verify {

namespace {

/// Where an implementation runs; the CPU for a name that is not in the table.
DeviceType device_of(const core::OperationInterface& operation, std::string_view implementation) {
  const core::Implementation* row = core::find_row(core::implementation_table(), operation, implementation);
  return row == nullptr ? DeviceType::cpu : row->device();
}

/// Hopper's kernels take NVIDIA's tanh.approx.f32, whose relative error is 2^-11 by the manual of PTX: an exact one is
/// two operations of the unit that softcap's exponentials wait for, this is one.
double tanh_error(std::string_view implementation) {
  return implementation == "cuda.hopper" || implementation == "emulation.sm90" ? 0x1p-11 : 0.0;
}

/// The implementation's own reason, out of the refusal's walk: "\n  name: reason".
std::string refusal(const std::string& walk, std::string_view implementation) {
  const std::string label = core::concat("\n  ", implementation, ": ");
  const std::size_t start = walk.find(label);
  if (start == std::string::npos) return walk;
  const std::size_t reason = start + label.size();
  return walk.substr(reason, walk.find('\n', reason) - reason);
}

}  // namespace

struct Checker::Expected {
  std::uint64_t seed;
  std::unique_ptr<const DrawnCall> call;
  std::vector<Output> outputs;
  std::vector<ErrorBounds> bounds;

  Expected(const AnyProblem& problem, std::uint64_t tensor_seed, Values values)
      : seed(tensor_seed),
        call(verifier_of(problem.operation()).draw(problem, tensor_seed, values)),
        outputs(call->make_outputs(tensor_seed)) {
    call->run(call->plan("reference", outputs), outputs);
    bounds = call->bounds(outputs, 0.0);
  }
};

namespace {

Values drawn_values(std::uint64_t seed) {
  if (draws_special_values(seed)) return Values::special;
  return draws_large_values(seed) ? Values::large : Values::ordinary;
}

}  // namespace

Checker::Checker(const AnyProblem& problem, std::uint64_t seed) : problem_(problem), seed_(seed) {
  problem.operation().validate(problem.value());
}
Checker::~Checker() = default;

const Checker::Expected& Checker::expected() const {
  if (expected_ == nullptr) expected_ = std::make_unique<Expected>(problem_, seed_, drawn_values(seed_));
  return *expected_;
}

Report Checker::check(std::string_view implementation) const {
  const Expected& expected = this->expected();
  const DrawnCall& call = *expected.call;
  Report report;
  report.reproduce = core::concat("tilewise verify --implementation ", implementation, " --seed ", expected.seed,
                                  " --problem \"", to_string(call.any_problem()), "\"");
  // Other strides than the reference's.
  const std::vector<Output> outputs = call.make_outputs(~expected.seed);
  try {
    if (const DeviceType device = device_of(call.any_problem().operation(), implementation);
        device == DeviceType::cpu) {
      // An emulation refuses rows by how they start, which problems of the CPU don't say, only as it runs.
      call.run(call.plan(implementation, outputs), outputs);
    } else {
      const DeviceRun run(call, outputs, implementation, {device, 0});
      report.status = Status::failed;  // until shown otherwise
      run.run();
    }
  } catch (const Error& error) {
    const bool refused = report.status != Status::failed && error.code() == ErrorCode::unsupported;
    report.status = refused ? Status::refused : Status::failed;
    report.message = refused ? refusal(error.what(), implementation) : error.what();
    return report;
  } catch (const std::exception& error) {
    report.status = Status::failed;
    report.message = error.what();
    return report;
  }
  const double coarse = tanh_error(implementation);
  const std::vector<ErrorBounds> bounds = coarse > 0.0 ? call.bounds(expected.outputs, coarse) : expected.bounds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    report.outputs.push_back(compare(outputs[i], expected.outputs[i], bounds[i]));
    if (report.message.empty()) report.message = report.outputs.back().failure;
  }
  if (const std::string input = call.find_changed_input(); report.message.empty() && !input.empty())
    report.message = core::concat(input, ": an input was written to");
  report.status = report.message.empty() ? Status::passed : Status::failed;
  return report;
}

std::string Report::to_string() const {
  switch (status) {
    case Status::passed:
      return "ok";
    case Status::refused:
      return "refused: " + message;
    default:
      return "FAILED " + message + "\n  " + reproduce;
  }
}

Report check_implementation(const AnyProblem& problem, std::string_view implementation, std::uint64_t seed) {
  return Checker(problem, seed).check(implementation);
}

std::vector<std::string> implementation_names() {
  const std::vector<std::string_view> names = core::row_names(core::implementation_table());
  return {names.begin(), names.end()};
}

}  // namespace tilewise::verify
