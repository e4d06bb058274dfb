// Memory of a GPU with an owner, for whoever copies tensors there and back.
#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "core/device.hpp"

namespace tilewise::core {

/// A block of a GPU's memory, freed at the end. Copies follow the null stream's work and are complete on return.
class DeviceMemory {
 public:
  /// Throws Error(runtime) where the device has not that much left.
  DeviceMemory(Device device, std::size_t bytes)
      : device_(device),
        system_(*device_system(device.type)),
        data_(static_cast<std::byte*>(system_.allocate(device.index, bytes))) {}
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(other.device_), system_(other.system_), data_(std::exchange(other.data_, nullptr)) {}
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  DeviceMemory& operator=(DeviceMemory&&) = delete;
  ~DeviceMemory() {
    if (data_ != nullptr) system_.free(device_.index, data_);
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  void write(std::byte* target, std::span<const std::byte> source) const {
    system_.copy_to_device(device_.index, target, source.data(), source.size(), nullptr);
  }
  void read(std::span<std::byte> target, const std::byte* source) const {
    system_.copy_to_host(device_.index, target.data(), source, target.size(), nullptr);
  }

 private:
  Device device_;
  const DeviceSystem& system_;
  std::byte* data_;
};

}  // namespace tilewise::core
