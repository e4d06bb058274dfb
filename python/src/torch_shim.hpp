// torch's stable C interface, looked up at run time in the libtorch that the process has already
// loaded: building needs no torch, and one binary serves every torch that has these symbols.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/tensor_checks.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::python::torch_shim {

// The types of torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h.
struct AtenTensor;
struct TorchLibrary;
struct TorchString;
struct TorchList;
using TensorHandle = AtenTensor*;
using LibraryHandle = TorchLibrary*;
using StringHandle = TorchString*;
using ListHandle = TorchList*;
using StableIValue = std::uint64_t;
using Status = std::int32_t;  // 0: success
using BoxedKernel = void (*)(StableIValue* stack, std::uint64_t num_inputs, std::uint64_t num_outputs);

/// dtypes that no tensor may have, by torch's names and by ours, for messages.
struct OtherDtype {
  const char* torch;
  std::string_view name;
};
inline constexpr std::array kOtherDtypes{OtherDtype{"int8", "i8"},
                                         OtherDtype{"int16", "i16"},
                                         OtherDtype{"uint16", "u16"},
                                         OtherDtype{"uint32", "u32"},
                                         OtherDtype{"uint64", "u64"},
                                         OtherDtype{"complex32", "complex32"},
                                         OtherDtype{"complex64", "complex64"},
                                         OtherDtype{"complex128", "complex128"},
                                         OtherDtype{"float8_e4m3fnuz", "float8_e4m3fnuz"},
                                         OtherDtype{"float8_e5m2fnuz", "float8_e5m2fnuz"}};

/// The functions used here, and the numbers torch gives to dtypes and devices.
struct Api {
  Status (*library_init_fragment)(const char* name_space, const char* file, std::uint32_t line, LibraryHandle* library);
  Status (*library_init_impl)(const char* name_space, const char* key, const char* file, std::uint32_t line,
                              LibraryHandle* library);
  Status (*library_def)(LibraryHandle library, const char* schema);
  Status (*library_impl)(LibraryHandle library, const char* name, BoxedKernel kernel, std::uint64_t build_version);

  Status (*get_data_ptr)(TensorHandle tensor, void** data);
  Status (*get_dim)(TensorHandle tensor, std::int64_t* rank);
  Status (*get_sizes)(TensorHandle tensor, std::int64_t** sizes);
  Status (*get_strides)(TensorHandle tensor, std::int64_t** strides);
  Status (*get_dtype)(TensorHandle tensor, std::int32_t* dtype);
  Status (*get_device_type)(TensorHandle tensor, std::int32_t* type);
  Status (*get_device_index)(TensorHandle tensor, std::int32_t* index);
  Status (*empty_strided)(std::int64_t rank, const std::int64_t* sizes, const std::int64_t* strides, std::int32_t dtype,
                          std::int32_t device_type, std::int32_t device_index, TensorHandle* tensor);
  Status (*delete_tensor)(TensorHandle tensor);

  Status (*string_length)(StringHandle string, std::size_t* length);
  Status (*string_data)(StringHandle string, const char** data);
  Status (*delete_string)(StringHandle string);
  Status (*new_list)(std::size_t reserved, ListHandle* list);
  Status (*list_size)(ListHandle list, std::size_t* size);
  Status (*list_get)(ListHandle list, std::size_t index, StableIValue* element);
  Status (*list_push_back)(ListHandle list, StableIValue element);
  Status (*delete_list)(ListHandle list);
  Status (*delete_ivalue)(StableIValue* value);  // null before torch 2.13, which freed with operator delete
  Status (*get_num_threads)(std::uint32_t* num_threads);
  Status (*get_current_stream)(std::int32_t device_index, void** stream);  // null without a GPU library

  std::array<std::int32_t, 13> dtypes;  // indexed by DType; -1: an older torch has none
  std::array<std::int32_t, kOtherDtypes.size()> other_dtypes;
  std::array<std::int32_t, 3> devices;  // indexed by DeviceType; torch calls HIP "cuda" too, and has one of the two
  DeviceType gpu;                       // which of the two that is
};

/// Looks everything up in the loaded library at `path` and in the GPU library beside it, if that is loaded too.
/// Returns "" or why that failed.
[[nodiscard]] std::string load(const std::string& path);
/// The loaded functions. Call only after load() returned "".
[[nodiscard]] const Api& api();

/// The stream that torch's calls on a GPU go to; null on the CPU.
[[nodiscard]] void* current_stream(Device device);

/// Throws Error(runtime) where `status` reports that `what` failed.
void check(Status status, const char* what);

/// An owned tensor handle; an empty one means "not given".
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(TensorHandle handle) noexcept : handle_(handle) {}
  Tensor(Tensor&& other) noexcept : handle_(other.release()) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(Tensor&& other) noexcept;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { reset(); }

  /// A new uninitialised tensor with the shape, strides, dtype and device of `view`, which then points into it.
  [[nodiscard]] static Tensor empty(TensorView* view);
  /// The tensor as the core sees it; undefined for an empty handle. Throws Error naming `name`.
  [[nodiscard]] TensorView view(const core::ArgumentName& name) const;
  [[nodiscard]] bool defined() const noexcept { return handle_ != nullptr; }
  [[nodiscard]] TensorHandle release() noexcept;

 private:
  void reset() noexcept;
  TensorHandle handle_ = nullptr;
};

}  // namespace tilewise::python::torch_shim
