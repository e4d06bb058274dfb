// launch.json: the kernels with their parameter blocks and cost, and the steps of each problem.
#include "launch_json.hpp"

#include <algorithm>
#include <map>

#include "core/message.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::tools {
namespace {

using Json = nlohmann::ordered_json;
using gpu::Launch, gpu::ParameterField;

Json parameters_json(const gpu::KernelBody& body) {
  Json fields = Json::array();
  for (const ParameterField& field : body.fields()) {
    fields.push_back({{"name", field.name}, {"type", field.type}, {"offset", field.offset}, {"size", field.size}});
  }
  return {{"size", body.params_bytes}, {"fields", fields}};
}

Json kernel_json(const NamedKernel& kernel) {
  const gpu::KernelBuild& build = *kernel.build;
  const jit::KernelResources& used = build.compiled->resources;
  return {{"file", kernel.file},
          {"symbol", build.compiled->symbol},
          {"registers", used.registers},
          {"accumulation_registers", used.accumulation_registers},
          {"static_shared_bytes", used.static_shared_bytes},
          {"spill_bytes", used.spill_bytes},
          {"scratch_bytes", used.scratch_bytes},
          {"compiler", build.compiled->compiler},
          {"parameters", parameters_json(*build.key.body)},
          {"source", build.source.stub}};
}

/// The values of a block's fields, without pointers.
Json values_json(const gpu::KernelBody& body, const std::byte* block) {
  Json values = Json::object();
  for (const ParameterField& field : body.fields()) {
    const auto add = [&](const auto& value) {
      if constexpr (!std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) values[field.name] = value;
    };
    std::visit(add, field.value_in(block));
  }
  return values;
}

/// What the block's pointers point to: tensors by name, and places in the workspace. Both from the one table.
Json pointers_json(const gpu::Lowering& lowering, const gpu::KernelBody& body, const std::byte* block) {
  const std::vector<ParameterField> fields = body.fields();
  Json tensors = Json::object(), workspace = Json::object();
  body.for_each_pointer(block, [&](const gpu::Region& region, std::size_t offset) {
    const std::string& field = std::ranges::find(fields, offset, &ParameterField::offset)->name;
    if (!region.workspace) {
      tensors[field] = region.name;
    } else if (region.bytes() > 0) {
      workspace[field] = lowering.part(region.name)->offset;
    }
  });
  return {{"tensors", tensors}, {"workspace", workspace}};
}

const NamedKernel& kernel_of(const Launch& launch, std::span<const NamedKernel> kernels) {
  return *std::ranges::find(kernels, launch.key, [](const NamedKernel& kernel) { return kernel.build->key; });
}

Json extent_json(const gpu::Extent3& extent) { return {extent.x, extent.y, extent.z}; }

Json launch_entry(const Launch& launch, const LoweredProblem& problem, std::span<const NamedKernel> kernels) {
  alignas(64) std::byte block[gpu::kMostParameterBytes];
  gpu::fill_params(launch, problem.contiguous_call.get(), nullptr, block);
  const NamedKernel& kernel = kernel_of(launch, kernels);
  const gpu::KernelBody& body = *launch.key.body;
  return {{"file", kernel.file},
          {"symbol", kernel.build->source.symbol},
          {"grid", extent_json(launch.grid)},
          {"cluster", extent_json(launch.cluster)},
          {"block", {launch.threads(), 1, 1}},
          {"dynamic_shared_bytes", launch.key.dynamic_shared_bytes()},
          {"values_of_contiguous_tensors", values_json(body, block)},
          {"pointers", pointers_json(problem.lowering, body, block)}};
}

Json problem_json(const LoweredProblem& problem, std::span<const NamedKernel> kernels) {
  Json steps = Json::array(), parts = Json::array();
  for (const gpu::Step& step : problem.lowering.steps) {
    if (const auto* launch = std::get_if<Launch>(&step)) {
      steps.push_back(launch_entry(*launch, problem, kernels));
    } else {
      const auto& clear = std::get<gpu::Clear>(step);
      steps.push_back({{"clear", clear.part}, {"offset", clear.offset}, {"bytes", clear.bytes}});
    }
  }
  for (const gpu::WorkspacePart& part : problem.lowering.parts) {
    parts.push_back({{"name", part.name}, {"offset", part.offset}, {"bytes", part.bytes}});
  }
  return {{"problem", to_string(problem.problem)},
          {"schedule", problem.lowering.schedule},
          {"workspace",
           {{"size", problem.lowering.workspace_bytes}, {"alignment", gpu::kWorkspaceAlignment}, {"parts", parts}}},
          {"steps", steps}};
}

}  // namespace

std::vector<NamedKernel> name_kernels(std::span<const gpu::KernelBuild> builds) {
  std::map<std::string, int> counts;
  std::vector<NamedKernel> kernels;
  for (const gpu::KernelBuild& build : builds) {
    std::string name(build.key.body->name);
    if (const int count = ++counts[name]; count > 1) core::append(name, core::concat("_", count));
    core::append(name, build.target.kind == jit::TargetKind::cuda ? ".cubin" : ".hsaco");
    kernels.push_back({name, &build});
  }
  return kernels;
}

Json launch_json(std::string_view implementation, const core::DeviceDescription& device,
                 std::span<const NamedKernel> kernels, std::span<const LoweredProblem> problems) {
  Json report{{"version", version()}, {"target", device.architecture}, {"implementation", implementation}};
  report["device"] = {{"multiprocessors", device.multiprocessors}, {"shared_bytes_a_block", device.shared_bytes}};
  report["kernels"] = Json::array();
  for (const NamedKernel& kernel : kernels) report["kernels"].push_back(kernel_json(kernel));
  report["problems"] = Json::array();
  for (const LoweredProblem& problem : problems) report["problems"].push_back(problem_json(problem, kernels));
  return report;
}

}  // namespace tilewise::tools
