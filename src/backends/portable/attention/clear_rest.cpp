// As many blocks as rows, or multiprocessors: only the device knows how many rows belong to no sequence.
#include "backends/portable/attention/clear_rest.hpp"

#include <algorithm>

#include "backends/portable/attention/bind.hpp"
#include "backends/portable/attention/kernels.hpp"
#include "operations/attention/call.hpp"

namespace tilewise::backends::portable {

double add_clear_rest(const AttentionProblem& p, const DeviceTraits& traits, gpu::LoweringBuilder& builder) {
  constexpr double kUs = 2.0;  // beside others: it finds nothing to do, as a rule
  if (!p.clear_rest) return 0.0;
  device::ClearRestParams params{};
  params.shape = operations::attention::shape_of(p);
  params.blocks =
      static_cast<std::int32_t>(std::min<std::int64_t>(std::max(p.total_q, p.total_k), traits.multiprocessors));
  params.backward = p.operation == Operation::attention_backward;
  const auto bind_params = [](const void* call, void* block) {
    bind(*static_cast<const device::AttentionParams*>(call), *static_cast<device::ClearRestParams*>(block));
  };
  const gpu::Extent3 grid{static_cast<std::uint32_t>(params.blocks)};
  return builder.launch<ClearRest>(traits.family, {}, grid, params, bind_params) != nullptr ? kUs : 0.0;
}

}  // namespace tilewise::backends::portable
