// Registers the torch operators of every operation in the torch that the process has loaded, and hands their errors
// back.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings.hpp"
#include "outputs.hpp"
#include "torch_kernel.hpp"
#include "torch_shim.hpp"

namespace tilewise::python {

namespace nb = nanobind;
namespace shim = torch_shim;

std::optional<Error>& pending_error() {
  thread_local std::optional<Error> error;
  return error;
}

void* TorchWorkspace::allocate(std::size_t bytes) {
  TensorView view = contiguous(DType::u8, device_, 1, {static_cast<std::int64_t>(bytes)});
  try {
    memory_ = shim::Tensor::empty(&view);
  } catch (const Error& error) {
    throw Error(ErrorCode::runtime,
                "workspace: could not allocate " + std::to_string(bytes) + " bytes on the GPU (" + error.what() + ")");
  }
  return view.data;
}

namespace {

/// The ABI the kernels are written for: torch 2.10, the first with torch_library_impl.
constexpr std::uint64_t kTorchAbi = (std::uint64_t{2} << 56) | (std::uint64_t{10} << 48);

/// What torch says where a registration comes from (no __FILE__: that is the builder's machine).
constexpr const char* kOrigin = "tilewise/torch_registration.cpp";

std::vector<TorchOperator> all_operators() {
  std::vector<TorchOperator> operators = attention_operators();
  for (TorchOperator& op : kv_cache_operators()) operators.push_back(std::move(op));
  for (TorchOperator& op : operators_by_schema()) operators.push_back(std::move(op));
  return operators;
}

/// Defines the operators and their kernels, for the CPU and where torch has it for the GPU, but for those whose kernels
/// there Python brings, in the torch whose libtorch_cpu is at `path`. Returns "" or why it cannot be done; then nothing
/// has been defined.
std::string register_torch_operators(const std::string& path, const std::vector<std::string>& python_on_gpu) {
  if (std::string reason = shim::load(path); !reason.empty()) return reason;
  const shim::Api& api = shim::api();
  // The libraries live as long as the process: torch looks the kernels up in them.
  shim::LibraryHandle definitions = nullptr;
  shim::check(api.library_init_fragment("tilewise", kOrigin, __LINE__, &definitions), "library_init_fragment");
  const std::vector<TorchOperator> operators = all_operators();
  for (const TorchOperator& op : operators)
    shim::check(api.library_def(definitions, op.schema.c_str()), op.name.c_str());
  for (const char* key : {"CPU", "CUDA"}) {  // a ROCm build of torch calls its GPU CUDA too
    if (std::string_view(key) == "CUDA" && api.get_current_stream == nullptr) continue;
    shim::LibraryHandle kernels = nullptr;
    shim::check(api.library_init_impl("tilewise", key, kOrigin, __LINE__, &kernels), "library_init_impl");
    for (const TorchOperator& op : operators) {
      if (std::string_view(key) == "CUDA" && std::ranges::count(python_on_gpu, op.name) > 0) continue;
      shim::check(api.library_impl(kernels, op.name.c_str(), op.kernel, kTorchAbi), op.name.c_str());
    }
  }
  return {};
}

/// Rethrows the Error behind a torch exception with this message, if there is one.
void rethrow_torch_error(const std::string& message) {
  std::optional<Error> error;
  error.swap(pending_error());
  if (error && message.find(error->what()) != std::string::npos) throw *error;
}

}  // namespace

void bind_torch_operators(nb::module_& module) {
  module.def("register_torch_operators", &register_torch_operators, nb::arg("libtorch_path"), nb::arg("python_on_gpu"),
             "Registers the operators in the loaded libtorch; returns \"\" or why that cannot be done.");
  module.def(
      "torch_schemas",
      [] {
        std::vector<std::string> schemas;
        for (const TorchOperator& op : all_operators()) schemas.push_back(op.schema);
        return schemas;
      },
      "The schemas of the torch operators.");
  module.def("rethrow_torch_error", &rethrow_torch_error, nb::arg("message"),
             "Raises the error that a torch operator reported with this message; returns if there is none.");
}

}  // namespace tilewise::python
