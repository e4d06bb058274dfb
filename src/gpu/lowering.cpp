// Placing a workspace, and filling parameter blocks.
#include "gpu/lowering.hpp"

#include <algorithm>

#include "core/message.hpp"

namespace tilewise::gpu {
namespace {

std::size_t align_up(std::size_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

/// Calls visit(region, offset) for the block's pointers into the workspace.
template <typename Visit>
void for_each_workspace_pointer(const Launch& launch, const Visit& visit) {
  launch.key.body->for_each_pointer(launch.params.data(), [&visit](const Region& region, std::size_t offset) {
    if (region.workspace && region.bytes() > 0) visit(region, offset);
  });
}

void note_part(const Region& region, std::vector<WorkspacePart>& parts) {
  const auto known = std::ranges::find(parts, region.name, &WorkspacePart::name);
  if (known == parts.end()) {
    parts.push_back({region.name, 0, region.bytes()});
  } else {
    known->bytes = std::max(known->bytes, region.bytes());
  }
}

}  // namespace

const WorkspacePart* Lowering::part(std::string_view name) const {
  const auto found = std::ranges::find(parts, name, &WorkspacePart::name);
  return found == parts.end() ? nullptr : &*found;
}

std::vector<const Launch*> Lowering::launches() const {
  std::vector<const Launch*> launches;
  for (const Step& step : steps) {
    if (const auto* launch = std::get_if<Launch>(&step)) launches.push_back(launch);
  }
  return launches;
}

void LoweringBuilder::append_schedule(const std::string& text) {
  core::append(lowering_.schedule, lowering_.schedule.empty() ? text : core::concat("; ", text));
}

Lowering LoweringBuilder::finish() {
  for (const Launch* launch : lowering_.launches()) {
    for_each_workspace_pointer(*launch,
                               [this](const Region& region, std::size_t) { note_part(region, lowering_.parts); });
  }
  for (WorkspacePart& part : lowering_.parts) {
    part.offset = lowering_.workspace_bytes;
    lowering_.workspace_bytes += align_up(part.bytes);
  }
  for (Step& step : lowering_.steps) {
    if (auto* launch = std::get_if<Launch>(&step)) {
      for_each_workspace_pointer(*launch, [&](const Region& region, std::size_t offset) {
        launch->workspace.push_back({static_cast<std::uint32_t>(offset), lowering_.part(region.name)->offset});
      });
      for (TensorMapParameter& map : launch->tensor_maps) {
        const WorkspacePart* part = lowering_.part(map.part);
        if (part != nullptr) map.offset = part->offset;
      }
    } else {
      auto& clear = std::get<Clear>(step);
      const WorkspacePart* part = lowering_.part(clear.part);
      if (part != nullptr) clear.offset = part->offset, clear.bytes = part->bytes;
    }
  }
  return std::move(lowering_);
}

void fill_params(const Launch& launch, const void* call, void* workspace, std::byte* block) {
  std::memcpy(block, launch.params.data(), launch.params.size());
  launch.bind(call, block);
  for (const WorkspacePointer& pointer : launch.workspace) {
    // Of no workspace, or one that an address stands for, too: of a launch that is only described.
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(workspace) + pointer.offset;
    std::memcpy(block + pointer.param_offset, &address, sizeof address);
  }
}

TensorMap bound_map(const TensorMapParameter& parameter, const void* call, void* workspace) {
  TensorMap map = parameter.map;
  parameter.bind(call, map);
  if (parameter.most_columns > 0) map.dims[0] = std::min(map.dims[0], parameter.most_columns);
  if (!parameter.part.empty()) {
    map.address = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(workspace) + parameter.offset);
  }
  return map;
}

}  // namespace tilewise::gpu
