// The Hopper kernels of src/device/hopper as the host knows them: see gpu::body_of().
#pragma once

#include <cstdint>
#include <string_view>

#include "backends/cuda/hopper/parameters.hpp"
#include "device/hopper/config.h"
#include "gpu/kernel.hpp"

namespace tilewise::backends::hopper {

inline constexpr std::string_view kImplementationName = "cuda.hopper";  // of all rows
inline constexpr std::uint32_t kSharedRoom = 227u << 10;                // bytes of shared memory that a block may have

/// What the kernels' traits have in common.
template <typename Config, typename Params>
struct HopperKernel : gpu::KernelTraits<Config, Params> {
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    hopper::for_each_pointer(params, visit);
  }
};

struct Forward : HopperKernel<device::HopperForwardConfig, device::HopperForwardParams> {
  static constexpr std::string_view kName = "hopper_forward", kHeader = "device/hopper/forward.h",
                                    kKernel = "HopperForward", kConfig = "HopperForwardConfig",
                                    kParams = "HopperForwardParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct BwdPreprocess : HopperKernel<device::HopperBwdPreprocessConfig, device::HopperBwdPreprocessParams> {
  static constexpr std::string_view kName = "hopper_bwd_preprocess", kHeader = "device/hopper/bwd_preprocess.h",
                                    kKernel = "HopperBwdPreprocess", kConfig = "HopperBwdPreprocessConfig",
                                    kParams = "HopperBwdPreprocessParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct Bwd : HopperKernel<device::HopperBwdConfig, device::HopperBwdParams> {
  static constexpr std::string_view kName = "hopper_bwd", kHeader = "device/hopper/bwd.h", kKernel = "HopperBwd",
                                    kConfig = "HopperBwdConfig", kParams = "HopperBwdParams";
  static constexpr bool kWaits = true;  // for the preprocess
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

/// What mask_mod leaves of tiles.
struct MaskTiles : HopperKernel<device::HopperMaskTilesConfig, device::HopperMaskTilesParams> {
  static constexpr std::string_view kName = "hopper_mask_tiles", kHeader = "device/hopper/mask_tiles.h",
                                    kKernel = "HopperMaskTiles", kConfig = "HopperMaskTilesConfig",
                                    kParams = "HopperMaskTilesParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

/// What kernels that skip tiles walk by, of what mask_tiles has found.
struct TileLists : HopperKernel<device::HopperTileListsConfig, device::HopperTileListsParams> {
  static constexpr std::string_view kName = "hopper_tile_lists", kHeader = "device/hopper/tile_lists.h",
                                    kKernel = "HopperTileLists", kConfig = "HopperTileListsConfig",
                                    kParams = "HopperTileListsParams";
  static constexpr bool kWaits = true;
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

struct BwdConvertDq : HopperKernel<device::HopperBwdConvertDqConfig, device::HopperBwdConvertDqParams> {
  static constexpr std::string_view kName = "hopper_bwd_convert_dq", kHeader = "device/hopper/bwd_convert_dq.h",
                                    kKernel = "HopperBwdConvertDq", kConfig = "HopperBwdConvertDqConfig",
                                    kParams = "HopperBwdConvertDqParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

struct Latent : HopperKernel<device::HopperLatentConfig, device::HopperLatentParams> {
  static constexpr std::string_view kName = "hopper_latent", kHeader = "device/hopper/latent.h",
                                    kKernel = "HopperLatent", kConfig = "HopperLatentConfig",
                                    kParams = "HopperLatentParams";
  static constexpr bool kWaits = true;
  static std::uint32_t threads(const Config&, gpu::Family) { return Config::kThreads; }
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

}  // namespace tilewise::backends::hopper
