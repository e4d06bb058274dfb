// The kernels of src/device/route as the host knows them (see gpu::body_of()): what each pointer of a parameter block
// points to, and filling a block in for a call.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/route/config.h"
#include "device/route/params.h"
#include "gpu/family.hpp"
#include "gpu/kernel.hpp"
#include "gpu/parameters.hpp"
#include "operations/route/params.hpp"

namespace tilewise::backends::portable {

void for_each_pointer(const device::RouteForwardParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::RouteBwdParams& p, const gpu::RegionVisitor& visit);

/// The tensors of a call in a block.
void bind(const operations::route::RouteParams& call, device::RouteForwardParams& params);
void bind(const operations::route::RouteParams& call, device::RouteBwdParams& params);

/// RouteType of a dtype that GPUs have, or of none.
[[nodiscard]] std::int32_t route_type_of(DType dtype);

struct RouteForward : gpu::KernelTraits<device::RouteConfig, device::RouteForwardParams> {
  static constexpr std::string_view kName = "route", kHeader = "device/route/route.h", kKernel = "Route",
                                    kConfig = "RouteConfig", kParams = "RouteForwardParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family) {
    const std::int64_t room = config.groups != 0 ? config.values * std::int64_t{gpu::lanes(family)} : 1;
    return static_cast<std::uint32_t>(config.waves * (config.chosen + 2 * room) * std::int64_t{sizeof(float)});
  }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

struct RouteBwd : gpu::KernelTraits<device::RouteBwdConfig, device::RouteBwdParams> {
  static constexpr std::string_view kName = "route_bwd", kHeader = "device/route/bwd.h", kKernel = "RouteBwd",
                                    kConfig = "RouteBwdConfig", kParams = "RouteBwdParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family) {
    return static_cast<std::uint32_t>(config.waves * config.chosen) * 2 * sizeof(float);
  }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

}  // namespace tilewise::backends::portable
