// The kernels of src/device/linear as the host knows them (see gpu::body_of()): what each pointer of a parameter block
// points to.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/linear/config.h"
#include "device/linear/params.h"
#include "gpu/family.hpp"
#include "gpu/kernel.hpp"
#include "gpu/parameters.hpp"

namespace tilewise::backends::portable {

/// Names differ by what a launch computes: out, the gradient of what the activation is given, or that of x.
void for_each_pointer(const device::LinearProductParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::LinearEpilogueParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::LinearDwParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::LinearDbiasParams& p, const gpu::RegionVisitor& visit);

struct LinearProductKernel : gpu::KernelTraits<device::LinearConfig, device::LinearProductParams> {
  static constexpr std::string_view kName = "linear", kHeader = "device/linear/linear.h", kKernel = "LinearProduct",
                                    kConfig = "LinearConfig", kParams = "LinearProductParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family) { return config.shared_bytes(); }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

struct LinearCombineKernel : gpu::KernelTraits<device::LinearConfig, device::LinearEpilogueParams> {
  static constexpr std::string_view kName = "linear_combine", kHeader = "device/linear/linear.h",
                                    kKernel = "LinearCombine", kConfig = "LinearConfig",
                                    kParams = "LinearEpilogueParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

struct LinearDwKernel : gpu::KernelTraits<device::LinearDwConfig, device::LinearDwParams> {
  static constexpr std::string_view kName = "linear_dw", kHeader = "device/linear/gradients.h", kKernel = "LinearDw",
                                    kConfig = "LinearDwConfig", kParams = "LinearDwParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family) { return config.shared_bytes(); }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

struct LinearDbiasKernel : gpu::KernelTraits<device::LinearDbiasConfig, device::LinearDbiasParams> {
  static constexpr std::string_view kName = "linear_dbias", kHeader = "device/linear/gradients.h",
                                    kKernel = "LinearDbias", kConfig = "LinearDbiasConfig",
                                    kParams = "LinearDbiasParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family) {
    return threads(config, family) * static_cast<std::uint32_t>(sizeof(float));
  }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

}  // namespace tilewise::backends::portable
