// What the core's tests share: small calls, a fake implementation, and environment variables for a scope.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "../support/expect_error.hpp"
#include "operations/attention/attention.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::test {

/// A forward and a backward call on f32 tensors that own their memory, valid as they stand:
/// batch_size 2, seqlen_q 3, seqlen_k 5, num_heads_q 4, num_heads_k 2, head_dim 8, head_dim_v 6.
class SmallCall {
 public:
  explicit SmallCall(DType dtype = DType::f32) : dtype_(dtype) {
    forward.q = tensor({2, 3, 4, 8});
    forward.k = tensor({2, 5, 2, 8});
    forward.v = tensor({2, 5, 2, 6});
    forward.out = tensor({2, 3, 4, 6});
    forward.softmax_lse = tensor({2, 4, 3}, DType::f32);
    fill_backward();
  }

  /// The packed variant: sequences of 2 and 1 queries on 1 and 4 keys.
  static SmallCall packed() {
    SmallCall call;
    call.forward.q = call.tensor({3, 4, 8});
    call.forward.k = call.tensor({5, 2, 8});
    call.forward.v = call.tensor({5, 2, 6});
    call.forward.out = call.tensor({3, 4, 6});
    call.forward.softmax_lse = call.tensor({4, 3}, DType::f32);
    call.forward.options.layout = Layout::thd;
    call.forward.options.cu_seqlens_q = call.lengths({0, 2, 3});
    call.forward.options.cu_seqlens_k = call.lengths({0, 1, 5});
    call.fill_backward();
    return call;
  }

  TensorView tensor(std::initializer_list<std::int64_t> shape) { return tensor(shape, dtype_); }
  TensorView tensor(std::initializer_list<std::int64_t> shape, DType dtype) {
    TensorView view(nullptr, dtype, shape);
    view.data = memory(static_cast<std::size_t>(view.numel()) * size_of(dtype));
    return view;
  }
  TensorView lengths(std::initializer_list<std::int32_t> values) {
    const TensorView view = tensor({static_cast<std::int64_t>(values.size())}, DType::i32);
    std::copy(values.begin(), values.end(), static_cast<std::int32_t*>(view.data));
    return view;
  }

  ForwardArguments forward;
  BackwardArguments backward;

 private:
  void fill_backward() {
    const ForwardArguments& f = forward;
    const auto like = [this](const TensorView& view) {
      TensorView copy = view;
      copy.data = memory(static_cast<std::size_t>(view.numel()) * size_of(view.dtype));
      return copy;
    };
    backward = {like(f.out), {},        f.q,       f.k, f.v, f.out,    f.softmax_lse,
                like(f.q),   like(f.k), like(f.v), {},  {},  f.options};
  }
  void* memory(std::size_t bytes) {
    buffers_.emplace_back(bytes / sizeof(double) + 1);
    return buffers_.back().data();
  }

  DType dtype_;
  std::vector<std::vector<double>> buffers_;
};

class FakeKernel : public operations::attention::Kernel {
 public:
  explicit FakeKernel(std::string schedule, std::size_t workspace_size = 0)
      : schedule_(std::move(schedule)), workspace_size_(workspace_size) {}
  /// Counts its loading.
  FakeKernel(std::string schedule, int& loaded, std::string obstacle)
      : schedule_(std::move(schedule)), obstacle_(std::move(obstacle)), loaded_(&loaded) {}
  std::string obstacle() const override { return obstacle_; }
  void load() override {
    if (loaded_ != nullptr) ++*loaded_;
  }
  std::size_t workspace_size() const noexcept override { return workspace_size_; }
  std::string schedule() const override { return schedule_; }
  void launch(const device::AttentionParams&, void*, void*) const override {}

 private:
  std::string schedule_, obstacle_;
  std::size_t workspace_size_ = 0;
  int* loaded_ = nullptr;
};

/// Accepts what its features allow at a fixed estimate, unless it has a reason not to.
class FakeImplementation : public operations::attention::Implementation {
 public:
  FakeImplementation(std::string_view name, operations::attention::FeatureSet supported, double estimated_us,
                     DeviceType device = DeviceType::cpu)
      : name_(name), supported_(supported), estimated_us_(estimated_us), device_(device) {}
  std::string_view name() const noexcept override { return name_; }
  DeviceType device() const noexcept override { return device_; }
  operations::attention::FeatureSet supported() const noexcept override { return supported_; }
  core::Verdict judge(const Problem&, const core::DeviceDescription&) const override {
    if (!reason.empty()) return core::Verdict::refuse(reason);
    return core::Verdict::accept(estimated_us_,
                                 std::make_unique<FakeKernel>("schedule of " + std::string(name_), loaded, obstacle));
  }

  std::string reason;      ///< to refuse every problem
  std::string obstacle;    ///< of every kernel
  mutable int loaded = 0;  ///< kernels

 private:
  std::string_view name_;
  operations::attention::FeatureSet supported_;
  double estimated_us_;
  DeviceType device_;
};

/// Sets an environment variable (or unsets it) until the end of the scope.
class ScopedEnvironment {
 public:
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    value ? setenv(name, value, 1) : unsetenv(name);
  }
  ~ScopedEnvironment() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace tilewise::test
