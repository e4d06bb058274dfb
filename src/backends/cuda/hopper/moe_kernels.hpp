// The kernels of src/device/moe/sm90, and that of products which the backward pass takes, as the host knows them (see
// gpu::body_of()): what each pointer of a parameter block points to, and filling a block in for a call.
#pragma once

#include <cstdint>
#include <string_view>

#include "backends/cuda/hopper/linear_kernels.hpp"
#include "backends/portable/moe/kernels.hpp"
#include "device/moe/sm90/backward/config.h"
#include "device/moe/sm90/backward/params.h"
#include "device/moe/sm90/config.h"
#include "device/moe/sm90/params.h"
#include "gpu/kernel.hpp"
#include "operations/moe/params.hpp"

namespace tilewise::backends::hopper {

/// Parts of the workspace that tensor maps are of too.
inline constexpr std::string_view kMoeGathered = "gathered", kMoeH = "h", kMoeParts = "parts", kMoeHScales = "h_scales",
                                  kMoeGatheredDout = "gathered_dout", kMoeProducts = "dproducts";

/// The first product of fp8 leaves scales for the second one.
[[nodiscard]] constexpr bool is_first(const device::MoeScaledParams& p) { return p.value_scales.rows > 0; }

void for_each_pointer(const device::MoeSortParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeGatherParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeLayerParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeScaledParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeCombineParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeDecodeParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeSlopesParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeSavedSlopesParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeDweightsParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::MoeDwParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::ExpertDbiasParams& p, const gpu::RegionVisitor& visit);
/// Of a gather of dout's rows instead of x's.
void for_each_pointer_of_dout(const device::MoeGatherParams& p, const gpu::RegionVisitor& visit);
/// Of a sum of parts of dx instead of out's.
void for_each_pointer_of_dx(const device::MoeCombineParams& p, const gpu::RegionVisitor& visit);
/// Of a product of experts' rows in the workspace, whose sums are a part of it too.
void for_each_pointer_of_product(const device::GroupedGemmParams& p, std::string_view out,
                                 const gpu::RegionVisitor& visit);

/// The tensors of a call in a block.
void bind(const operations::moe::MoeParams& call, device::MoeSortParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeGatherParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeLayerParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeScaledParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeCombineParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeDecodeParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeSlopesParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeSavedSlopesParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeDweightsParams& params);
void bind(const operations::moe::MoeParams& call, device::MoeDwParams& params);
void bind_dout(const operations::moe::MoeParams& call, device::MoeGatherParams& params);
void bind_dx(const operations::moe::MoeParams& call, device::MoeCombineParams& params);

template <typename Config_, typename Params_>
struct MoeKernel : gpu::KernelTraits<Config_, Params_> {
  static constexpr bool kWaits = true;
  static std::uint32_t threads(const Config_& config, gpu::Family) {
    return static_cast<std::uint32_t>(config.threads());
  }
  static void for_each_pointer(const Params_& params, const gpu::RegionVisitor& visit) {
    hopper::for_each_pointer(params, visit);
  }
  static void bind_call(const operations::moe::MoeParams& call, Params_& params) { hopper::bind(call, params); }
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

struct MoeGatherDout : MoeGather {
  static constexpr std::string_view kName = "moe_gather_dout";
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    for_each_pointer_of_dout(params, visit);
  }
  static void bind_call(const operations::moe::MoeParams& call, Params& params) { bind_dout(call, params); }
};

struct MoeLayer : MoeKernel<device::MoeLayerConfig, device::MoeLayerParams> {
  static constexpr std::string_view kName = "moe_layer", kHeader = "device/moe/sm90/layer.h", kKernel = "Sm90MoeLayer",
                                    kConfig = "MoeLayerConfig", kParams = "MoeLayerParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct MoeScaledProduct : MoeKernel<device::MoeScaledConfig, device::MoeScaledParams> {
  static constexpr std::string_view kName = "moe_scaled_product", kHeader = "device/moe/sm90/scaled_product.h",
                                    kKernel = "Sm90MoeScaledProduct", kConfig = "MoeScaledConfig",
                                    kParams = "MoeScaledParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct MoeCombine : MoeKernel<device::MoeCombineConfig, device::MoeCombineParams> {
  static constexpr std::string_view kName = "moe_combine", kHeader = "device/moe/sm90/combine_launch.h",
                                    kKernel = "Sm90MoeCombine", kConfig = "MoeCombineConfig",
                                    kParams = "MoeCombineParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

struct MoeDecode : MoeKernel<device::MoeDecodeConfig, device::MoeDecodeParams> {
  static constexpr std::string_view kName = "moe_decode", kHeader = "device/moe/sm90/decode.h",
                                    kKernel = "Sm90MoeDecode", kConfig = "MoeDecodeConfig", kParams = "MoeDecodeParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct MoeSlopes : MoeKernel<device::MoeSlopesConfig, device::MoeSlopesParams> {
  static constexpr std::string_view kName = "moe_slopes", kHeader = "device/moe/sm90/backward/slopes.h",
                                    kKernel = "Sm90MoeSlopes", kConfig = "MoeSlopesConfig", kParams = "MoeSlopesParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct MoeSavedSlopes : MoeKernel<device::MoeSavedSlopesConfig, device::MoeSavedSlopesParams> {
  static constexpr std::string_view kName = "moe_saved_slopes", kHeader = "device/moe/sm90/backward/saved_slopes.h",
                                    kKernel = "Sm90MoeSavedSlopes", kConfig = "MoeSavedSlopesConfig",
                                    kParams = "MoeSavedSlopesParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

struct MoeDweights : MoeKernel<device::MoeDweightsConfig, device::MoeDweightsParams> {
  static constexpr std::string_view kName = "moe_dweights", kHeader = "device/moe/sm90/backward/dweights.h",
                                    kKernel = "Sm90MoeDweights", kConfig = "MoeDweightsConfig",
                                    kParams = "MoeDweightsParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

struct MoeDw : MoeKernel<device::MoeDwConfig, device::MoeDwParams> {
  static constexpr std::string_view kName = "moe_dw", kHeader = "device/moe/sm90/backward/dw.h", kKernel = "Sm90MoeDw",
                                    kConfig = "MoeDwConfig", kParams = "MoeDwParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

/// The portable kernel, on rows that a launch before it has gathered or made.
struct MoeDbias : portable::ExpertDbiasKernel {
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    hopper::for_each_pointer(params, visit);
  }
};

/// Of gradients of x.
struct MoeSum : MoeCombine {
  static constexpr std::string_view kName = "moe_sum";
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    for_each_pointer_of_dx(params, visit);
  }
  static void bind_call(const operations::moe::MoeParams& call, Params& params) { bind_dx(call, params); }
};

/// Products of the backward pass by the kernel of grouped linear layers: rows of dout times down, and of the first
/// product's gradient times gate_up.
enum class MoeProductOf : std::uint8_t { dout, products };

/// Rows, offsets and sums are parts of the workspace. All that a call brings are maps.
template <MoeProductOf kOf>
struct MoeProduct : MoeKernel<device::GemmConfig, device::GroupedGemmParams> {
  static constexpr bool kOfDout = kOf == MoeProductOf::dout;
  static constexpr std::string_view kName = kOfDout ? "moe_dh" : "moe_dx", kOut = kOfDout ? kMoeH : kMoeParts,
                                    kHeader = "device/gemm/sm90/grouped_product.h", kKernel = "Sm90GroupedGemm",
                                    kConfig = "GemmConfig", kParams = "GroupedGemmParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family) {
    return GroupedGemm::shared_bytes(config, family);
  }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    for_each_pointer_of_product(params, kOut, visit);
  }
  static void bind_call(const operations::moe::MoeParams&, Params&) {}
};

}  // namespace tilewise::backends::hopper
