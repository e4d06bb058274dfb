// The kernels of src/device/moe/sm90 as the host knows them (see gpu::body_of()): what each pointer of a parameter
// block points to, and filling a block in for a call.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/moe/sm90/config.h"
#include "device/moe/sm90/params.h"
#include "gpu/kernel.hpp"
#include "operations/moe/params.hpp"

namespace tilewise::backends::hopper {

/// Parts of the workspace that tensor maps are of too.
inline constexpr std::string_view kMoeGathered = "gathered", kMoeH = "h", kMoeParts = "parts";

void for_each_pointer(const device::MoeSortParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeGatherParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeLayerParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeDecodeParams& p, const gpu::RegionVisitor& visit);

/// The tensors of a call in a block.
void bind(const operations::moe::MoeParams& call, device::MoeSortParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeGatherParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeLayerParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeDecodeParams& params);

template <typename Config_, typename Params_>
struct MoeKernel : gpu::KernelTraits<Config_, Params_> {
  static constexpr bool kWaits = true;
  static std::uint32_t threads(const Config_& config, gpu::Family) {
    return static_cast<std::uint32_t>(config.threads());
  }
  static void for_each_pointer(const Params_& params, const gpu::RegionVisitor& visit) {
    hopper::for_each_pointer(params, visit);
  }
};

struct MoeSort : MoeKernel<device::MoeSortConfig, device::MoeSortParams> {
  static constexpr std::string_view kName = "moe_sort", kHeader = "device/moe/sm90/sort.h", kKernel = "Sm90MoeSort",
                                    kConfig = "MoeSortConfig", kParams = "MoeSortParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct MoeGather : MoeKernel<device::MoeGatherConfig, device::MoeGatherParams> {
  static constexpr std::string_view kName = "moe_gather", kHeader = "device/moe/sm90/gather.h",
                                    kKernel = "Sm90MoeGather", kConfig = "MoeGatherConfig", kParams = "MoeGatherParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

struct MoeLayer : MoeKernel<device::MoeLayerConfig, device::MoeLayerParams> {
  static constexpr std::string_view kName = "moe_layer", kHeader = "device/moe/sm90/layer.h", kKernel = "Sm90MoeLayer",
                                    kConfig = "MoeLayerConfig", kParams = "MoeLayerParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct MoeDecode : MoeKernel<device::MoeDecodeConfig, device::MoeDecodeParams> {
  static constexpr std::string_view kName = "moe_decode", kHeader = "device/moe/sm90/decode.h",
                                    kKernel = "Sm90MoeDecode", kConfig = "MoeDecodeConfig", kParams = "MoeDecodeParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

}  // namespace tilewise::backends::hopper
