// The forward kernel's launch with its tensor maps, for every operation that attends: each says which rows its calls
// have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/hopper/schedule.hpp"
#include "device/common/params.h"
#include "device/hopper/params.h"
#include "gpu/lowering.hpp"

namespace tilewise::backends::hopper {

/// Sets a tensor map's address and extents: of q, k, v and out. packs: heads of a group are rows of one tile.
void bind_q(const device::AttendedRows& call, bool packs, gpu::TensorMap& map);
void bind_out(const device::AttendedRows& call, bool packs, gpu::TensorMap& map);
void bind_k(const device::AttendedRows& call, gpu::TensorMap& map);
void bind_v(const device::AttendedRows& call, gpu::TensorMap& map);
void bind_bias(const device::AttendedRows& call, bool packs, gpu::TensorMap& map);

/// Of K or V in 16 bits, as a config with turned_columns has it: none where that differs by key or by batch entry.
[[nodiscard]] device::OddStarts odd_starts(const device::Tensor4& t);

/// What all kernels that attend are told of a call.
template <typename Params>
void bind_rows(const device::AttendedRows& rows, Params& params) {
  params.shape = rows;
  params.score = rows;
  params.out = rows.out;
  params.softmax_lse = rows.softmax_lse;
  if constexpr (requires { params.sink; }) params.sink = rows.sink;
}

/// How a call's tensor maps are set.
struct MapBinds {
  using Bind = void (*)(const void* call, gpu::TensorMap& map);
  Bind q, k, v, out, bias;
  std::string_view q_part{};  ///< of the workspace, where q is there
};

/// Of calls whose rows are Source::of(), and for k and v Source::keys_of().
template <typename Source>
[[nodiscard]] MapBinds map_binds(bool packs) {
  using Map = gpu::TensorMap;
  using Call = const void*;
  MapBinds binds{[](Call call, Map& map) { bind_q(Source::of(call), false, map); },
                 [](Call call, Map& map) { bind_k(Source::keys_of(call), map); },
                 [](Call call, Map& map) { bind_v(Source::keys_of(call), map); },
                 [](Call call, Map& map) { bind_out(Source::of(call), false, map); },
                 [](Call call, Map& map) { bind_bias(Source::of(call), false, map); }};
  if (packs) {
    binds.q = [](Call call, Map& map) { bind_q(Source::of(call), true, map); };
    binds.out = [](Call call, Map& map) { bind_out(Source::of(call), true, map); };
    binds.bias = [](Call call, Map& map) { bind_bias(Source::of(call), true, map); };
  }
  return binds;
}

/// What TMA and the kernel can't do; empty where they can.
[[nodiscard]] std::string refusal_of(const Problem& attention);

/// Adds the kernel; returns why it can't be, or nothing. Of a problem with functions of scores `bind` sets a block that
/// has tables, and `classes` are what mask_tiles finds.
[[nodiscard]] std::string add_forward(const Problem& attention, const ForwardSchedule& schedule,
                                      const core::DeviceDescription& device, gpu::Bind bind, const MapBinds& maps,
                                      gpu::LoweringBuilder& builder,
                                      const device::TileClasses<const std::uint8_t>& classes = {});

}  // namespace tilewise::backends::hopper
