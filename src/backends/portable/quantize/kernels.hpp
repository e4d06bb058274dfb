// The kernels of src/device/quantize as the host knows them (see gpu::body_of()): what each pointer of a parameter
// block points to, and filling a block in for a call.
#pragma once

#include <cstdint>
#include <string_view>

#include "device/quantize/config.h"
#include "device/quantize/params.h"
#include "gpu/family.hpp"
#include "gpu/kernel.hpp"
#include "gpu/parameters.hpp"
#include "operations/quantize/params.hpp"

namespace tilewise::backends::portable {

void for_each_pointer(const device::QuantizeExtremesParams& p, const gpu::RegionVisitor& visit);
void for_each_pointer(const device::QuantizeWholeParams& p, const gpu::RegionVisitor& visit);
/// `quantizes`: else the other way, which reads what that writes.
void for_each_pointer(const device::QuantizeParams& p, bool quantizes, const gpu::RegionVisitor& visit);

/// The tensors of a call in a block. `quantizes` as above.
void bind(const operations::quantize::QuantizeParams& call, device::QuantizeExtremesParams& params);
void bind(const operations::quantize::QuantizeParams& call, device::QuantizeWholeParams& params);
void bind(const operations::quantize::QuantizeParams& call, bool quantizes, device::QuantizeParams& params);

/// NumberType of an element type of numbers.
[[nodiscard]] std::int32_t number_type_of(DType dtype);

struct QuantizeExtremes : gpu::KernelTraits<device::QuantizeConfig, device::QuantizeExtremesParams> {
  static constexpr std::string_view kName = "quantize_extremes", kHeader = "device/quantize/whole.h",
                                    kKernel = "QuantizeExtremes", kConfig = "QuantizeConfig",
                                    kParams = "QuantizeExtremesParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

struct QuantizeWholeScale : gpu::KernelTraits<device::QuantizeConfig, device::QuantizeWholeParams> {
  static constexpr std::string_view kName = "quantize_whole", kHeader = "device/quantize/whole.h",
                                    kKernel = "QuantizeWholeScale", kConfig = "QuantizeConfig",
                                    kParams = "QuantizeWholeParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, visit);
  }
};

struct QuantizeBlocks : gpu::KernelTraits<device::QuantizeConfig, device::QuantizeParams> {
  static constexpr std::string_view kName = "quantize", kHeader = "device/quantize/quantize.h", kKernel = "Quantize",
                                    kConfig = "QuantizeConfig", kParams = "QuantizeParams";
  static std::uint32_t shared_bytes(const Config& config, gpu::Family family) {
    return config.together() ? threads(config, family) * static_cast<std::uint32_t>(sizeof(std::int32_t)) : 0;
  }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, true, visit);
  }
};

struct Dequantize : gpu::KernelTraits<device::QuantizeConfig, device::QuantizeParams> {
  static constexpr std::string_view kName = "dequantize", kHeader = "device/quantize/dequantize.h",
                                    kKernel = "Dequantize", kConfig = "QuantizeConfig", kParams = "QuantizeParams";
  static std::uint32_t shared_bytes(const Config&, gpu::Family) { return 0; }
  static void for_each_pointer(const Params& params, const gpu::RegionVisitor& visit) {
    portable::for_each_pointer(params, false, visit);
  }
};

}  // namespace tilewise::backends::portable
