// The kernels of src/device/gemm/sm90 as the host knows them (see gpu::body_of()): what each pointer of a parameter
// block points to, filling a block in for a call, and tensor maps.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/gemm/sm90/config.h"
#include "device/gemm/sm90/params.h"
#include "gpu/kernel.hpp"
#include "gpu/lowering.hpp"
#include "operations/linear/params.hpp"

namespace tilewise::backends::hopper {

/// Of a launch.
inline constexpr std::int64_t kMostTiles = std::int64_t{1} << 30;
/// Elements of a scale, along k and along n.
inline constexpr std::int32_t kScaleBlock = 128;
/// Rows of x whose scales lie side by side, a multiple of 16 bytes of them.
[[nodiscard]] constexpr std::int64_t padded_rows(std::int64_t rows) { return (rows + 3) / 4 * 4; }

/// Parts of the workspace.
inline constexpr std::string_view kRowOffsets = "row_offsets", kXScales = "x_scales", kWScales = "w_scales";

void for_each_pointer(const device::GemmPrepareParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::GemmParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::GroupedGemmParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::ScaledGemmParams& p, const gpu::RegionVisitor& visit);

/// The tensors of a call in a block.
void bind(const operations::linear::LinearParams& call, device::GemmPrepareParams& params);
void bind(const operations::linear::LinearParams& call, device::GemmParams& params);
void bind(const operations::linear::LinearParams& call, device::GroupedGemmParams& params);
void bind(const operations::linear::LinearParams& call, device::ScaledGemmParams& params);

/// The maps of x, w and out, and of x's scales where the product is a scaled one.
void add_linear_maps(const device::GemmConfig& config, DType dtype, DType out_dtype, bool scaled, gpu::Launch& launch);

/// Those of a product whose sides are swapped: x comes in boxes of several heights.
void add_grouped_maps(const device::GemmConfig& config, DType dtype, DType out_dtype, gpu::Launch& launch);

template <typename Config_, typename Params_>
struct LinearKernel : gpu::KernelTraits<Config_, Params_> {
  static constexpr bool kWaits = true;
  static std::uint32_t threads(const Config_& config, gpu::Family) {
    return static_cast<std::uint32_t>(config.threads());
  }
  static void for_each_pointer(const Params_& params, const gpu::RegionVisitor& visit) {
    hopper::for_each_pointer(params, visit);
  }
};

struct GemmPrepare : LinearKernel<device::GemmPrepareConfig, device::GemmPrepareParams> {
  static constexpr std::string_view kName = "gemm_prepare", kHeader = "device/gemm/sm90/prepare.h",
                                    kKernel = "Sm90GemmPrepare", kConfig = "GemmPrepareConfig",
                                    kParams = "GemmPrepareParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
};

struct Gemm : LinearKernel<device::GemmConfig, device::GemmParams> {
  static constexpr std::string_view kName = "gemm", kHeader = "device/gemm/sm90/product.h", kKernel = "Sm90Gemm",
                                    kConfig = "GemmConfig", kParams = "GemmParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct GroupedGemm : LinearKernel<device::GemmConfig, device::GroupedGemmParams> {
  static constexpr std::string_view kName = "grouped_gemm", kHeader = "device/gemm/sm90/grouped_product.h",
                                    kKernel = "Sm90GroupedGemm", kConfig = "GemmConfig", kParams = "GroupedGemmParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

struct ScaledGemm : LinearKernel<device::GemmConfig, device::ScaledGemmParams> {
  static constexpr std::string_view kName = "scaled_gemm", kHeader = "device/gemm/sm90/scaled_product.h",
                                    kKernel = "Sm90ScaledGemm", kConfig = "GemmConfig", kParams = "ScaledGemmParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family);
};

}  // namespace tilewise::backends::hopper
