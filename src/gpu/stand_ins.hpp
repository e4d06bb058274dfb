// Addresses of no memory that stand for a call's tensors and its workspace: a parameter block that is bound to them
// tells by itself what each pointer is to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tilewise/tensor.hpp"

namespace tilewise::gpu {

/// The tensors of a call by name, each with an address of its own. No tensor is as large as the room between two.
class StandIns {
 public:
  /// Gives the next tensor its address; the name may follow.
  void add(TensorView& view, std::string name = {}) {
    names_.push_back(std::move(name));
    view.data = reinterpret_cast<void*>(names_.size() * kRoom);
  }
  void set_name(const TensorView& view, std::string name) {
    names_.at(reinterpret_cast<std::uintptr_t>(view.data) / kRoom - 1) = std::move(name);
  }

  /// What an address stands for. Nothing: `tensor` and `workspace` both say none.
  struct Place {
    const std::string* tensor = nullptr;
    bool workspace = false;
    std::size_t offset = 0;  ///< in bytes, of the tensor or the workspace
  };
  [[nodiscard]] Place find(const void* address) const {
    const auto number = reinterpret_cast<std::uintptr_t>(address);
    if (number == 0) return {};
    if (number >= kWorkspace) return {nullptr, true, number - kWorkspace};
    return {&names_.at(number / kRoom - 1), false, number % kRoom};
  }
  [[nodiscard]] static void* workspace() { return reinterpret_cast<void*>(kWorkspace); }

 private:
  static constexpr std::uintptr_t kRoom = std::uintptr_t{1} << 40, kWorkspace = std::uintptr_t{1} << 62;
  std::vector<std::string> names_;
};

/// The operation's parameters for a call on stand-ins.
struct DescribedCall {
  std::shared_ptr<const void> params;
  StandIns tensors;
};

/// Makes it of arguments whose tensors have no memory yet. `change(arguments, visit)` calls visit(view) for every
/// tensor of them, `name(arguments, visit)` visit(name, view, access), given or not; `params_of(arguments)` makes the
/// parameters.
template <typename Arguments, typename Change, typename Name, typename ParamsOf>
[[nodiscard]] DescribedCall describe_call(Arguments arguments, const Change& change, const Name& name,
                                          const ParamsOf& params_of) {
  DescribedCall call;
  change(arguments, [&call](TensorView& view) {
    if (view.defined()) call.tensors.add(view);
  });
  name(arguments, [&call](std::string_view role, const TensorView& view, auto) {
    if (view.defined()) call.tensors.set_name(view, std::string(role));
  });
  // Parameters may point into the arguments.
  using Params = decltype(params_of(arguments));
  struct Kept {
    Arguments arguments;
    Params params;
  };
  auto kept = std::make_shared<Kept>(Kept{std::move(arguments), {}});
  kept->params = params_of(kept->arguments);
  call.params = std::shared_ptr<const void>(kept, &kept->params);
  return call;
}

}  // namespace tilewise::gpu
