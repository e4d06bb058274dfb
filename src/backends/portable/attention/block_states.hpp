// The launches that make a table of a block mask's lists, before all that look it up.
#pragma once

#include "backends/portable/attention/bind.hpp"
#include "backends/portable/traits.hpp"
#include "gpu/lowering.hpp"
#include "operations/block_mask.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// The problem as kernels see it: with a block table for its block mask, if it has one.
[[nodiscard]] Problem with_block_states(const Problem& problem);

/// Returns how long they take; nothing without a block mask. `bind` finds the lists in a call.
double add_block_states(const operations::BlockedScores& scores, const DeviceTraits& traits,
                        gpu::LoweringBuilder& builder, gpu::Bind bind);
/// Of a call whose parameters have them.
template <typename Call>
void bind_block_states(const void* call, void* block) {
  bind_block_lists(static_cast<const Call*>(call)->block_mask, *static_cast<device::BlockStatesParams*>(block));
}
/// Of attention.
double add_block_states(const Problem& problem, const DeviceTraits& traits, gpu::LoweringBuilder& builder);

}  // namespace tilewise::backends::portable
