// What serves each kind of device. Not in table.cpp: a program may bring a table of its own and keep the devices.
#include "backends/cpu/cpu_backend.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/hip/hip_backend.hpp"
#include "core/device.hpp"

namespace tilewise::core {

const DeviceSystem* device_system(DeviceType type) {
  switch (type) {
    case DeviceType::cpu:
      break;
    case DeviceType::cuda:
      return &backends::cuda_system();
    case DeviceType::hip:
      return &backends::hip_system();
  }
  return nullptr;
}

DeviceDescription describe_cpu() { return backends::describe_cpu(); }

}  // namespace tilewise::core
