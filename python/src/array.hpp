// Array: any DLPack (or buffer) object seen as a TensorView, kept alive as long as the view.
// The one place where Python arrays become what the core understands.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tensor.hpp"

namespace tilewise::python {

namespace nb = nanobind;

class Array {
 public:
  /// `dtype` ("" or a name of DType) reinterprets the elements: NumPy has no bfloat16 of its
  /// own, so such an array comes as uint16. Throws Error naming `name`.
  Array(nb::object object, const std::string& name, const std::string& dtype, bool writable);

  /// A tensor that has no memory, such as torch's on the meta device: what it would be on `device` ("cpu", "cuda",
  /// "hip"). `address` says how it would be aligned and apart from others, and is never read. Throws Error naming
  /// `name`.
  [[nodiscard]] static Array without_memory(const std::vector<std::int64_t>& shape,
                                            const std::vector<std::int64_t>& strides, const std::string& dtype,
                                            const std::string& device, int device_index, std::uintptr_t address,
                                            const std::string& name);

  /// A contiguous array on the CPU that has no memory: enough for checks of a call that is traced and not run. `dtype`
  /// is a name of DType, or a foreign one, which is refused in those words.
  [[nodiscard]] static Array planned(const std::string& name, const std::vector<std::int64_t>& shape,
                                     const std::string& dtype);

  [[nodiscard]] const TensorView& view() const noexcept { return view_; }

 private:
  Array() = default;
  explicit Array(const TensorView& view) : view_(view) {}

  nb::ndarray<nb::ro> array_;
  TensorView view_;
};

/// The view of an Array argument; undefined for None.
[[nodiscard]] inline TensorView view_of(const Array* array) { return array == nullptr ? TensorView{} : array->view(); }

/// A device's stream, which Python hands over as a number.
[[nodiscard]] inline void* stream_pointer(std::uintptr_t stream) { return reinterpret_cast<void*>(stream); }

}  // namespace tilewise::python
