// Mirrors host memory on a device.
#include "verify/device_run.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/device.hpp"
#include "core/device_memory.hpp"
#include "core/message.hpp"
#include "operations/attention/tensors.hpp"

namespace tilewise::verify {
namespace {

/// A block of host memory on the device, as far from a boundary there as here, so that alignments agree.
class Mirror {
 public:
  Mirror(Device device, std::span<std::byte> host)
      : host_(host),
        memory_(device, host.size() + kBoundary),
        place_(memory_.data() + skew(host.data(), memory_.data())) {
    memory_.write(place_, host_);
  }
  [[nodiscard]] bool holds(const void* address) const {
    const auto* byte = static_cast<const std::byte*>(address);
    return byte >= host_.data() && byte < host_.data() + host_.size();
  }
  [[nodiscard]] void* on_device(const void* address) const {
    return place_ + (static_cast<const std::byte*>(address) - host_.data());
  }
  void copy_back() const { memory_.read(host_, place_); }

 private:
  static constexpr std::uintptr_t kBoundary = 256;
  static std::uintptr_t skew(const std::byte* host, const std::byte* device) {
    return (reinterpret_cast<std::uintptr_t>(host) - reinterpret_cast<std::uintptr_t>(device)) % kBoundary;
  }

  std::span<std::byte> host_;
  core::DeviceMemory memory_;
  std::byte* place_;
};

constexpr std::size_t kCanary = 256;

std::vector<std::span<std::byte>> all_memory(const DrawnCall& call, const std::vector<Output>& outputs) {
  std::vector<std::span<std::byte>> memory = call.input_memory();
  for (const Output& output : outputs) memory.push_back(output.buffer.bytes());
  return memory;
}

template <typename Arguments>
void change_given(Arguments& arguments, const Change& change) {
  operations::attention::change_each_tensor(arguments, [&change](TensorView& view) {
    if (view.defined()) change(view);
  });
}

template <typename Arguments>
Plan plan_on(Arguments arguments, Device device, std::string_view implementation) {
  change_given(arguments, [device](TensorView& view) { view.device = device; });
  const core::DeviceScope scope(device, nullptr);
  return plan(describe(arguments), SelectOptions{std::string(implementation)});
}

template <typename Arguments>
auto launch_of(Arguments arguments) {
  return [arguments = std::move(arguments)](const Plan& plan, void* workspace, const Change& change) {
    Arguments changed = arguments;
    change_given(changed, change);
    run(plan, changed, workspace);
  };
}

}  // namespace

DeviceRun::DeviceRun(const DrawnCall& call, const std::vector<Output>& outputs, std::string_view implementation,
                     Device device)
    : memory_(all_memory(call, outputs)),
      device_(device),
      plan_(call.plan(implementation, outputs, [device](TensorView& view) { view.device = device; })),
      launch_([&call, &outputs](const Plan& plan, void* workspace, const Change& change) {
        call.launch(plan, outputs, workspace, change);
      }) {}

DeviceRun::DeviceRun(ForwardArguments arguments, std::vector<std::span<std::byte>> memory,
                     std::string_view implementation, Device device)
    : memory_(std::move(memory)),
      device_(device),
      plan_(plan_on(arguments, device, implementation)),
      launch_(launch_of(std::move(arguments))) {}

DeviceRun::DeviceRun(BackwardArguments arguments, std::vector<std::span<std::byte>> memory,
                     std::string_view implementation, Device device)
    : memory_(std::move(memory)),
      device_(device),
      plan_(plan_on(arguments, device, implementation)),
      launch_(launch_of(std::move(arguments))) {}

void DeviceRun::run() const {
  std::vector<Mirror> mirrors;
  for (const std::span<std::byte> host : memory_) mirrors.emplace_back(device_, host);
  const auto move = [&](TensorView& view) {
    view.device = device_;
    const auto mirror = std::ranges::find_if(mirrors, [&](const Mirror& m) { return m.holds(view.data); });
    if (mirror != mirrors.end()) view.data = mirror->on_device(view.data);
  };
  std::vector<std::byte> content(plan_.workspace_size() + kCanary, std::byte{0xFF});
  const core::DeviceMemory workspace(device_, content.size());
  workspace.write(workspace.data(), content);
  launch_(plan_, workspace.data(), move);
  workspace.read(content, workspace.data());  // waits for the kernels
  if (std::any_of(content.end() - kCanary, content.end(), [](std::byte b) { return b != std::byte{0xFF}; })) {
    throw Error(ErrorCode::runtime, core::concat("workspace: written past its ", plan_.workspace_size(), " bytes"));
  }
  for (const Mirror& mirror : mirrors) mirror.copy_back();
}

}  // namespace tilewise::verify
