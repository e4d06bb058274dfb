// What the C interface's functions share: exceptions to status codes and sentences, DLPack tensors to views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "core/message.hpp"
#include "core/names.hpp"
#include "tilewise/c/common.h"
#include "tilewise/plan.hpp"

struct tilewise_plan {
  tilewise::Plan plan;
};

namespace tilewise::core::c {

/// This thread's last failure.
std::string& last_error();
tilewise_status failed(tilewise_status status, const char* sentence) noexcept;

/// Runs fn and turns whatever it throws into a status.
template <typename Function>
tilewise_status guarded(const Function& fn) noexcept {
  try {
    fn();
    return TILEWISE_OK;
  } catch (const Error& error) {
    return failed(static_cast<tilewise_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(TILEWISE_RUNTIME_ERROR, "memory: could not allocate");
  } catch (const std::exception& error) {
    return failed(TILEWISE_RUNTIME_ERROR, error.what());
  } catch (...) {
    return failed(TILEWISE_RUNTIME_ERROR, "unknown failure");
  }
}

template <typename Pointer>
Pointer* required(Pointer* pointer, std::string_view name) {
  if (pointer == nullptr) invalid_argument(name, ": must not be null");
  return pointer;
}

inline TensorView view_of(const DLTensor* tensor, std::string_view name) {
  return tensor == nullptr ? TensorView{} : from_dlpack(*tensor, name);
}

/// Null stands for no choice.
inline SelectOptions select_of(const char* implementation) { return {implementation == nullptr ? "" : implementation}; }

/// A copy that tilewise_free_text() takes back.
[[nodiscard]] char* text_for_caller(const std::string& text);

[[nodiscard]] std::vector<TensorView> views_of(const DLTensor* const* tensors, std::size_t count,
                                               std::string_view name);

}  // namespace tilewise::core::c
