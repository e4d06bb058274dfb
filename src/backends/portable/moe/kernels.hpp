// The portable kernels of src/device/moe as the host knows them (see gpu::body_of()): what each pointer of a parameter
// block points to, and filling a block in for a call.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/moe/config.h"
#include "device/moe/params.h"
#include "device/quantize/config.h"
#include "device/quantize/params.h"
#include "gpu/family.hpp"
#include "gpu/kernel.hpp"
#include "gpu/parameters.hpp"
#include "operations/moe/params.hpp"

namespace tilewise::backends::portable {

void for_each_pointer(const device::ExpertSortParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::ExpertUpParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::ExpertRowsParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::ExpertDwParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::ExpertDbiasParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::ExpertDweightsParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::ExpertNormParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::ExpertCombineParams& p, const gpu::RegionVisitor& visit);
/// Of intermediate values, which lie in the workspace.
void for_each_pointer_of_h(const device::QuantizeParams& p, const gpu::RegionVisitor& visit);

/// The tensors of a call in a block.
void bind(const operations::moe::MoeParams& call, device::ExpertSortParams& params);
void bind(const operations::moe::MoeParams& call, device::ExpertUpParams& params);
void bind(const operations::moe::MoeParams& call, device::ExpertRowsParams& params);
void bind(const operations::moe::MoeParams& call, device::ExpertDwParams& params);
void bind(const operations::moe::MoeParams& call, device::ExpertDbiasParams& params);
void bind(const operations::moe::MoeParams& call, device::ExpertDweightsParams& params);
void bind(const operations::moe::MoeParams& call, device::ExpertNormParams& params);
void bind(const operations::moe::MoeParams& call, device::ExpertCombineParams& params);
inline void bind(const operations::moe::MoeParams&, device::QuantizeParams&) {}

/// What traits of portable expert kernels have in common.
template <typename Config_, typename Params_>
struct ExpertKernel : gpu::KernelTraits<Config_, Params_> {
  static constexpr std::uint32_t kNoSharedBytes = 0;
  static std::uint32_t shared_bytes(const Config_& config, gpu::Family) {
    if constexpr (requires { config.shared_bytes(); }) {
      return config.shared_bytes();
    } else {
      return kNoSharedBytes;
    }
  }
  static void for_each_pointer(const Params_& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

struct ExpertSortKernel : ExpertKernel<device::ExpertSortConfig, device::ExpertSortParams> {
  static constexpr std::string_view kName = "expert_sort", kHeader = "device/moe/sort.h", kKernel = "ExpertSort",
                                    kConfig = "ExpertSortConfig", kParams = "ExpertSortParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family) {
    return static_cast<std::uint32_t>(Config::kChunk + config.experts) * sizeof(std::int32_t);
  }
};

struct ExpertUpKernel : ExpertKernel<device::ExpertUpConfig, device::ExpertUpParams> {
  static constexpr std::string_view kName = "expert_up", kHeader = "device/moe/up.h", kKernel = "ExpertUp",
                                    kConfig = "ExpertUpConfig", kParams = "ExpertUpParams";
};

struct ExpertRowsKernel : ExpertKernel<device::ExpertRowsConfig, device::ExpertRowsParams> {
  static constexpr std::string_view kName = "expert_rows", kHeader = "device/moe/rows.h", kKernel = "ExpertRows",
                                    kConfig = "ExpertRowsConfig", kParams = "ExpertRowsParams";
};

struct ExpertDwKernel : ExpertKernel<device::ExpertDwConfig, device::ExpertDwParams> {
  static constexpr std::string_view kName = "expert_dw", kHeader = "device/moe/gradients.h", kKernel = "ExpertDw",
                                    kConfig = "ExpertDwConfig", kParams = "ExpertDwParams";
};

struct ExpertDbiasKernel : ExpertKernel<device::ExpertDbiasConfig, device::ExpertDbiasParams> {
  static constexpr std::string_view kName = "expert_dbias", kHeader = "device/moe/gradients.h", kKernel = "ExpertDbias",
                                    kConfig = "ExpertDbiasConfig", kParams = "ExpertDbiasParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family) {
    return threads(config, family) * static_cast<std::uint32_t>(sizeof(float));
  }
};

struct ExpertDweightsKernel : ExpertKernel<device::ExpertWaveConfig, device::ExpertDweightsParams> {
  static constexpr std::string_view kName = "expert_dweights", kHeader = "device/moe/gradients.h",
                                    kKernel = "ExpertDweights", kConfig = "ExpertWaveConfig",
                                    kParams = "ExpertDweightsParams";
};

struct ExpertNormKernel : ExpertKernel<device::ExpertWaveConfig, device::ExpertNormParams> {
  static constexpr std::string_view kName = "expert_norm", kHeader = "device/moe/combine.h", kKernel = "ExpertNorm",
                                    kConfig = "ExpertWaveConfig", kParams = "ExpertNormParams";
};

struct ExpertCombineKernel : ExpertKernel<device::ExpertCombineConfig, device::ExpertCombineParams> {
  static constexpr std::string_view kName = "expert_combine", kHeader = "device/moe/combine.h",
                                    kKernel = "ExpertCombine", kConfig = "ExpertCombineConfig",
                                    kParams = "ExpertCombineParams";
};

/// The operation's own kernel, on rows of the workspace.
struct ExpertQuantizeKernel : gpu::KernelTraits<device::QuantizeConfig, device::QuantizeParams> {
  static constexpr std::string_view kName = "expert_quantize", kHeader = "device/quantize/quantize.h",
                                    kKernel = "Quantize", kConfig = "QuantizeConfig", kParams = "QuantizeParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family) {
    return config.together() ? threads(config, family) * static_cast<std::uint32_t>(sizeof(std::int32_t)) : 0;
  }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    for_each_pointer_of_h(params, visit);
  }
};

}  // namespace tilewise::backends::portable
