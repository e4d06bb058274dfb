// The kernels of src/device/kv_cache as the host knows them: see gpu::body_of().
#pragma once

#include <cstdint>
#include <string_view>

#include "backends/portable/kv_cache/parameters.hpp"
#include "device/kv_cache/config.h"
#include "gpu/kernel.hpp"

namespace tilewise::backends::portable {

/// What the kernels' traits have in common.
template <typename Config, typename Params>
struct KvCacheKernel : gpu::KernelTraits<Config, Params> {
  static constexpr bool kWaits = true;
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

struct KvCacheForward : KvCacheKernel<device::KvCacheForwardConfig, device::KvCacheForwardParams> {
  static constexpr std::string_view kName = "kv_cache_forward", kHeader = "device/kv_cache/forward.h",
                                    kKernel = "KvCacheForward", kConfig = "KvCacheForwardConfig",
                                    kParams = "KvCacheForwardParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
  /// What a stage holds for each key beside 16-bit elements of tiles: bytes that are not widened yet, or half of the
  /// tiles less where they are bytes, or all of them where they go to registers; two scales, two addresses, and the
  /// number of a selected one.
  static std::int32_t bytes_beside_tiles(const Config& c) {
    const std::int32_t bytes = c.head_dim + c.head_dim_v;
    return c.block_n * ((c.keeps_bytes        ? bytes
                         : c.multiplies_bytes ? -bytes
                         : c.direct_operands  ? -2 * bytes
                                              : 0) +
                        (c.scales == device::kTokenScales ? 8 : 0) +
                        (device::lies_in_rows(c) ? 0 : 16 * device::places_a_stage(c)) + (c.selects ? 4 : 0));
  }
};

/// Before a forward kernel with functions: what mask_mod leaves of its tiles.
struct KvCacheMaskTiles : KvCacheKernel<device::KvCacheMaskTilesConfig, device::KvCacheMaskTilesParams> {
  static constexpr std::string_view kName = "kv_cache_mask_tiles", kHeader = "device/kv_cache/mask_tiles.h",
                                    kKernel = "KvCacheMaskTiles", kConfig = "KvCacheMaskTilesConfig",
                                    kParams = "KvCacheMaskTilesParams";
  static constexpr bool kWaits = false;
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

struct KvCacheCombine : KvCacheKernel<device::KvCacheCombineConfig, device::KvCacheCombineParams> {
  static constexpr std::string_view kName = "kv_cache_combine", kHeader = "device/kv_cache/combine.h",
                                    kKernel = "KvCacheCombine", kConfig = "KvCacheCombineConfig",
                                    kParams = "KvCacheCombineParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct AppendKv : KvCacheKernel<device::AppendKvConfig, device::AppendKvParams> {
  static constexpr std::string_view kName = "append_kv", kHeader = "device/kv_cache/append.h", kKernel = "AppendKv",
                                    kConfig = "AppendKvConfig", kParams = "AppendKvParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

/// Of queries that another kernel's TMA is to find rotated.
struct RotateQueries : KvCacheKernel<device::AppendKvConfig, device::RotateQueriesParams> {
  static constexpr std::string_view kName = "rotate_queries", kHeader = "device/kv_cache/rotate_queries.h",
                                    kKernel = "RotateQueries", kConfig = "AppendKvConfig",
                                    kParams = "RotateQueriesParams", kRotated = "q_rotated";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

/// Calls visit.template operator()<Traits>() for each of them.
template <typename Visit>
void for_each_kv_cache_kernel(Visit&& visit) {
  visit.template operator()<KvCacheForward>();
  visit.template operator()<KvCacheMaskTiles>();
  visit.template operator()<KvCacheCombine>();
  visit.template operator()<AppendKv>();
  visit.template operator()<RotateQueries>();
}

}  // namespace tilewise::backends::portable
