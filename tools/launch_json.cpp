// launch.json: the parameter block, the kernels with their cost, and the launches of each problem.
#include "launch_json.hpp"

#include <algorithm>
#include <map>

#include "backends/portable/launch_description.hpp"
#include "backends/portable/schedule.hpp"
#include "core/message.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::tools {
namespace {

using Json = nlohmann::ordered_json;
using namespace backends::portable;

constexpr std::string_view kGridPrefix = "grid.";

Json parameters_json() {
  Json fields = Json::array();
  for (const ParameterField& field : parameter_fields()) {
    fields.push_back({{"name", field.name}, {"type", field.type}, {"offset", field.offset}, {"size", field.size}});
  }
  return {{"size", sizeof(device::KernelParams)}, {"alignment", alignof(device::KernelParams)}, {"fields", fields}};
}

Json kernel_json(const NamedKernel& kernel) {
  const KernelBuild& build = *kernel.build;
  const jit::KernelResources& used = build.compiled->resources;
  return {{"file", kernel.file},
          {"symbol", build.compiled->symbol},
          {"registers", used.registers},
          {"accumulation_registers", used.accumulation_registers},
          {"static_shared_bytes", used.static_shared_bytes},
          {"spill_bytes", used.spill_bytes},
          {"scratch_bytes", used.scratch_bytes},
          {"compiler", build.compiled->compiler},
          {"source", build.source.stub}};
}

/// The values of a block's fields whose names begin with a prefix; without pointers.
Json values_json(const device::KernelParams& params, bool of_grid) {
  Json values = Json::object();
  for (const ParameterField& field : parameter_fields()) {
    if (field.name.starts_with(kGridPrefix) != of_grid) continue;
    const auto add = [&](const auto& value) {
      if constexpr (!std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) values[field.name] = value;
    };
    std::visit(add, field.value_in(params));
  }
  return values;
}

/// Where in the workspace the pointers of the block point. Those that it does not name are null.
Json workspace_json(const Lowering& lowering) {
  const WorkspaceParts& parts = lowering.workspace;
  Json offsets = Json::object();
  const auto add = [&offsets](const char* field, std::int64_t offset) {
    if (offset >= 0) offsets[field] = offset;
  };
  add("grid.partial_out", parts.partial_out);
  add("grid.partial_lse", parts.partial_lse);
  add("grid.delta", parts.delta);
  return {{"size", parts.size}, {"alignment", kWorkspaceAlignment}, {"offsets", offsets}};
}

const NamedKernel& kernel_of(const Launch& launch, std::span<const NamedKernel> kernels) {
  return *std::ranges::find(kernels, launch.key, [](const NamedKernel& kernel) { return kernel.build->key; });
}

Json launch_entry(const Launch& launch, device::Machine machine, std::span<const NamedKernel> kernels) {
  const NamedKernel& kernel = kernel_of(launch, kernels);
  device::KernelParams params{};
  params.grid = launch.grid;
  return {{"file", kernel.file},
          {"symbol", kernel.build->source.symbol},
          {"grid", {launch.blocks, 1, 1}},
          {"block", {launch.threads, 1, 1}},
          {"dynamic_shared_bytes", dynamic_shared_bytes(launch.key, machine)},
          {"values", values_json(params, true)}};
}

Json problem_json(const LoweredProblem& lowered, device::Machine machine, std::span<const NamedKernel> kernels) {
  Json launches = Json::array();
  for (const Launch& launch : lowered.lowering.launches) launches.push_back(launch_entry(launch, machine, kernels));
  const device::KernelParams params{contiguous_params(lowered.problem), {}};
  return {{"problem", to_string(lowered.problem)},
          {"schedule", lowered.lowering.schedule},
          {"workspace", workspace_json(lowered.lowering)},
          {"values_of_contiguous_tensors", values_json(params, false)},
          {"launches", launches}};
}

}  // namespace

std::vector<NamedKernel> name_kernels(std::span<const KernelBuild> builds) {
  std::map<std::string, int> counts;
  std::vector<NamedKernel> kernels;
  for (const KernelBuild& build : builds) {
    std::string name = kernel_name(build.key.kind);
    if (const int count = ++counts[name]; count > 1) core::append(name, core::concat("_", count));
    core::append(name, build.target.kind == jit::TargetKind::cuda ? ".cubin" : ".hsaco");
    kernels.push_back({name, &build});
  }
  return kernels;
}

Json launch_json(std::string_view implementation, const DeviceTraits& traits, std::span<const NamedKernel> kernels,
                 std::span<const LoweredProblem> problems) {
  Json report{{"version", version()}, {"target", traits.architecture}, {"implementation", implementation}};
  report["device"] = {{"multiprocessors", traits.multiprocessors}, {"shared_bytes_a_block", traits.shared_bytes}};
  report["parameters"] = parameters_json();
  report["kernels"] = Json::array();
  for (const NamedKernel& kernel : kernels) report["kernels"].push_back(kernel_json(kernel));
  report["problems"] = Json::array();
  for (const LoweredProblem& problem : problems) {
    report["problems"].push_back(problem_json(problem, traits.machine, kernels));
  }
  return report;
}

}  // namespace tilewise::tools
