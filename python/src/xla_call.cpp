// Reads XLA's call frames; see xla_call.hpp.
#include "xla_call.hpp"

#include <nanobind/nanobind.h>

#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <utility>

#include "core/message.hpp"
#include "core/tensor_checks.hpp"
#include "core/thrown.hpp"
#include "interrupts.hpp"
#include "outputs.hpp"
#include "tilewise/error.hpp"

namespace tilewise::python::xla {
namespace {

namespace nb = nanobind;

constexpr std::array kElementTypes{
    std::pair{ElementType::boolean, DType::boolean},   std::pair{ElementType::i32, DType::i32},
    std::pair{ElementType::i64, DType::i64},           std::pair{ElementType::u8, DType::u8},
    std::pair{ElementType::f16, DType::f16},           std::pair{ElementType::f32, DType::f32},
    std::pair{ElementType::f64, DType::f64},           std::pair{ElementType::bf16, DType::bf16},
    std::pair{ElementType::f8e4m3fn, DType::fp8_e4m3}, std::pair{ElementType::f8e8m0fnu, DType::fp8_e8m0}};

DType dtype_of(ElementType type, std::string_view name) {
  for (const auto& [element, dtype] : kElementTypes) {
    if (element == type) return dtype;
  }
  core::refuse_dtype(name, core::concat("XLA's number ", static_cast<int>(type)));
}

[[noreturn]] void refuse_attribute(std::string_view name, std::string_view what) {
  throw tilewise::Error(tilewise::ErrorCode::runtime,
                        core::concat("attribute ", name, " of an XLA call: ", what,
                                     "; the Python package and its extension module are not of one version"));
}

TensorView view_of(const Buffer& buffer, Device device, std::string_view name) {
  if (buffer.rank > kMaxRank) {
    core::invalid_argument(name, ": rank must be 0 to ", kMaxRank, " (got ", buffer.rank, ")");
  }
  std::array<std::int64_t, kMaxRank> sizes{};
  std::memcpy(sizes.data(), buffer.sizes, static_cast<std::size_t>(buffer.rank) * sizeof(std::int64_t));
  TensorView view;
  if (buffer.type == ElementType::u32 && buffer.rank == 1 && sizes[0] == 4) {  // two 64-bit numbers, low words first
    static_assert(std::endian::native == std::endian::little);
    view = contiguous(DType::i64, device, 1, {2});
  } else {
    view = contiguous(dtype_of(buffer.type, name), device, static_cast<int>(buffer.rank), sizes);
  }
  view.data = buffer.data;
  return view;
}

Error* error(const CallFrame& frame, ErrorCode code, const char* message) noexcept {
  ErrorCreateArguments arguments{};
  arguments.struct_size = offsetof(ErrorCreateArguments, code) + sizeof(ErrorCode);
  arguments.message = message;
  arguments.code = code;
  return frame.api->create_error(&arguments);
}

ErrorCode code_of(tilewise::ErrorCode code) {
  switch (code) {
    case tilewise::ErrorCode::invalid_argument:
    case tilewise::ErrorCode::invalid_type:
      return ErrorCode::invalid_argument;
    case tilewise::ErrorCode::unsupported:
      return ErrorCode::unimplemented;
    case tilewise::ErrorCode::runtime:
      return ErrorCode::internal;
  }
  return ErrorCode::internal;
}

/// Python raises what a signal's handler has raised; XLA hears that there is no result.
Error* interrupted(const CallFrame& frame, const nb::python_error& interruption) noexcept {
  try {
    raise_on_return(interruption);
  } catch (const nb::python_error&) {  // too much is pending: XLA's error is all that is left
  }
  return error(frame, ErrorCode::cancelled, "interrupted by a signal");
}

Device device_of(const CallFrame& frame, DeviceType type) {
  if (type == DeviceType::cpu) return {};
  OrdinalArguments arguments{};
  arguments.struct_size = offsetof(OrdinalArguments, ordinal) + sizeof(std::int32_t);
  arguments.context = frame.context;
  if (frame.api->get_device_ordinal(&arguments) != nullptr) {
    throw tilewise::Error(tilewise::ErrorCode::runtime, "XLA doesn't say which device the call is for");
  }
  return {type, arguments.ordinal};
}

}  // namespace

bool answer_metadata(const CallFrame& frame) noexcept {
  if (frame.extensions == nullptr || frame.extensions->type != kMetadataExtension) return false;
  Metadata& metadata = *reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
  const Version& runtime = frame.api->version;  // whose minor versions only add to what is known here
  metadata.version.major_version = kMajorVersion;
  metadata.version.minor_version = runtime.major_version == kMajorVersion ? runtime.minor_version : kKnownMinorVersion;
  metadata.traits = 0;  // a graph must not capture calls: their workspace belongs to the thread, not to the graph
  return true;
}

Error* error_in_flight(const CallFrame& frame) noexcept {
  try {
    throw;
  } catch (const tilewise::Error& thrown) {
    return error(frame, code_of(thrown.code()), thrown.what());
  } catch (const nb::python_error& interruption) {
    return interrupted(frame, interruption);
  } catch (const std::exception& thrown) {
    return error(frame, ErrorCode::internal, thrown.what());
  } catch (...) {
    return error(frame, ErrorCode::internal, core::describe_thrown(std::current_exception()).message.c_str());
  }
}

Call::Call(const CallFrame& frame, DeviceType type) : frame_(frame), device_(device_of(frame, type)) {}

void* Call::stream() const {
  if (device_.type == DeviceType::cpu) return nullptr;
  StreamArguments arguments{};
  arguments.struct_size = offsetof(StreamArguments, stream) + sizeof(void*);
  arguments.context = frame_.context;
  if (frame_.api->get_stream(&arguments) != nullptr) {
    throw tilewise::Error(tilewise::ErrorCode::runtime, "XLA gives no stream for the call");
  }
  return arguments.stream;
}

TensorView Call::argument(std::int64_t index, std::string_view name) const {
  return view_of(*frame_.arguments.buffers[index], device_, name);
}

TensorView Call::result(std::int64_t index, std::string_view name) const {
  return view_of(*frame_.results.buffers[index], device_, name);
}

const void* Call::find(std::string_view name, int kind) const {
  const Attributes& attributes = frame_.attributes;
  for (std::int64_t i = 0; i < attributes.size; ++i) {
    if (std::string_view(attributes.names[i]->data, attributes.names[i]->size) != name) continue;
    if (attributes.kinds[i] != kind) refuse_attribute(name, "is of another kind than expected");
    return attributes.values[i];
  }
  return nullptr;
}

const void* Call::find_scalar(std::string_view name, ElementType type) const {
  const auto* scalar = static_cast<const Scalar*>(find(name, kScalarAttribute));
  if (scalar == nullptr) return nullptr;
  if (scalar->type != type) refuse_attribute(name, "is of another type than expected");
  return scalar->value;
}

std::optional<std::int64_t> Call::optional_integer(std::string_view name) const {
  const void* value = find_scalar(name, ElementType::i64);
  if (value == nullptr) return std::nullopt;
  return *static_cast<const std::int64_t*>(value);
}

std::optional<double> Call::optional_number(std::string_view name) const {
  const void* value = find_scalar(name, ElementType::f64);
  if (value == nullptr) return std::nullopt;
  return *static_cast<const double*>(value);
}

std::int64_t Call::integer(std::string_view name) const {
  const std::optional<std::int64_t> value = optional_integer(name);
  if (!value) refuse_attribute(name, "is missing");
  return *value;
}

double Call::number(std::string_view name) const {
  const std::optional<double> value = optional_number(name);
  if (!value) refuse_attribute(name, "is missing");
  return *value;
}

bool Call::flag(std::string_view name) const {
  const void* value = find_scalar(name, ElementType::boolean);
  if (value == nullptr) refuse_attribute(name, "is missing");
  return *static_cast<const std::uint8_t*>(value) != 0;
}

std::string_view Call::text(std::string_view name) const {
  const auto* value = static_cast<const Text*>(find(name, kTextAttribute));
  if (value == nullptr) refuse_attribute(name, "is missing");
  return {value->data, value->size};
}

}  // namespace tilewise::python::xla
