// The attention kernels of src/device/attention as the host knows them: see gpu::body_of().
#pragma once

#include <cstdint>
#include <string_view>

#include "backends/portable/attention/parameters.hpp"
#include "device/attention/config.h"
#include "gpu/kernel.hpp"

namespace tilewise::backends::portable {

using gpu::Family;

/// What the kernels' traits have in common.
template <typename Config, typename Params>
struct AttentionKernel : gpu::KernelTraits<Config, Params> {
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

/// Of a stage of selected keys.
template <typename Config>
[[nodiscard]] std::int32_t selected_bytes(const Config& c) {
  return c.selects ? c.block_n * (4 + 16 * device::selected_places(c)) : 0;
}

struct Forward : AttentionKernel<device::ForwardConfig, device::ForwardParams> {
  static constexpr std::string_view kName = "forward", kHeader = "device/attention/forward.h", kKernel = "Forward",
                                    kConfig = "ForwardConfig", kParams = "ForwardParams";
  /// `beside_tiles`: bytes of a stage that are no tile of keys or values; of attention those of selected keys, each
  /// with its place and two addresses.
  static std::uint32_t shared_bytes(const Config& config, Family family, std::int32_t beside_tiles);
  static std::uint32_t shared_bytes(const Config& c, Family family) {
    return shared_bytes(c, family, selected_bytes(c));
  }
};

/// A kernel of scores with functions: the stub brings their source as `ScoreFunctions`.
template <typename Kernel>
struct WithFunctions : Kernel {
  using Params = device::WithTables<typename Kernel::Params>;
  static constexpr gpu::JoinedName kConfigName{"WithFunctions<", Kernel::kConfig, ", ScoreFunctions>"},
      kParamsName{"WithTables<tilewise::device::", Kernel::kParams, ">"};
  static constexpr std::string_view kConfig = kConfigName.view(), kParams = kParamsName.view();

  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    Kernel::for_each_pointer(params, visit);
    const auto* block = reinterpret_cast<const std::byte*>(&params);
    portable::visit_tile_classes(params.tile_classes, block, visit);
    portable::for_each_table(params.tables, block, visit);
  }
};

struct MaskTiles : AttentionKernel<device::MaskTilesConfig, device::MaskTilesParams> {
  static constexpr std::string_view kName = "mask_tiles", kHeader = "device/attention/mask_tiles.h",
                                    kKernel = "MaskTiles", kConfig = "MaskTilesConfig", kParams = "MaskTilesParams";
  static std::uint32_t shared_bytes(const Config&, Family) { return 0; }
};

struct BlockStates : AttentionKernel<device::BlockStatesConfig, device::BlockStatesParams> {
  static constexpr std::string_view kName = "block_states", kHeader = "device/attention/block_states.h",
                                    kKernel = "BlockStates", kConfig = "BlockStatesConfig",
                                    kParams = "BlockStatesParams";
  static std::uint32_t shared_bytes(const Config&, Family) { return 0; }
};

struct Combine : AttentionKernel<device::CombineConfig, device::CombineParams> {
  static constexpr std::string_view kName = "combine", kHeader = "device/attention/combine.h", kKernel = "Combine",
                                    kConfig = "CombineConfig", kParams = "CombineParams";
  static constexpr bool kWaits = true;
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

struct BwdPreprocess : AttentionKernel<device::BwdPreprocessConfig, device::BwdPreprocessParams> {
  static constexpr std::string_view kName = "bwd_preprocess", kHeader = "device/attention/bwd_preprocess.h",
                                    kKernel = "BwdPreprocess", kConfig = "BwdPreprocessConfig",
                                    kParams = "BwdPreprocessParams";
  static std::uint32_t shared_bytes(const Config&, Family) { return 0; }
};

struct BwdDq : AttentionKernel<device::BwdDqConfig, device::BwdDqParams> {
  static constexpr std::string_view kName = "bwd_dq", kHeader = "device/attention/bwd_dq.h", kKernel = "BwdDq",
                                    kConfig = "BwdDqConfig", kParams = "BwdDqParams";
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

struct BwdDkdv : AttentionKernel<device::BwdDkdvConfig, device::BwdDkdvParams> {
  static constexpr std::string_view kName = "bwd_dkdv", kHeader = "device/attention/bwd_dkdv.h", kKernel = "BwdDkdv",
                                    kConfig = "BwdDkdvConfig", kParams = "BwdDkdvParams";
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

struct Bwd : AttentionKernel<device::BwdConfig, device::BwdParams> {
  static constexpr std::string_view kName = "bwd", kHeader = "device/attention/bwd.h", kKernel = "Bwd",
                                    kConfig = "BwdConfig", kParams = "BwdParams";
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

struct BwdConvertDq : AttentionKernel<device::BwdConvertDqConfig, device::BwdConvertDqParams> {
  static constexpr std::string_view kName = "bwd_convert_dq", kHeader = "device/attention/bwd_convert_dq.h",
                                    kKernel = "BwdConvertDq", kConfig = "BwdConvertDqConfig",
                                    kParams = "BwdConvertDqParams";
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

struct BwdConvertDkdv : AttentionKernel<device::BwdConvertDkdvConfig, device::BwdConvertDkdvParams> {
  static constexpr std::string_view kName = "bwd_convert_dkdv", kHeader = "device/attention/bwd_convert_dkdv.h",
                                    kKernel = "BwdConvertDkdv", kConfig = "BwdConvertDkdvConfig",
                                    kParams = "BwdConvertDkdvParams";
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

struct BwdConvertSelected : AttentionKernel<device::BwdConvertSelectedConfig, device::BwdConvertSelectedParams> {
  static constexpr std::string_view kName = "bwd_convert_selected", kHeader = "device/attention/bwd_convert_selected.h",
                                    kKernel = "BwdConvertSelected", kConfig = "BwdConvertSelectedConfig",
                                    kParams = "BwdConvertSelectedParams";
  static std::uint32_t shared_bytes(const Config&, Family) { return 0; }
};

struct BwdDbias : AttentionKernel<device::BwdDbiasConfig, device::BwdDbiasParams> {
  static constexpr std::string_view kName = "bwd_dbias", kHeader = "device/attention/bwd_dbias.h", kKernel = "BwdDbias",
                                    kConfig = "BwdDbiasConfig", kParams = "BwdDbiasParams";
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

/// Of one look-up of score_mod: the stub brings its derivative and indices.
struct BwdDtable : AttentionKernel<device::BwdDtableConfig, device::BwdDtableParams> {
  static constexpr std::string_view kName = "bwd_dtable", kHeader = "device/attention/bwd_dtable.h",
                                    kKernel = "BwdDtable", kConfig = "BwdDtableConfig", kParams = "BwdDtableParams";
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

struct BwdTableSums : AttentionKernel<device::BwdTableSumsConfig, device::BwdTableSumsParams> {
  static constexpr std::string_view kName = "bwd_table_sums", kHeader = "device/attention/bwd_table_sums.h",
                                    kKernel = "BwdTableSums", kConfig = "BwdTableSumsConfig",
                                    kParams = "BwdTableSumsParams";
  static std::uint32_t shared_bytes(const Config&, Family) { return 0; }
};

struct BwdDsink : AttentionKernel<device::BwdDsinkConfig, device::BwdDsinkParams> {
  static constexpr std::string_view kName = "bwd_dsink", kHeader = "device/attention/bwd_dsink.h", kKernel = "BwdDsink",
                                    kConfig = "BwdDsinkConfig", kParams = "BwdDsinkParams";
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

struct ClearRest : AttentionKernel<device::ClearRestConfig, device::ClearRestParams> {
  static constexpr std::string_view kName = "clear_rest", kHeader = "device/attention/clear_rest.h",
                                    kKernel = "ClearRest", kConfig = "ClearRestConfig", kParams = "ClearRestParams";
  static std::uint32_t shared_bytes(const Config& config, Family family);
};

/// Calls visit.template operator()<Traits>() for each of them.
template <typename Visit>
void for_each_kernel(Visit&& visit) {
  visit.template operator()<Forward>();
  visit.template operator()<Combine>();
  visit.template operator()<BwdPreprocess>();
  visit.template operator()<BwdDq>();
  visit.template operator()<BwdDkdv>();
  visit.template operator()<Bwd>();
  visit.template operator()<BwdConvertDq>();
  visit.template operator()<BwdConvertDkdv>();
  visit.template operator()<BwdConvertSelected>();
  visit.template operator()<BwdDbias>();
  visit.template operator()<BwdTableSums>();
  visit.template operator()<BwdDsink>();
  visit.template operator()<ClearRest>();
  visit.template operator()<BlockStates>();
  visit.template operator()<WithFunctions<MaskTiles>>();
  visit.template operator()<WithFunctions<Forward>>();
  visit.template operator()<WithFunctions<BwdDq>>();
  visit.template operator()<WithFunctions<BwdDkdv>>();
  visit.template operator()<WithFunctions<Bwd>>();
  visit.template operator()<WithFunctions<BwdDbias>>();
}

}  // namespace tilewise::backends::portable
