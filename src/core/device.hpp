// What the framework itself asks of a kind of GPU: which device a call means, whether its stream is
// being captured, memory for workspaces, copies for checks. Backends provide it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/device_description.hpp"
#include "core/visibility.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::core {

/// "cuda:1"; the CPU has no index.
[[nodiscard]] std::string device_name(Device device);

/// A kind of GPU. Stateless to its callers and thread-safe; every function but current_device() throws
/// Error(runtime) with the driver's own name of what went wrong.
class DeviceSystem {
 public:
  virtual ~DeviceSystem() = default;
  /// The device of the calling thread's context; 0 where it has none or there is no driver.
  [[nodiscard]] virtual int current_device() const noexcept = 0;
  /// Devices there are; 0 without a driver.
  [[nodiscard]] virtual int device_count() const noexcept = 0;
  /// Throws nothing: where there is no such device or it can't be opened, its refusal() says so.
  [[nodiscard]] virtual DeviceDescription describe(int device) const = 0;
  [[nodiscard]] virtual bool is_capturing(int device, void* stream) const = 0;
  [[nodiscard]] virtual void* allocate(int device, std::size_t bytes) const = 0;
  virtual void free(int device, void* memory) const noexcept = 0;
  /// Copies wait for what the stream holds and are complete on return.
  virtual void copy_to_device(int device, void* target, const void* source, std::size_t bytes, void* stream) const = 0;
  virtual void copy_to_host(int device, void* target, const void* source, std::size_t bytes, void* stream) const = 0;
  /// Enqueues: repeats `word` over `bytes`, a multiple of 4 unless the word is 0.
  virtual void fill(int device, void* memory, std::uint32_t word, std::size_t bytes, void* stream) const = 0;
  virtual void synchronize(int device, void* stream) const = 0;
};

/// Null for the CPU. Defined by src/backends/table.cpp, the one place that knows every backend.
[[nodiscard]] TILEWISE_INTERNAL const DeviceSystem* device_system(DeviceType type);

/// Of this machine's CPU, as the environment limits it. Throws Error where a variable makes no sense. Defined as above.
[[nodiscard]] DeviceDescription describe_cpu();

/// While it lives, this thread plans for `device`, and on a GPU for work on `stream`. A Problem says only the
/// kind of device; plans are kept for each device of that kind.
class TILEWISE_INTERNAL DeviceScope {
 public:
  DeviceScope(Device device, void* stream);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  friend int planning_device(DeviceType type);
  friend bool planning_in_capture();
  Device device_;
  void* stream_;
  const DeviceScope* outer_;
};

/// Index of the device to plan for: the innermost scope's, else that of the thread's context. 0 on the CPU.
[[nodiscard]] TILEWISE_INTERNAL int planning_device(DeviceType type);
/// What is known of that device.
[[nodiscard]] TILEWISE_INTERNAL DeviceDescription describe_device(DeviceType type);
/// Whether the innermost scope's stream is being captured, so that nothing may be compiled, loaded or allocated.
[[nodiscard]] bool planning_in_capture();

/// Whether TILEWISE_CHECK=1 asks for what costs too much to be checked always. Throws where the variable makes no
/// sense.
[[nodiscard]] bool checks_requested();
/// Whether TILEWISE_CHECK=1 asks for values in the memory of `device` to be checked, which waits for `stream`. Throws
/// where the variable makes no sense, or the stream is being captured.
[[nodiscard]] bool device_checks_requested(Device device, void* stream);

}  // namespace tilewise::core
