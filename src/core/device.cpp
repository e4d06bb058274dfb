// The device that a thread plans for.
#include "core/device.hpp"

#include <cstdlib>
#include <string_view>

#include "core/message.hpp"

namespace tilewise::core {
namespace {

const DeviceScope*& innermost() {
  thread_local const DeviceScope* scope = nullptr;
  return scope;
}

}  // namespace

std::string device_name(Device device) {
  return device.type == DeviceType::cpu ? "cpu" : concat(to_string(device.type), ":", device.index);
}

DeviceScope::DeviceScope(Device device, void* stream) : device_(device), stream_(stream), outer_(innermost()) {
  innermost() = this;
}

DeviceScope::~DeviceScope() { innermost() = outer_; }

int planning_device(DeviceType type) {
  if (type == DeviceType::cpu) return 0;
  const DeviceScope* scope = innermost();
  return scope != nullptr && scope->device_.type == type ? scope->device_.index : device_system(type)->current_device();
}

DeviceDescription describe_device(DeviceType type) {
  return type == DeviceType::cpu ? describe_cpu() : device_system(type)->describe(planning_device(type));
}

bool planning_in_capture() {
  const DeviceScope* scope = innermost();
  if (scope == nullptr || scope->device_.type == DeviceType::cpu) return false;
  return device_system(scope->device_.type)->is_capturing(scope->device_.index, scope->stream_);
}

bool checks_requested() {
  const char* value = std::getenv("TILEWISE_CHECK");
  if (value == nullptr || *value == '\0' || std::string_view(value) == "0") return false;
  if (std::string_view(value) != "1") invalid_argument("TILEWISE_CHECK: must be 0 or 1 (got ", quoted(value), ")");
  return true;
}

bool device_checks_requested(Device device, void* stream) {
  if (!checks_requested()) return false;
  if (device_system(device.type)->is_capturing(device.index, stream)) {
    invalid_argument("TILEWISE_CHECK: must not be 1 while a stream is captured, since lengths can't be read then");
  }
  return true;
}

}  // namespace tilewise::core
