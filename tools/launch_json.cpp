// launch.json: the kernels with their parameter blocks and cost, and the steps of each problem.
#include "launch_json.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <stdexcept>

#include "core/message.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::tools {
namespace {

using Json = nlohmann::ordered_json;
using gpu::Launch, gpu::ParameterField;

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

using Places = std::vector<gpu::TensorMapParameter>;

/// Whether the driver encodes a tensor map over the field.
bool is_encoded(const ParameterField& field, const Places& maps) {
  return std::ranges::any_of(maps, [&field](const gpu::TensorMapParameter& map) {
    return field.offset >= map.param_offset && field.offset < map.param_offset + gpu::kTensorMapBytes;
  });
}

/// The values of a block's fields, without pointers and tensor maps.
Json values_json(const std::vector<ParameterField>& fields, const Places& maps, const std::byte* block) {
  Json values = Json::object();
  for (const ParameterField& field : fields) {
    if (is_encoded(field, maps)) continue;
    const auto add = [&](const auto& value) {
      if constexpr (!std::is_same_v<std::decay_t<decltype(value)>, std::monostate>) values[field.name] = value;
    };
    std::visit(add, field.value_in(block));
  }
  return values;
}

/// What the block's pointers point to: tensors by name, and places in the workspace. Those in neither list are null.
Json pointers_json(const std::vector<ParameterField>& fields, const gpu::StandIns& stand_ins, const std::byte* block) {
  Json tensors = Json::object(), workspace = Json::object();
  for (const ParameterField& field : fields) {
    if (!field.is_pointer()) continue;
    const void* address = nullptr;
    std::memcpy(&address, block + field.offset, sizeof address);
    const gpu::StandIns::Place place = stand_ins.find(address);
    if (place.workspace) workspace[field.name] = place.offset;
    if (place.tensor == nullptr) continue;
    if (place.offset != 0) throw std::logic_error(core::concat(field.name, ": points into ", *place.tensor));
    tensors[field.name] = *place.tensor;
  }
  return {{"tensors", tensors}, {"workspace", workspace}};
}

Json map_json(const gpu::TensorMapParameter& parameter, const gpu::DescribedCall& call) {
  const gpu::TensorMap map = gpu::bound_map(parameter, call.params.get(), gpu::StandIns::workspace());
  const gpu::StandIns::Place place = call.tensors.find(map.address);
  constexpr std::array<int, 4> kSwizzleBytes{0, 32, 64, 128};
  const auto rank = static_cast<std::ptrdiff_t>(map.rank);
  Json json{{"offset", parameter.param_offset}};
  json["tensor"] = place.tensor == nullptr ? Json() : Json(*place.tensor);
  json["workspace"] = place.workspace ? Json(place.offset) : Json();
  json["byte_offset"] = place.tensor == nullptr ? 0 : place.offset;
  json["dtype"] = to_string(map.dtype);
  json["dims"] = std::vector(map.dims.begin(), map.dims.begin() + rank);
  json["stride_bytes"] = std::vector(map.strides.begin(), map.strides.begin() + rank - 1);
  json["box"] = std::vector(map.box.begin(), map.box.begin() + rank);
  json["swizzle_bytes"] = kSwizzleBytes.at(static_cast<std::size_t>(map.swizzle));
  return json;
}

const NamedKernel& kernel_of(const Launch& launch, std::span<const NamedKernel> kernels) {
  return *std::ranges::find(kernels, launch.key, [](const NamedKernel& kernel) { return kernel.build->key; });
}

Json extent_json(const gpu::Extent3& extent) { return {extent.x, extent.y, extent.z}; }

Json launch_entry(const Launch& launch, const LoweredProblem& problem, std::span<const NamedKernel> kernels) {
  const NamedKernel& kernel = kernel_of(launch, kernels);
  Json entry{{"file", kernel.file},
             {"symbol", kernel.build->source.symbol},
             {"grid", extent_json(launch.grid)},
             {"cluster", extent_json(launch.cluster)},
             {"block", {launch.threads(), 1, 1}},
             {"dynamic_shared_bytes", launch.key.dynamic_shared_bytes()}};
  entry.update(bound_json(launch, problem.contiguous_call));
  return entry;
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
          {"implementation", problem.implementation},
          {"schedule", problem.lowering.schedule},
          {"workspace",
           {{"size", problem.lowering.workspace_bytes}, {"alignment", gpu::kWorkspaceAlignment}, {"parts", parts}}},
          {"steps", steps}};
}

}  // namespace

Json parameters_json(const gpu::KernelBody& body) {
  Json fields = Json::array();
  for (const ParameterField& field : body.fields()) {
    fields.push_back({{"name", field.name}, {"type", field.type}, {"offset", field.offset}, {"size", field.size}});
  }
  return {{"size", body.params_bytes}, {"fields", fields}};
}

Json bound_json(const Launch& launch, const gpu::DescribedCall& call) {
  alignas(64) std::byte block[gpu::kMostParameterBytes];
  gpu::fill_params(launch, call.params.get(), gpu::StandIns::workspace(), block);
  const std::vector<ParameterField> fields = launch.key.body->fields();
  Json maps = Json::array();
  for (const gpu::TensorMapParameter& map : launch.tensor_maps) maps.push_back(map_json(map, call));
  return {{"values_of_contiguous_tensors", values_json(fields, launch.tensor_maps, block)},
          {"pointers", pointers_json(fields, call.tensors, block)},
          {"tensor_maps", std::move(maps)}};
}

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

Json launch_json(const core::DeviceDescription& device, std::span<const NamedKernel> kernels,
                 std::span<const LoweredProblem> problems) {
  Json report{{"version", version()}, {"target", device.architecture}};
  report["device"] = {{"multiprocessors", device.multiprocessors}, {"shared_bytes_a_block", device.shared_bytes}};
  report["kernels"] = Json::array();
  for (const NamedKernel& kernel : kernels) report["kernels"].push_back(kernel_json(kernel));
  report["problems"] = Json::array();
  for (const LoweredProblem& problem : problems) report["problems"].push_back(problem_json(problem, kernels));
  return report;
}

}  // namespace tilewise::tools
