// What both passes of an expert layer have in common: numbers of their kernels' configs, and the steps that they begin
// with.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backends/cuda/hopper/moe_kernels.hpp"
#include "backends/portable/traits.hpp"
#include "core/ceil_div.hpp"
#include "gpu/lowering.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::backends::hopper {

[[nodiscard]] std::int32_t element_type(DType dtype);
/// Counts that a lane holds so that 32 of them have all experts; a warp of the sort has as many experts.
[[nodiscard]] std::int32_t experts_of_lane(const MoeProblem& problem);
[[nodiscard]] device::MoeShape shape_of(const MoeProblem& problem);
[[nodiscard]] device::ActivationNumbers numbers_of(const MoeProblem& problem);
void set_activation(const MoeProblem& problem, device::MoeActivationConfig& config);

/// Whoever lowers a pass: its steps, and what all of them are told.
class MoeLowerer {
 public:
  MoeLowerer(const MoeProblem& problem, const core::DeviceDescription& device)
      : p_(problem),
        device_(device),
        builder_(portable::traits_of(device, gpu::Family::sm80).overlaps_steps),
        shape_(shape_of(problem)) {}

 protected:
  const MoeProblem& p_;
  const core::DeviceDescription& device_;
  gpu::LoweringBuilder builder_;
  const device::MoeShape shape_;
};

/// Adds a launch of so many blocks.
template <typename Kernel>
gpu::Launch& add_moe_step(gpu::LoweringBuilder& builder, const typename Kernel::Config& config, std::int64_t blocks,
                          const typename Kernel::Params& params) {
  const auto bind_params = [](const void* call, void* block) {
    Kernel::bind_call(*static_cast<const operations::moe::MoeParams*>(call),
                      *static_cast<typename Kernel::Params*>(block));
  };
  const gpu::Extent3 grid{static_cast<std::uint32_t>(blocks)};
  return *builder.launch<Kernel>(gpu::Family::sm90, config, grid, params, bind_params);
}

void add_moe_sort(gpu::LoweringBuilder& builder, const MoeProblem& problem);

/// Blocks of a step that moves rows, of which so many would have nothing left to do.
[[nodiscard]] inline std::int64_t blocks_of_rows(std::int64_t most, std::int64_t multiprocessors) {
  constexpr std::int64_t kBlocksAtOnce = 4;  // of a multiprocessor
  return std::min(most, kBlocksAtOnce * multiprocessors);
}

/// Gather: a kernel that copies rows of tokens to where the sort has put their pairs, and clears rows of gate_up_out.
template <typename Gather>
void add_moe_gather(gpu::LoweringBuilder& builder, const device::MoeShape& shape, std::int64_t multiprocessors,
                    std::int64_t cleared_columns = 0) {
  device::MoeGatherConfig config;
  config.clears = cleared_columns > 0;
  device::MoeGatherParams params{};
  params.shape = shape, params.rows.row_stride = shape.hidden;
  params.cleared_columns = static_cast<std::int32_t>(cleared_columns);
  const std::int64_t blocks = core::ceil_div(std::int64_t{shape.tokens}, std::int64_t{config.warps});
  add_moe_step<Gather>(builder, config, blocks_of_rows(blocks, multiprocessors), params);
}

}  // namespace tilewise::backends::hopper
