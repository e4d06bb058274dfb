// The kernels of src/device/merge as the host knows them (see gpu::body_of()): what each pointer of a parameter block
// points to, for workspaces, the emulation's memory checks and launch.json, and filling a block in for a call.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/merge/config.h"
#include "device/merge/params.h"
#include "gpu/kernel.hpp"
#include "gpu/parameters.hpp"
#include "operations/merge/params.hpp"

namespace tilewise::backends::portable {

void for_each_pointer(const device::MergeForwardParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MergeBwdPreprocessParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MergeBwdParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MergeBwdDsinkParams& p, const gpu::RegionVisitor& visit);

/// The tensors of a call in a block: of the parts those that the block's range says.
void bind(const operations::merge::MergeParams& call, device::MergeForwardParams& params);
void bind(const operations::merge::MergeParams& call, device::MergeBwdPreprocessParams& params);
void bind(const operations::merge::MergeParams& call, device::MergeBwdParams& params);
void bind(const operations::merge::MergeParams& call, device::MergeBwdDsinkParams& params);

/// PartType of an element type that GPUs have.
[[nodiscard]] std::int32_t part_type_of(DType dtype);

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
