// The emulation's rows: each family's, of every operation that has portable kernels, and Hopper's.
#include "backends/emulation/emulation_backend.hpp"

#include <vector>

#include "backends/emulation/attention.hpp"
#include "backends/emulation/hopper_row.hpp"
#include "backends/emulation/kv_cache.hpp"
#include "backends/emulation/row.hpp"
#include "backends/portable/linear/lowering.hpp"
#include "backends/portable/merge/lowering.hpp"
#include "backends/portable/moe/lowering.hpp"
#include "backends/portable/quantize/lowering.hpp"
#include "backends/portable/route/lowering.hpp"
#include "backends/rows_of.hpp"

namespace tilewise::backends {
namespace {

/// Made of a gpu::Family.
using FamilyRows =
    RowsOf<emulation::EmulatedAttention, emulation::EmulatedKvCache, emulation::EmulatedRow<operations::Linear>,
           emulation::EmulatedRow<operations::Merge>, emulation::EmulatedRow<operations::Moe>,
           emulation::EmulatedRow<operations::Quantize>, emulation::EmulatedRow<operations::Route>>;

}  // namespace

std::span<const core::Implementation* const> emulation_implementations() {
  using gpu::Family;
  static const RowsOf<emulation::EmulatedAttention, emulation::EmulatedKvCache, emulation::HopperRow<operations::Moe>,
                      emulation::HopperRow<operations::Linear>>
      sm90(Family::sm90);
  static const FamilyRows sm80(Family::sm80), cdna(Family::cdna), rdna(Family::rdna), rdna4(Family::rdna4),
      gfx1250(Family::gfx1250);
  static const std::vector<const core::Implementation*> table = [] {
    std::vector<const core::Implementation*> rows;
    for (const FamilyRows* family : {&sm80, &cdna, &rdna, &rdna4, &gfx1250}) family->append_to(rows);
    sm90.append_to(rows);
    return rows;
  }();
  return table;
}

}  // namespace tilewise::backends
