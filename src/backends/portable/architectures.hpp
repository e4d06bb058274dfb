// What is known of a GPU without having one: the family of its matrix instructions, and properties that schedules and
// cost estimates go by.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "backends/portable/lowering.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::portable {

/// An architecture that portable kernels run on.
struct Architecture {
  std::string_view name;  ///< "sm_90a", "gfx942"
  device::Machine machine;
  int multiprocessors;       ///< of a common product, as its driver counts them
  std::size_t shared_bytes;  ///< most that a block may have
  double gigahertz;          ///< peak clock of that product
  double matrix_rate;        ///< multiply-adds of half precision that a multiprocessor does in a cycle
  double memory_gigabytes_per_second;
};

/// Null where portable kernels don't run on it.
[[nodiscard]] const Architecture* find_architecture(std::string_view name);
/// Throws Error (invalid_argument), which lists the names there are.
[[nodiscard]] const Architecture& named_architecture(std::string_view name);

/// "gfx90a, gfx942, ...": those of a kind of device, for messages.
[[nodiscard]] std::string architecture_names(DeviceType type);

/// The kind of device that has this architecture.
[[nodiscard]] DeviceType device_of(const Architecture& architecture);

/// Sets what schedules and the cost estimate go by from the traits' multiprocessors and these three.
void set_rates(DeviceTraits& traits, double matrix_rate, double gigahertz, double memory_gigabytes_per_second);

/// Traits of the product that the table speaks of.
[[nodiscard]] DeviceTraits traits_of(const Architecture& architecture);

}  // namespace tilewise::backends::portable
