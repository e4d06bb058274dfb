// The parameter block of a launch on Hopper's emulated machine, and the tensor maps in it.
#pragma once

#include <cstddef>
#include <cstring>

#include "backends/emulation/host_tensor_map.hpp"
#include "device/sm90/tensor_map.h"
#include "gpu/lowering.hpp"

namespace tilewise::test {

/// As it travels in the parameters of a kernel on the emulated machine.
inline device::TensorMap encoded_map(const gpu::TensorMap& described) {
  const backends::emulation::HostTensorMap host = backends::emulation::encode_host_map(described);
  device::TensorMap map{};
  std::memcpy(static_cast<void*>(&map), &host, sizeof host);
  return map;
}

/// As far as the launch and the call decide it. `call`: the operation's parameters.
template <class Params>
void bind_params(const gpu::Launch& launch, const void* call, Params& params) {
  std::memcpy(static_cast<void*>(&params), launch.params.data(), sizeof params);
  launch.bind(call, &params);
}

/// `call`: the operation's parameters. change(map): what a test plants in each.
template <class Params, class Change>
void write_maps(const gpu::Launch& launch, const void* call, Params& params, const Change& change) {
  for (const gpu::TensorMapParameter& parameter : launch.tensor_maps) {
    gpu::TensorMap map = parameter.map;
    parameter.bind(call, map);
    change(map);
    const device::TensorMap encoded = encoded_map(map);
    std::memcpy(reinterpret_cast<std::byte*>(&params) + parameter.param_offset, &encoded, sizeof encoded);
  }
}
template <class Params>
void write_maps(const gpu::Launch& launch, const void* call, Params& params) {
  write_maps(launch, call, params, [](gpu::TensorMap&) {});
}

}  // namespace tilewise::test
