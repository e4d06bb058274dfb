// Imports DLPack objects through nanobind and hands them to the core as TensorViews.
#include "array.hpp"

#include <dlpack/dlpack.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "core/device_memory.hpp"
#include "core/foreign_dtype.hpp"
#include "core/message.hpp"
#include "core/names.hpp"
#include "core/packed.hpp"
#include "core/tensor_checks.hpp"
#include "outputs.hpp"
#include "tilewise/error.hpp"

namespace tilewise::python {
namespace {

/// What `object` is, for a message.
std::string described(const nb::object& object) {
  return nb::cast<std::string>(nb::module_::import_("tilewise._kinds").attr("described")(object));
}

nb::ndarray<nb::ro> import(const nb::object& object, const std::string& name, bool writable) {
  nb::ndarray<nb::ro> array;
  if (!writable) {
    if (nb::try_cast(object, array, false)) return array;
    throw Error(
        ErrorCode::invalid_type,
        name + ": must be an array that supports DLPack with a dtype it can express (got " + described(object) + ")");
  }
  nb::ndarray<> writable_array;
  if (!nb::try_cast(object, writable_array, false)) {
    throw Error(ErrorCode::invalid_type,
                name + ": must be a writable array that supports DLPack (got " + described(object) + ")");
  }
  return nb::ndarray<nb::ro>(writable_array);
}

DType dtype_named(const std::string& dtype, const std::string& name) {
  for (const DType candidate :
       {DType::bf16, DType::f16, DType::fp8_e4m3, DType::fp8_e5m2, DType::fp8_e8m0, DType::fp4_e2m1}) {
    if (to_string(candidate) == dtype) return candidate;
  }
  core::invalid_type(name,
                     ": elements can be reinterpreted as bf16, f16, fp8_e4m3, fp8_e5m2, fp8_e8m0 or, pairs of them, as "
                     "fp4_e2m1 (got ",
                     dtype, ")");
}

/// The dtype of that name.
DType known_dtype(const std::string& dtype, const std::string& name) {
  const auto known = std::find(core::kNamesOf<DType>.begin() + 1, core::kNamesOf<DType>.end(), dtype);
  if (known == core::kNamesOf<DType>.end()) core::refuse_dtype(name, dtype);
  return static_cast<DType>(known - core::kNamesOf<DType>.begin());
}

DLTensor to_dltensor(const nb::ndarray<nb::ro>& array) {
  DLTensor tensor{};
  tensor.data = const_cast<void*>(array.data());
  tensor.device = {static_cast<DLDeviceType>(array.device_type()), array.device_id()};
  tensor.ndim = static_cast<int>(array.ndim());
  tensor.dtype = {array.dtype().code, array.dtype().bits, array.dtype().lanes};
  tensor.shape = const_cast<std::int64_t*>(array.shape_ptr());
  // The strides of an array without elements mean nothing, and some exporters fill in zeros.
  tensor.strides = array.size() == 0 ? nullptr : const_cast<std::int64_t*>(array.stride_ptr());
  return tensor;
}

/// Memory of a new array, where its device is.
class Memory {
 public:
  Memory(Device where, std::size_t bytes) {
    if (where.type == DeviceType::cpu) {
      host_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    } else {
      device_.emplace(where, bytes);
    }
  }
  [[nodiscard]] void* data() const { return device_ ? device_->data() : host_.get(); }

 private:
  std::unique_ptr<std::byte[]> host_;
  std::optional<core::DeviceMemory> device_;
};

/// New memory as a DLPack object of no particular library; it lives as long as that object. It is where `like` is.
nb::ndarray<nb::array_api> empty(const std::vector<std::size_t>& shape, const std::string& dtype, const Array* like) {
  DLTensor tensor{};
  TensorView view;
  view.dtype = DType::none;
  if (like != nullptr) view.device = like->view().device;
  for (const DType candidate : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8}) {
    if (to_string(candidate) == dtype) view.dtype = candidate;
  }
  if (!view.defined()) {
    throw Error(ErrorCode::invalid_type, "dtype: must be one of f32, bf16, f16, f64, i32, i64, u8 (got " + dtype + ")");
  }
  to_dlpack(view, &tensor);
  std::size_t bytes = size_of(view.dtype);
  for (const std::size_t size : shape) bytes *= size;
  auto* memory = new Memory(view.device, std::max<std::size_t>(bytes, 1));
  const nb::capsule owner(memory, [](void* data) noexcept { delete static_cast<Memory*>(data); });
  const nb::dlpack::dtype element{tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes};
  return nb::ndarray<nb::array_api>(memory->data(), shape.size(), shape.data(), owner, nullptr, element,
                                    static_cast<int>(tensor.device.device_type), tensor.device.device_id);
}

}  // namespace

Array::Array(nb::object object, const std::string& name, const std::string& dtype, bool writable)
    : array_(import(object, name, writable)) {
  DLTensor tensor = to_dltensor(array_);
  if (!dtype.empty()) {
    const DType reinterpreted = dtype_named(dtype, name);
    const auto lanes = static_cast<std::uint16_t>(core::is_packed(reinterpreted) ? 2 : 1);
    if (const std::size_t bits = lanes * bits_of(reinterpreted); tensor.dtype.bits != bits || tensor.dtype.lanes != 1) {
      core::invalid_type(name, ": elements must have ", bits, " bits to be read as ", dtype, " (got ",
                         unsigned{tensor.dtype.bits}, ")");
    }
    TensorView of_dtype;
    of_dtype.dtype = reinterpreted;
    DLTensor named{};
    to_dlpack(of_dtype, &named);
    tensor.dtype = {named.dtype.code, named.dtype.bits, lanes};
  } else if (tensor.dtype.code == kDLFloat4_e2m1fn && tensor.dtype.lanes == 1) {
    // The flag that says so of a DLPack array does not reach us.
    core::invalid_type(name,
                       ": elements of 4 bits must come as bytes of two, torch's float4_e2m1fn_x2 (got float4_e2m1fn, "
                       "which may have a byte for each)");
  }
  view_ = core::import_dlpack(tensor, name);
}

Array Array::without_memory(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
                            const std::string& dtype, const std::string& device, int device_index,
                            std::uintptr_t address, const std::string& name) {
  Array array;
  TensorView& view = array.view_;
  if (shape.size() > kMaxRank || shape.size() != strides.size()) {
    throw Error(ErrorCode::invalid_argument, name + ": rank must be 0 to " + std::to_string(kMaxRank) + " (got " +
                                                 std::to_string(shape.size()) + ")");
  }
  view.dtype = known_dtype(dtype, name);
  bool known = false;
  for (const DeviceType candidate : {DeviceType::cpu, DeviceType::cuda, DeviceType::hip}) {
    if (to_string(candidate) != device) continue;
    view.device = {candidate, device_index};
    known = true;
  }
  if (!known) throw Error(ErrorCode::invalid_type, "device: must be cpu, cuda or hip (got " + device + ")");
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  view.data = reinterpret_cast<void*>(address);
  if (core::is_packed(view.dtype)) view = core::elements_of_pairs(view, name);  // as torch counts them
  return array;
}

Array Array::planned(const std::string& name, const std::vector<std::int64_t>& shape, const std::string& dtype) {
  const DType known = known_dtype(dtype, name);
  if (shape.size() > std::size_t{kMaxRank}) {
    core::invalid_argument(name, ": rank must be 0 to ", kMaxRank, " (got ", shape.size(), ")");
  }
  std::array<std::int64_t, kMaxRank> sizes{};
  std::copy(shape.begin(), shape.end(), sizes.begin());
  return Array(contiguous(known, {}, static_cast<int>(shape.size()), sizes));
}

void bind_array(nb::module_& module) {
  module.def(
      "empty", &empty, nb::arg("shape"), nb::arg("dtype"), nb::arg("like") = nb::none(),
      nb::sig("def empty(shape: collections.abc.Sequence[int], dtype: str, like: Array | None = None) -> object"),
      "Uninitialised memory as a DLPack array, on the device of `like` (None: the CPU).");
  nb::class_<Array>(module, "Array", "A borrowed DLPack array, as the core sees it.")
      .def(nb::init<nb::object, const std::string&, const std::string&, bool>(), nb::arg("array").none(),
           nb::arg("name"), nb::arg("dtype") = "", nb::arg("writable") = false,
           "Imports `array`; `name` appears in messages. `dtype` reinterprets elements, bytes as two of \"fp4_e2m1\".")
      .def_static("without_memory", &Array::without_memory, nb::arg("shape"), nb::arg("strides"), nb::arg("dtype"),
                  nb::arg("device"), nb::arg("device_index"), nb::arg("address"), nb::arg("name"),
                  "What a tensor without memory would be on a device; its address is never read.")
      .def_static("planned", &Array::planned, nb::arg("name"), nb::arg("shape"), nb::arg("dtype"),
                  "A contiguous array on the CPU without memory, for the checks of a call that does not run.")
      .def_prop_ro("dtype", [](const Array& array) { return std::string(to_string(array.view().dtype)); })
      .def_prop_ro("device", [](const Array& array) { return std::string(to_string(array.view().device.type)); })
      .def_prop_ro("shape",
                   [](const Array& array) {
                     const auto begin = array.view().shape.begin();
                     return std::vector<std::int64_t>(begin, begin + array.view().rank);
                   })
      .def("__repr__", [](const Array& array) { return describe(array.view()); });
}

}  // namespace tilewise::python
