// A call from XLA, read: its buffers as TensorViews, its attributes as values, and errors as XLA takes them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "tilewise/tensor.hpp"
#include "xla_ffi.hpp"

namespace tilewise::python::xla {

/// Whether XLA only asks what the handler is; then it is told.
[[nodiscard]] bool answer_metadata(const CallFrame& frame) noexcept;

/// What the handler returns for the exception in flight. A caught interruption reaches Python too.
[[nodiscard]] Error* error_in_flight(const CallFrame& frame) noexcept;

class Call {
 public:
  /// `type` is that of the platform which the handler is registered for.
  Call(const CallFrame& frame, DeviceType type);

  [[nodiscard]] DeviceType device_type() const noexcept { return device_.type; }
  /// Null on the CPU.
  [[nodiscard]] void* stream() const;

  [[nodiscard]] std::int64_t num_arguments() const noexcept { return frame_.arguments.size; }
  [[nodiscard]] std::int64_t num_results() const noexcept { return frame_.results.size; }
  /// Row-major, as XLA keeps them for handlers. `name` is for messages. u32 [4] counts as i64 [2].
  [[nodiscard]] TensorView argument(std::int64_t index, std::string_view name) const;
  [[nodiscard]] TensorView result(std::int64_t index, std::string_view name) const;

  // Attributes by name. Those that are optional may be left out; a missing other one, or one of another type, throws
  // Error(runtime): the Python package and the module are not of one version.
  [[nodiscard]] std::string_view text(std::string_view name) const;
  [[nodiscard]] bool flag(std::string_view name) const;
  [[nodiscard]] std::int64_t integer(std::string_view name) const;
  [[nodiscard]] double number(std::string_view name) const;
  [[nodiscard]] std::optional<std::int64_t> optional_integer(std::string_view name) const;
  [[nodiscard]] std::optional<double> optional_number(std::string_view name) const;

 private:
  [[nodiscard]] const void* find(std::string_view name, int kind) const;
  [[nodiscard]] const void* find_scalar(std::string_view name, ElementType type) const;

  const CallFrame& frame_;
  Device device_;
};

}  // namespace tilewise::python::xla
