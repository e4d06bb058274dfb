// The kernels of src/device/merge as the host knows them: see gpu::body_of().
#pragma once

#include <cstdint>
#include <string_view>

#include "backends/portable/merge/parameters.hpp"
#include "device/merge/config.h"
#include "gpu/kernel.hpp"

namespace tilewise::backends::portable {

/// What the kernels' traits have in common.
template <typename Config, typename Params>
struct MergeKernelTraits : gpu::KernelTraits<Config, Params> {
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

struct MergeForward : MergeKernelTraits<device::MergeConfig, device::MergeForwardParams> {
  static constexpr std::string_view kName = "merge", kHeader = "device/merge/merge.h", kKernel = "Merge",
                                    kConfig = "MergeConfig", kParams = "MergeForwardParams";
};

struct MergeBwdPreprocess : MergeKernelTraits<device::MergeConfig, device::MergeBwdPreprocessParams> {
  static constexpr std::string_view kName = "merge_bwd_preprocess", kHeader = "device/merge/bwd_preprocess.h",
                                    kKernel = "MergeBwdPreprocess", kConfig = "MergeConfig",
                                    kParams = "MergeBwdPreprocessParams";
};

struct MergeBwd : MergeKernelTraits<device::MergeConfig, device::MergeBwdParams> {
  static constexpr std::string_view kName = "merge_bwd", kHeader = "device/merge/bwd.h", kKernel = "MergeBwd",
                                    kConfig = "MergeConfig", kParams = "MergeBwdParams";
};

struct MergeBwdDsink : MergeKernelTraits<device::MergeBwdDsinkConfig, device::MergeBwdDsinkParams> {
  static constexpr std::string_view kName = "merge_bwd_dsink", kHeader = "device/merge/bwd_dsink.h",
                                    kKernel = "MergeBwdDsink", kConfig = "MergeBwdDsinkConfig",
                                    kParams = "MergeBwdDsinkParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family) {
    return threads(config, family) * static_cast<std::uint32_t>(sizeof(float));
  }
};

}  // namespace tilewise::backends::portable
