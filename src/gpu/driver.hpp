// Calls of a GPU's driver, every answer checked, and errors in the driver's own words. What CUDA and HIP do alike
// stands in src/gpu once, over an Api: a type with the driver's functions and with what the two do differently.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "core/message.hpp"
#include "jit/gpu_driver.hpp"
#include "jit/published.hpp"
#include "tilewise/error.hpp"

namespace tilewise::gpu {

/// Devices that can be told apart; CUDA's driver itself lists no more.
inline constexpr int kMaxGpus = 64;

/// A function of a driver's table and the name that errors give it.
template <typename Table, typename Pointer>
struct DriverFunction {
  Pointer Table::* member;
  std::string_view name;
};

/// An initialised driver. Refers to its table, which is there for ever.
template <typename Api>
class GpuDriver {
 public:
  using Table = typename Api::Table;

  explicit GpuDriver(const Table& table) noexcept : table_(table) {}

  [[nodiscard]] const Table& table() const noexcept { return table_; }
  /// False for what an older driver lacks.
  template <typename Pointer>
  [[nodiscard]] bool has(const DriverFunction<Table, Pointer>& function) const noexcept {
    return table_.*function.member != nullptr;
  }
  template <typename Pointer, typename... Arguments>
  jit::gpu::Result ask(const DriverFunction<Table, Pointer>& function, Arguments... arguments) const {
    return (table_.*function.member)(arguments...);
  }
  /// Throws Error(runtime) "cuModuleLoadData: CUDA_ERROR_..." unless the driver answers with success.
  template <typename Pointer, typename... Arguments>
  void call(const DriverFunction<Table, Pointer>& function, Arguments... arguments) const {
    check(ask(function, arguments...), function.name);
  }
  void check(jit::gpu::Result result, std::string_view function) const {
    if (result != jit::gpu::kSuccess) {
      throw Error(ErrorCode::runtime, core::concat(function, ": ", error_text(result)));
    }
  }

  /// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)": the driver's own words.
  [[nodiscard]] std::string error_text(jit::gpu::Result result) const {
    const char *name = nullptr, *words = nullptr;
    Api::name_error(table_, result, name, words);
    if (name == nullptr) return core::concat("error ", result);
    if (words == nullptr || std::string_view(words) == name) return name;  // old HIP runtimes have no more to say
    return core::concat(name, " (", words, ")");
  }

 private:
  const Table& table_;
};

/// The driver after its initialisation, and how many devices it lists.
template <typename Api>
struct ReadyDriver {
  std::optional<GpuDriver<Api>> driver;  ///< none where it is missing or has no device
  int devices = 0;
  std::string reason;  ///< why there is none
};

template <typename Api>
[[nodiscard]] ReadyDriver<Api> initialise_driver() {
  const auto& opened = Api::opened();
  if (opened.functions() == nullptr) return {{}, 0, opened.reason};
  const GpuDriver<Api> driver(*opened.functions());
  const auto without = [&driver](std::string_view function, jit::gpu::Result result) {
    return ReadyDriver<Api>{
        {}, 0, core::concat(Api::kTitle, " has no device here (", function, ": ", driver.error_text(result), ")")};
  };
  constexpr unsigned kNoFlags = 0;
  int devices = 0;
  if (const auto result = driver.ask(Api::kInit, kNoFlags); result != jit::gpu::kSuccess) {
    return without(Api::kInit.name, result);
  }
  const jit::gpu::Result result = driver.ask(Api::kCountDevices, &devices);
  if (result != jit::gpu::kSuccess) return without(Api::kCountDevices.name, result);
  if (devices == 0) return without(Api::kCountDevices.name, jit::gpu::kErrorNoDevice);
  return {driver, std::min(devices, kMaxGpus), {}};
}

template <typename Api>
constinit inline jit::Published<ReadyDriver<Api>> g_ready_driver;

/// Initialised on first use.
template <typename Api>
[[nodiscard]] const ReadyDriver<Api>& ready_driver() {
  return g_ready_driver<Api>.get(initialise_driver<Api>);
}

}  // namespace tilewise::gpu
