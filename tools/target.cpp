// See target.hpp.
#include "target.hpp"

#include <vector>

#include "core/message.hpp"
#include "core/spelling.hpp"
#include "gpu/ahead_of_time.hpp"
#include "jit/tuned_schedules.hpp"

namespace tilewise::tools {
namespace {

bool names_device(const std::string& text) {
  return text.starts_with("device=") || text.find(" device=") != std::string::npos ||
         text.find("\tdevice=") != std::string::npos;
}

/// Throws where `name` is none of those that the device has kernels of for the problem.
void check_implementation(const AnyProblem& problem, const core::DeviceDescription& device, std::string_view name) {
  std::vector<std::string_view> names;
  for (const core::Implementation* row : core::implementation_table()) {
    const auto* kernels = dynamic_cast<const gpu::AheadOfTime*>(row);
    if (kernels == nullptr || &row->operation() != &problem.operation()) continue;
    if (row->device() != device.device.type || !gpu::has_family(device, kernels->family())) continue;
    if (name == row->name()) return;
    names.push_back(row->name());
  }
  core::invalid_argument("implementation: must be one of those for ", device.architecture, ": ", core::listed(names),
                         core::did_you_mean(name, names), " (got ", core::quoted(name), ")");
}

}  // namespace

core::DeviceDescription described_target(const gpu::Architecture& architecture, int multiprocessors) {
  core::DeviceDescription device = gpu::describe(architecture);
  if (multiprocessors > 0) device.multiprocessors = multiprocessors;
  device.tuned = jit::load_tuned_schedules(core::tuned_kind(device));
  return device;
}

AnyProblem read_problem(const std::string& text, const gpu::Architecture& architecture) {
  const std::string_view device = to_string(gpu::device_of(architecture));
  AnyProblem problem = parse_problem(names_device(text) ? text : core::concat(text, " device=", device));
  if (problem.device() != gpu::device_of(architecture)) {
    core::invalid_argument("device: must be ", device, " for ", architecture.name, " (got ",
                           to_string(problem.device()), ")");
  }
  return problem;
}

core::Selection select_for(const AnyProblem& problem, const core::DeviceDescription& device,
                           const std::string& implementation) {
  if (!implementation.empty()) check_implementation(problem, device, implementation);
  return core::select(problem, core::overrides_of(SelectOptions{implementation}), device, core::implementation_table(),
                      core::Whereabouts::elsewhere);
}

std::string note_on(const gpu::Architecture& architecture) {
  if (architecture.unused.empty()) return {};
  return core::concat(architecture.name, ": portable kernels; its ", architecture.unused, " is not used\n");
}

}  // namespace tilewise::tools
