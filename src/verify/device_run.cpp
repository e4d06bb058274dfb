// Mirrors host memory on a device.
#include "verify/device_run.hpp"

#include <algorithm>
#include <cstdint>

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

/// Calls visit(view) for every tensor that is given.
template <typename Arguments, typename Visit>
void visit_tensors(Arguments& arguments, const Visit& visit) {
  operations::attention::change_each_tensor(arguments, [&visit](TensorView& view) {
    if (view.defined()) visit(view);
  });
}

template <typename Arguments>
Plan plan_on(Arguments& arguments, Device device, std::string_view implementation) {
  visit_tensors(arguments, [device](TensorView& view) { view.device = device; });
  const core::DeviceScope scope(device, nullptr);
  return plan(describe(arguments), SelectOptions{std::string(implementation)});
}

template <typename Arguments>
void run_on(const Plan& plan, Arguments arguments, const std::vector<Mirror>& mirrors, Device device) {
  visit_tensors(arguments, [&mirrors](TensorView& view) {
    const auto mirror = std::ranges::find_if(mirrors, [&](const Mirror& m) { return m.holds(view.data); });
    if (mirror != mirrors.end()) view.data = mirror->on_device(view.data);
  });
  constexpr std::size_t kCanary = 256;
  std::vector<std::byte> content(plan.workspace_size() + kCanary, std::byte{0xFF});
  const core::DeviceMemory workspace(device, content.size());
  workspace.write(workspace.data(), content);
  run(plan, arguments, workspace.data());
  workspace.read(content, workspace.data());  // waits for the kernels
  if (std::any_of(content.end() - kCanary, content.end(), [](std::byte b) { return b != std::byte{0xFF}; })) {
    throw Error(ErrorCode::runtime, core::concat("workspace: written past its ", plan.workspace_size(), " bytes"));
  }
}

}  // namespace

DeviceRun::DeviceRun(const CallTensors& tensors, const std::vector<Output>& outputs, std::string_view implementation,
                     Device device)
    : forward_(tensors.problem().operation == Operation::attention_forward ? tensors.forward_arguments(outputs)
                                                                           : ForwardArguments{}),
      backward_(tensors.problem().operation == Operation::attention_backward ? tensors.backward_arguments(outputs)
                                                                             : BackwardArguments{}),
      memory_(tensors.input_memory()),
      device_(device),
      plan_(forward_.q.defined() ? plan_on(forward_, device, implementation)
                                 : plan_on(backward_, device, implementation)) {
  for (const Output& output : outputs) memory_.push_back(output.buffer.bytes());
}

void DeviceRun::run() const {
  std::vector<Mirror> mirrors;
  for (const std::span<std::byte> host : memory_) mirrors.emplace_back(device_, host);
  if (forward_.q.defined()) {
    run_on(plan_, forward_, mirrors, device_);
  } else {
    run_on(plan_, backward_, mirrors, device_);
  }
  for (const Mirror& mirror : mirrors) mirror.copy_back();
}

}  // namespace tilewise::verify
