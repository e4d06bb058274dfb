// When two tensors are the same to describe().
#include "core/recent_plan.hpp"

#include <cstddef>
#include <cstdint>

namespace tilewise::core {
namespace {

/// Everything about an address that describe() asks for.
std::uintptr_t address_class(const void* data) {
  constexpr std::uintptr_t kAlignment = 16;
  return data == nullptr ? kAlignment : reinterpret_cast<std::uintptr_t>(data) % kAlignment;
}

}  // namespace

bool same_kind_given(const TensorView& a, const TensorView& b) {
  [[maybe_unused]] const auto& [data, dtype, device, rank, shape, strides] = a;
  if (device != b.device || rank != b.rank || address_class(data) != address_class(b.data)) return false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i) {
    if (shape[i] != b.shape[i] || strides[i] != b.strides[i]) return false;
  }
  return true;
}

}  // namespace tilewise::core
