// The emulation's rows: each family's, of every operation that has portable kernels.
#include "backends/emulation/emulation_backend.hpp"

#include <array>

#include "backends/emulation/attention.hpp"
#include "backends/emulation/merge.hpp"

namespace tilewise::backends {

std::span<const core::Implementation* const> emulation_implementations() {
  using emulation::EmulatedAttention, emulation::EmulatedMerge, gpu::Family;
  static const EmulatedAttention sm80(Family::sm80), cdna(Family::cdna), rdna(Family::rdna);
  static const EmulatedMerge merge_sm80(Family::sm80), merge_cdna(Family::cdna), merge_rdna(Family::rdna);
  static const std::array<const core::Implementation*, 6> table = {&sm80,       &cdna,       &rdna,
                                                                   &merge_sm80, &merge_cdna, &merge_rdna};
  return table;
}

}  // namespace tilewise::backends
