// Activations by name, and as kernels take them.
#pragma once

#include <array>
#include <string_view>

#include "core/names.hpp"
#include "device/common/activation.h"
#include "tilewise/activation.hpp"

namespace tilewise::core {

template <>
inline constexpr std::array<std::string_view, 7> kNamesOf<Activation>{
    "identity", "silu", "gelu", "gelu_tanh", "relu", "relu_squared", "swiglu_oai"};

}  // namespace tilewise::core

namespace tilewise::operations {

[[nodiscard]] constexpr device::ActivationKind kind_of(Activation activation) {
  switch (activation) {
    case Activation::identity:
      break;
    case Activation::silu:
      return device::ActivationKind::silu;
    case Activation::gelu:
      return device::ActivationKind::gelu;
    case Activation::gelu_tanh:
      return device::ActivationKind::gelu_tanh;
    case Activation::relu:
      return device::ActivationKind::relu;
    case Activation::relu_squared:
      return device::ActivationKind::relu_squared;
    case Activation::swiglu_oai:
      return device::ActivationKind::swiglu_oai;
  }
  return device::ActivationKind::identity;
}

}  // namespace tilewise::operations
