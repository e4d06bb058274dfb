// The emulation's rows of the dispatch table: GPU kernels' own source on the CPU, lane by lane, with the register
// layouts of each machine. For tests and for reading results where no GPU is.
#pragma once

#include <span>
#include <string_view>

#include "core/implementation.hpp"

namespace tilewise::backends {

/// "emulation.sm80", "emulation.cdna", "emulation.rdna", "emulation.rdna4", "emulation.gfx1250", and attention's
/// "emulation.sm90": chosen only where a call asks by name.
[[nodiscard]] std::span<const core::Implementation* const> emulation_implementations();

/// Whether an implementation's name is an emulation's: sweeps over all implementations leave these out, since each
/// kernel takes a second to compile.
[[nodiscard]] constexpr bool is_emulation(std::string_view name) { return name.starts_with("emulation."); }

}  // namespace tilewise::backends
