// What kernels of torch operators share: their table, errors, threads and scratch memory.
#pragma once

#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/parallel.hpp"
#include "interrupts.hpp"
#include "operations/run_call.hpp"
#include "tilewise/error.hpp"
#include "torch_shim.hpp"

namespace tilewise::python {

/// An operator of the library "tilewise"; `name` begins its schema.
struct TorchOperator {
  std::string name, schema;
  torch_shim::BoxedKernel kernel;
};

/// Those of each operation that brings its own kernels.
[[nodiscard]] std::vector<TorchOperator> attention_operators();
[[nodiscard]] std::vector<TorchOperator> kv_cache_operators();
[[nodiscard]] std::vector<TorchOperator> operators_by_schema();

/// The last Error a kernel threw on this thread: torch turns every exception into a RuntimeError,
/// and the Python wrapper turns that one back into the right type.
[[nodiscard]] std::optional<Error>& pending_error();

template <typename Body>
void run_kernel(Body&& body) {
  try {
    std::uint32_t num_threads = 0;
    torch_shim::check(torch_shim::api().get_num_threads(&num_threads), "get_num_threads");
    const core::FrameworkThreads threads(static_cast<int>(num_threads));
    body();
  } catch (const Error& error) {
    pending_error() = error;
    throw;
  }
}

/// Scratch memory from torch's allocator, which reuses it in the order of the current stream: it may go back as soon
/// as the kernels are enqueued, and belongs to a graph that captures them.
class TorchWorkspace final : public core::WorkspaceSource {
 public:
  explicit TorchWorkspace(Device device) : device_(device) {}
  [[nodiscard]] void* allocate(std::size_t bytes) override;

 private:
  Device device_;
  torch_shim::Tensor memory_;
};

/// A call of an operation, its scratch memory torch's. Interrupted, it returns early all the same: the outputs hold
/// anything, and Python raises before it can use them.
template <typename Operation>
void run_on_stream(const typename Operation::Call& call, Device device, const SelectOptions& select, void* stream) {
  TorchWorkspace workspace(device);
  try {
    operations::run_call<Operation>(call, select, stream, &workspace);
  } catch (const nanobind::python_error& interruption) {  // torch would make a RuntimeError of it
    raise_on_return(interruption);
  }
}

}  // namespace tilewise::python
