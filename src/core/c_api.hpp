// What the C interface's functions share: exceptions to status codes and sentences, DLPack tensors to views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "core/foreign_dtype.hpp"
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
  return tensor == nullptr ? TensorView{} : import_dlpack(*tensor, name);
}

/// Null stands for no choice.
inline SelectOptions select_of(const char* implementation) { return {implementation == nullptr ? "" : implementation}; }

// Options that may grow: a caller says how many bytes of them it knows. Traits are a struct with
//   Options        the C struct; its first member is struct_size
//   kSmallest      bytes that version 1 had; no caller may bring fewer
//   kInit          the function that makes fresh ones
//   defaults()     fresh ones, struct_size aside

template <typename Traits>
void check_struct_size(std::size_t size) {
  if (size >= Traits::kSmallest && size <= sizeof(typename Traits::Options)) return;
  invalid_argument("options: struct_size must be ", Traits::kSmallest, " to ", sizeof(typename Traits::Options),
                   ", as ", Traits::kInit, "() sets it (got ", size, ")");
}

template <typename Traits>
typename Traits::Options default_options(std::size_t size) {
  typename Traits::Options options = Traits::defaults();
  options.struct_size = size;
  return options;
}

/// The caller's fields over the defaults of those it does not know.
template <typename Traits>
typename Traits::Options complete(const typename Traits::Options* given) {
  typename Traits::Options options = default_options<Traits>(sizeof(typename Traits::Options));
  if (given == nullptr) return options;
  check_struct_size<Traits>(given->struct_size);
  std::memcpy(&options, given, given->struct_size);
  return options;
}

template <typename Traits>
tilewise_status init_options(typename Traits::Options* options, std::size_t struct_size) noexcept {
  return guarded([&] {
    required(options, "options");
    check_struct_size<Traits>(struct_size);
    const typename Traits::Options fresh = default_options<Traits>(struct_size);
    std::memcpy(options, &fresh, struct_size);
  });
}

/// A copy that tilewise_free_text() takes back.
[[nodiscard]] char* text_for_caller(const std::string& text);

[[nodiscard]] std::vector<TensorView> views_of(const DLTensor* const* tensors, std::size_t count,
                                               std::string_view name);

}  // namespace tilewise::core::c
