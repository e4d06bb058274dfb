// Finds torch's C functions with dlsym and wraps tensor handles.
#include "torch_shim.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "core/foreign_dtype.hpp"
#include "core/message.hpp"
#include "core/names.hpp"
#include "core/packed.hpp"
#include "core/tensor_checks.hpp"

namespace tilewise::python::torch_shim {
namespace {

Api g_api{};  // a cache of function addresses, written by load() alone

/// Finds functions one after another and remembers the first that is missing.
class Lookup {
 public:
  explicit Lookup(void* library) : library_(library) {}

  template <typename Function>
  void find(const char* name, Function** function, bool optional = false) {
    *function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (*function == nullptr && !optional && missing_.empty()) missing_ = name;
  }
  /// The value of a function without arguments that returns one of torch's numbers.
  std::int32_t number(const char* name, bool optional = false) {
    std::int32_t (*function)() = nullptr;
    find(name, &function, optional);
    return function != nullptr ? function() : -1;
  }
  [[nodiscard]] const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

void find_functions(Lookup& lookup, Api& api) {
  lookup.find("aoti_torch_library_init_fragment", &api.library_init_fragment);
  lookup.find("aoti_torch_library_init_impl", &api.library_init_impl);
  lookup.find("aoti_torch_library_def", &api.library_def);
  lookup.find("torch_library_impl", &api.library_impl);
  lookup.find("aoti_torch_get_data_ptr", &api.get_data_ptr);
  lookup.find("aoti_torch_get_dim", &api.get_dim);
  lookup.find("aoti_torch_get_sizes", &api.get_sizes);
  lookup.find("aoti_torch_get_strides", &api.get_strides);
  lookup.find("aoti_torch_get_dtype", &api.get_dtype);
  lookup.find("aoti_torch_get_device_type", &api.get_device_type);
  lookup.find("aoti_torch_get_device_index", &api.get_device_index);
  lookup.find("aoti_torch_empty_strided", &api.empty_strided);
  lookup.find("aoti_torch_delete_tensor_object", &api.delete_tensor);
  lookup.find("torch_string_length", &api.string_length);
  lookup.find("torch_string_c_str", &api.string_data);
  lookup.find("torch_delete_string", &api.delete_string);
  lookup.find("torch_new_list_reserve_size", &api.new_list);
  lookup.find("torch_list_size", &api.list_size);
  lookup.find("torch_list_get_item", &api.list_get);
  lookup.find("torch_list_push_back", &api.list_push_back);
  lookup.find("torch_delete_list", &api.delete_list);
  lookup.find("torch_delete_stable_ivalue", &api.delete_ivalue, true);
  lookup.find("torch_get_num_threads", &api.get_num_threads);
}

void find_numbers(Lookup& lookup, Api& api) {
  const auto set = [&](DType dtype, const char* name, bool optional = false) {
    api.dtypes[static_cast<std::size_t>(dtype)] = lookup.number(name, optional);
  };
  static_assert(std::tuple_size_v<decltype(api.dtypes)> == core::kNamesOf<DType>.size());
  api.dtypes.fill(-1);
  set(DType::f32, "aoti_torch_dtype_float32");
  set(DType::bf16, "aoti_torch_dtype_bfloat16");
  set(DType::f16, "aoti_torch_dtype_float16");
  set(DType::f64, "aoti_torch_dtype_float64");
  set(DType::boolean, "aoti_torch_dtype_bool");
  set(DType::u8, "aoti_torch_dtype_uint8");
  set(DType::i32, "aoti_torch_dtype_int32");
  set(DType::i64, "aoti_torch_dtype_int64");
  set(DType::fp8_e4m3, "aoti_torch_dtype_float8_e4m3fn");
  set(DType::fp8_e5m2, "aoti_torch_dtype_float8_e5m2", true);
  set(DType::fp8_e8m0, "aoti_torch_dtype_float8_e8m0fnu", true);
  set(DType::fp4_e2m1, "aoti_torch_dtype_float4_e2m1fn_x2", true);
  for (std::int32_t& number : api.dtypes)  // bytes stand for narrow elements that torch has not
    if (number < 0 && &number != &api.dtypes.front()) number = api.dtypes[static_cast<std::size_t>(DType::u8)];
  for (std::size_t i = 0; i < kOtherDtypes.size(); ++i) {
    api.other_dtypes[i] = lookup.number((std::string("aoti_torch_dtype_") + kOtherDtypes[i].torch).c_str(), true);
  }
  api.devices.fill(-1);
  api.devices[static_cast<std::size_t>(DeviceType::cpu)] = lookup.number("aoti_torch_device_type_cpu");
  api.devices[static_cast<std::size_t>(api.gpu)] = lookup.number("aoti_torch_device_type_cuda");
}

/// torch's library of CUDA or HIP, which lies beside its CPU library. A build of torch has at most one of them.
void find_gpu(const std::string& cpu_library, Api& api) {
  const std::string folder = cpu_library.substr(0, cpu_library.rfind('/') + 1);
  for (const auto& [type, name] :
       {std::pair{DeviceType::cuda, "libtorch_cuda.so"}, {DeviceType::hip, "libtorch_hip.so"}}) {
    void* library = dlopen((folder + name).c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    Lookup(library).find("aoti_torch_get_current_cuda_stream", &api.get_current_stream, true);
    api.gpu = type;
  }
}

DType dtype_of(TensorHandle handle, const core::ArgumentName& name) {
  std::int32_t number = -1;
  check(g_api.get_dtype(handle, &number), "get_dtype");
  for (std::size_t i = 1; i < g_api.dtypes.size(); ++i) {
    if (g_api.dtypes[i] == number) return static_cast<DType>(i);
  }
  for (std::size_t i = 0; i < kOtherDtypes.size(); ++i) {
    if (g_api.other_dtypes[i] != number) continue;
    if (const std::optional<DType> foreign = core::foreign_dtype(kOtherDtypes[i].name)) return *foreign;
    core::refuse_dtype(name, kOtherDtypes[i].name);
  }
  core::refuse_dtype(name, core::concat("torch's number ", number));
}

/// torch's number of a dtype that a view has from dtype_of().
std::int32_t number_of(DType dtype) {
  if (core::is_named(dtype)) return g_api.dtypes[static_cast<std::size_t>(dtype)];
  const auto* other = std::ranges::find(kOtherDtypes, core::foreign_name(dtype), &OtherDtype::name);
  return g_api.other_dtypes[static_cast<std::size_t>(other - kOtherDtypes.begin())];
}

Device device_of(TensorHandle handle, const core::ArgumentName& name) {
  std::int32_t type = -1;
  check(g_api.get_device_type(handle, &type), "get_device_type");
  Device device;
  if (type == g_api.devices[static_cast<std::size_t>(DeviceType::cpu)]) return device;
  if (type != g_api.devices[static_cast<std::size_t>(g_api.gpu)]) {
    core::invalid_type(name, ": device must be cpu or cuda (got torch's number ", type, ")");
  }
  device.type = g_api.gpu;
  std::int32_t index = 0;
  check(g_api.get_device_index(handle, &index), "get_device_index");
  device.index = index;
  return device;
}

}  // namespace

std::string load(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return path + " is not loaded";
  Lookup lookup(library);
  Api api{};
  api.gpu = DeviceType::cuda;
  find_functions(lookup, api);
  find_gpu(path, api);
  find_numbers(lookup, api);
  if (!lookup.missing().empty()) return path + " has no " + lookup.missing();
  g_api = api;
  return {};
}

const Api& api() { return g_api; }

void* current_stream(Device device) {
  void* stream = nullptr;
  if (device.type != DeviceType::cpu) check(g_api.get_current_stream(device.index, &stream), "get_current_cuda_stream");
  return stream;
}

void check(Status status, const char* what) {
  if (status != 0) throw Error(ErrorCode::runtime, std::string("torch: ") + what + " failed");
}

Tensor& Tensor::operator=(Tensor&& other) noexcept {
  if (this != &other) {
    reset();
    handle_ = other.release();
  }
  return *this;
}

TensorHandle Tensor::release() noexcept { return std::exchange(handle_, nullptr); }

void Tensor::reset() noexcept {
  if (handle_ != nullptr) g_api.delete_tensor(handle_);
  handle_ = nullptr;
}

Tensor Tensor::empty(TensorView* view) {
  TensorHandle handle = nullptr;
  const TensorView stored = core::is_packed(view->dtype) ? core::bytes_of(*view) : *view;  // torch counts pairs
  check(g_api.empty_strided(view->rank, stored.shape.data(), stored.strides.data(), number_of(view->dtype),
                            g_api.devices[static_cast<std::size_t>(view->device.type)], view->device.index, &handle),
        "allocating a tensor");
  Tensor tensor(handle);
  check(g_api.get_data_ptr(handle, &view->data), "get_data_ptr");
  return tensor;
}

TensorView Tensor::view(const core::ArgumentName& name) const {
  TensorView view;
  if (handle_ == nullptr) return view;
  std::int64_t rank = 0;
  std::int64_t *sizes = nullptr, *strides = nullptr;
  check(g_api.get_dim(handle_, &rank), "get_dim");
  if (rank > kMaxRank) core::invalid_argument(name, ": rank must be 0 to ", kMaxRank, " (got ", rank, ")");
  check(g_api.get_sizes(handle_, &sizes), "get_sizes");
  check(g_api.get_strides(handle_, &strides), "get_strides");
  check(g_api.get_data_ptr(handle_, &view.data), "get_data_ptr");
  view.dtype = dtype_of(handle_, name);
  view.device = device_of(handle_, name);
  view.rank = static_cast<int>(rank);
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i) {
    view.shape[i] = sizes[i];
    view.strides[i] = strides[i];
  }
  return core::is_packed(view.dtype) ? core::elements_of_pairs(view, name.role) : view;
}

}  // namespace tilewise::python::torch_shim
