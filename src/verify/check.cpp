// One problem, one seed: the reference's results once, then any implementation against them.
#include <exception>

#include "core/message.hpp"
#include "operations/attention/attention.hpp"
#include "tilewise/error.hpp"
#include "verify/call_tensors.hpp"
#include "verify/compare.hpp"
#include "verify/device_run.hpp"
#include "verify/error_bounds.hpp"
#include "verify/reach.hpp"
#include "verify/verify.hpp"

namespace tilewise::verify {

namespace {

/// Where an implementation runs; the CPU for a name that is not in the table.
DeviceType device_of(std::string_view implementation) {
  for (const core::Implementation* row : core::implementation_table())
    if (row->name() == implementation) return row->device();
  return DeviceType::cpu;
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
  CallTensors tensors;
  std::vector<Output> outputs;
  std::vector<ErrorBounds> bounds;

  Expected(const Problem& problem, std::uint64_t tensor_seed)
      : seed(tensor_seed),
        tensors(problem, tensor_seed, draws_special_values(tensor_seed) ? Values::special : Values::ordinary),
        outputs(tensors.make_outputs(tensor_seed)) {
    tensors.run(tensors.plan("reference", outputs), outputs);
    bounds = error_bounds(tensors, outputs);
    if (tensors.values() == Values::special) mark_reach(tensors, outputs, bounds);
  }
};

Checker::Checker(const Problem& problem, std::uint64_t seed) : expected_(std::make_unique<Expected>(problem, seed)) {}
Checker::~Checker() = default;

Report Checker::check(std::string_view implementation) const {
  const CallTensors& tensors = expected_->tensors;
  Report report;
  report.reproduce = core::concat("tilewise verify --implementation ", implementation, " --seed ", expected_->seed,
                                  " --problem \"", to_string(tensors.problem()), "\"");
  // Other strides than the reference's.
  const std::vector<Output> outputs = tensors.make_outputs(~expected_->seed);
  try {
    if (const DeviceType device = device_of(implementation); device == DeviceType::cpu) {
      const Plan plan = tensors.plan(implementation, outputs);
      report.status = Status::failed;  // until shown otherwise
      tensors.run(plan, outputs);
    } else {
      const DeviceRun run(tensors, outputs, implementation, {device, 0});
      report.status = Status::failed;
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
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    report.outputs.push_back(compare(outputs[i], expected_->outputs[i], expected_->bounds[i]));
    if (report.message.empty()) report.message = report.outputs.back().failure;
  }
  if (const std::string input = tensors.find_changed_input(); report.message.empty() && !input.empty())
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

Report check_implementation(const Problem& problem, std::string_view implementation, std::uint64_t seed) {
  return Checker(problem, seed).check(implementation);
}

std::vector<std::string> implementation_names() {
  std::vector<std::string> names;
  for (const core::Implementation* row : core::implementation_table()) names.emplace_back(row->name());
  return names;
}

}  // namespace tilewise::verify
