// Reading the stack of a boxed torch kernel: every value is taken over exactly once, in the
// order of the operator's schema.
#pragma once

#include <bit>
#include <cstdint>
#include <new>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "torch_shim.hpp"

namespace tilewise::python::torch_shim {

/// A string handle and its characters, freed together; an empty handle is an empty string.
class String {
 public:
  String() = default;
  explicit String(StringHandle handle) noexcept : handle_(handle) {}
  String(String&& other) noexcept : handle_(other.handle_) { other.handle_ = nullptr; }
  String(const String&) = delete;
  String& operator=(const String&) = delete;
  String& operator=(String&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~String() {
    if (handle_ != nullptr) api().delete_string(handle_);
  }
  [[nodiscard]] std::string_view view() const {
    if (handle_ == nullptr) return {};
    const char* data = nullptr;
    std::size_t length = 0;
    check(api().string_data(handle_, &data), "string_data");
    check(api().string_length(handle_, &length), "string_length");
    return {data, length};
  }

 private:
  StringHandle handle_ = nullptr;
};

/// What a kernel returns, as it lies on the stack.
[[nodiscard]] inline StableIValue returned(Tensor& tensor) noexcept {
  return reinterpret_cast<std::uintptr_t>(tensor.release());
}
[[nodiscard]] inline StableIValue returned(std::vector<Tensor>& tensors) {
  ListHandle list = nullptr;
  check(api().new_list(tensors.size(), &list), "new_list");
  for (Tensor& tensor : tensors) check(api().list_push_back(list, returned(tensor)), "list_push_back");
  return reinterpret_cast<std::uintptr_t>(list);
}

class StackReader {
 public:
  explicit StackReader(const StableIValue* stack) : next_(stack) {}

  [[nodiscard]] Tensor tensor() noexcept { return Tensor(pointer<AtenTensor>(*next_++)); }
  [[nodiscard]] Tensor optional_tensor() noexcept {
    const std::optional<StableIValue> value = optional();
    return value ? Tensor(pointer<AtenTensor>(*value)) : Tensor();
  }
  [[nodiscard]] std::vector<Tensor> tensors() {
    auto* list = pointer<TorchList>(*next_++);
    std::size_t size = 0;
    check(api().list_size(list, &size), "list_size");
    std::vector<Tensor> tensors(size);
    for (std::size_t i = 0; i < size; ++i) {
      StableIValue element = 0;
      check(api().list_get(list, i, &element), "list_get_item");
      tensors[i] = Tensor(pointer<AtenTensor>(element));
    }
    check(api().delete_list(list), "delete_list");
    return tensors;
  }
  [[nodiscard]] std::int64_t integer() noexcept { return std::bit_cast<std::int64_t>(*next_++); }
  [[nodiscard]] std::optional<std::int64_t> optional_integer() noexcept {
    const std::optional<StableIValue> value = optional();
    return value ? std::optional(std::bit_cast<std::int64_t>(*value)) : std::nullopt;
  }
  [[nodiscard]] double number() noexcept { return std::bit_cast<double>(*next_++); }
  [[nodiscard]] std::optional<double> optional_number() noexcept {
    const std::optional<StableIValue> value = optional();
    return value ? std::optional(std::bit_cast<double>(*value)) : std::nullopt;
  }
  [[nodiscard]] bool boolean() noexcept { return (*next_++ & 0xFF) != 0; }
  [[nodiscard]] String string() noexcept { return String(pointer<TorchString>(*next_++)); }
  [[nodiscard]] String optional_string() noexcept {
    const std::optional<StableIValue> value = optional();
    return String(value ? pointer<TorchString>(*value) : nullptr);
  }

 private:
  template <typename Type>
  [[nodiscard]] static Type* pointer(StableIValue value) noexcept {
    return reinterpret_cast<Type*>(static_cast<std::uintptr_t>(value));
  }
  /// An optional travels as a pointer to a value on the heap, which the reader frees.
  [[nodiscard]] std::optional<StableIValue> optional() noexcept {
    auto* boxed = pointer<StableIValue>(*next_++);
    if (boxed == nullptr) return std::nullopt;
    const StableIValue value = *boxed;
    if (api().delete_ivalue != nullptr) {
      api().delete_ivalue(boxed);
    } else {
      delete boxed;
    }
    return value;
  }

  const StableIValue* next_;
};

}  // namespace tilewise::python::torch_shim
