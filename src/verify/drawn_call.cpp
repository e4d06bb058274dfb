// Inputs of a drawn call, and its run on the host.
#include "verify/drawn_call.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <utility>

#include "core/message.hpp"
#include "tilewise/error.hpp"

namespace tilewise::verify {
namespace {

std::uint64_t checksum_of(const TensorView& view) {
  std::uint64_t sum = 0xCBF29CE484222325u;
  for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
    sum = (sum ^ bits_at(view, offset)) * 0x100000001B3u;
  });
  return sum;
}

/// Scratch memory with a canary behind it.
class Workspace {
 public:
  explicit Workspace(std::size_t size) : size_(size), bytes_(static_cast<std::byte*>(allocate(size))) {
    std::memset(bytes_.get(), 0xFF, size + kCanary);
  }
  [[nodiscard]] void* data() const { return bytes_.get(); }
  [[nodiscard]] bool overrun() const {
    return std::any_of(bytes_.get() + size_, bytes_.get() + size_ + kCanary,
                       [](std::byte b) { return b != std::byte{0xFF}; });
  }

 private:
  static constexpr std::size_t kCanary = 256;
  static constexpr std::align_val_t kAlignment{64};
  static void* allocate(std::size_t size) { return ::operator new(size + kCanary, kAlignment); }
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, kAlignment); }
  };
  std::size_t size_;
  std::unique_ptr<std::byte[], Free> bytes_;
};

}  // namespace

const Output* find_output(const std::vector<Output>& outputs, std::string_view name) {
  const auto found = std::find_if(outputs.begin(), outputs.end(), [&](const Output& o) { return o.name == name; });
  return found == outputs.end() ? nullptr : &*found;
}

std::vector<ErrorBounds> no_errors(const std::vector<Output>& outputs) {
  std::vector<ErrorBounds> bounds;
  for (const Output& output : outputs) {
    const bool bounded = output.model == Model::bounded;
    const std::vector<double> zero(bounded ? static_cast<std::size_t>(output.buffer.view().numel()) : 0);
    bounds.push_back({output.name, zero, zero, {}});
  }
  return bounds;
}

ErrorBounds* find_bounds(std::vector<ErrorBounds>& bounds, std::string_view output) {
  const auto found = std::ranges::find(bounds, output, &ErrorBounds::output);
  return found == bounds.end() ? nullptr : &*found;
}

double special_value(Random& rng) {
  return rng.pick({std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN(),
                   std::bit_cast<double>(std::uint64_t{0x7FFFFFFFFFFFFFFFu}), kInfinity, -kInfinity, kInfinity});
}

double large_value(DType dtype, Random& rng) {
  const double size = rng.pick({1e4, 1e9, 1e10, 1e20, 1e30, largest_finite(dtype)});
  return (rng.chance(0.5) ? 1.0 : -1.0) * std::min(size, largest_finite(dtype));
}

std::uint64_t random_poison(DType dtype, Random& rng) {
  const std::int64_t kind = rng.integer(0, 3);
  if (kind <= 1) return poison_of(dtype);
  if (dtype == DType::f32) return kind == 2 ? 0x7F800000u : 0x7F7FFFFFu;
  if (dtype == DType::bf16) return kind == 2 ? 0x7F80u : 0x7F7Fu;
  if (dtype == DType::f16) return kind == 2 ? 0x7C00u : 0x7BFFu;
  if (dtype == DType::fp8_e4m3) return kind == 2 ? 0xFFu : 0x7Eu;
  if (dtype == DType::f64) return kind == 2 ? 0x7FF0000000000000u : 0x7FEFFFFFFFFFFFFFu;
  return poison_of(dtype);
}

Plan DrawnCall::plan(std::string_view implementation, const std::vector<Output>& outputs) const {
  return plan(implementation, outputs, [](TensorView&) {});
}

void DrawnCall::run(const Plan& plan, const std::vector<Output>& outputs) const {
  const Workspace workspace(plan.workspace_size());
  launch(plan, outputs, workspace.data(), [](TensorView&) {});
  if (workspace.overrun()) {
    throw Error(ErrorCode::runtime, core::concat("workspace: written past its ", plan.workspace_size(), " bytes"));
  }
}

std::vector<std::span<std::byte>> DrawnCall::input_memory() const {
  std::vector<std::span<std::byte>> memory;
  for (const Input& input : inputs_) memory.push_back(input.buffer.bytes());
  return memory;
}

std::string DrawnCall::find_changed_input() const {
  for (const Input& input : inputs_) {
    if (checksum_of(input.buffer.view()) != input.checksum || !input.buffer.find_stray_write(input.views).empty())
      return input.name;
  }
  return {};
}

DrawnCall::Input& DrawnCall::add_poisoned(std::string name, DType dtype, std::vector<std::int64_t> shape,
                                          const Placement& placement, Random& rng) {
  inputs_.push_back({std::move(name), Buffer(dtype, std::move(shape), placement), {}});
  Input& input = inputs_.back();
  input.buffer.fill(random_poison(dtype, rng));
  input.views = {input.buffer.view()};
  return input;
}

void DrawnCall::seal_inputs() {
  for (Input& input : inputs_) input.checksum = checksum_of(input.buffer.view());
}

}  // namespace tilewise::verify
