// What is known of a GPU without having one: its matrix instructions, and properties that schedules and cost
// estimates go by.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/device_description.hpp"
#include "core/visibility.hpp"
#include "gpu/family.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::gpu {

/// An architecture that kernels are compiled for.
struct Architecture {
  std::string_view name;     ///< "sm_90a", "gfx942"
  Family family;             ///< of the instructions that portable kernels use
  int multiprocessors;       ///< of a common product, as its driver counts them
  std::size_t shared_bytes;  ///< most that a block may have
  double gigahertz;          ///< peak clock of that product
  double matrix_rate;        ///< multiply-adds of half precision that a multiprocessor does in a cycle
  double memory_gigabytes_per_second;
  std::string_view unused{};  ///< its own matrix instructions, where no kernel here uses them: "tcgen05"
};

/// Null where no kernel is compiled for it.
[[nodiscard]] const Architecture* find_architecture(std::string_view name);
/// The same of a name with the suffix of features that kernels here do not use, "sm_100a". Throws Error
/// (invalid_argument), which lists the names there are, or says what would run on a newer GPU.
[[nodiscard]] TILEWISE_INTERNAL const Architecture& named_architecture(std::string_view name);

/// "gfx90a, gfx942, ...": those of a kind of device, for messages.
[[nodiscard]] std::string architecture_names(DeviceType type);

/// Why a GPU of this name is none of those: "gfx908 is not supported: ...", or that it is newer, and what runs there.
[[nodiscard]] std::string unknown_gpu(std::string_view name);

/// The kind of device that has this architecture.
[[nodiscard]] TILEWISE_INTERNAL DeviceType device_of(const Architecture& architecture);

/// The product that the table speaks of.
[[nodiscard]] TILEWISE_INTERNAL core::DeviceDescription describe(const Architecture& architecture);

/// Whether a device has the family's instructions. NVIDIA's newer than the table have mma.sync, as all before them.
[[nodiscard]] TILEWISE_INTERNAL bool has_family(const core::DeviceDescription& device, Family family);

}  // namespace tilewise::gpu
