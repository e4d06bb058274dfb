// Families of matrix instructions: which files of src/device/tile a kernel is made with. A property of an
// implementation, not of a device: a device may have the instructions of several.
#pragma once

#include <cstdint>
#include <string_view>

#include "tilewise/tensor.hpp"

namespace tilewise::gpu {

/// mma.sync; MFMA; gfx11's WMMA; wgmma; gfx12's WMMA; gfx1250's. Bits of what an architecture has.
enum class Family : std::uint8_t { sm80 = 1, cdna = 2, rdna = 4, sm90 = 8, rdna4 = 16, gfx1250 = 32 };

struct FamilyTraits {
  std::string_view title;  ///< "AMD's CDNA", in messages
  DeviceType device;
  std::uint32_t lanes;  ///< of a wave
  std::string_view machine_header, machine, host_header, host_machine, ops_header, ops;
};

[[nodiscard]] constexpr FamilyTraits traits_of(Family family) {
  using enum DeviceType;
  constexpr std::string_view kHostHeader = "device/tile/machine_host.h", kOfHalves = "device/tile/ops_rdna4.h";
  switch (family) {
    case Family::sm80:
      break;
    case Family::cdna:
      return {"AMD's CDNA",
              hip,
              64,
              "device/tile/machine_cdna.h",
              "CdnaMachine",
              kHostHeader,
              "HostCdnaMachine",
              "device/tile/ops_cdna.h",
              "CdnaOps"};
    case Family::sm90:
      return {"NVIDIA's Hopper",
              cuda,
              32,
              "device/sm90/machine.h",
              "HopperMachine",
              "device/sm90/machine_host.h",
              "HostSm90Machine",
              "device/sm90/ops.h",
              "Sm90Ops"};
    case Family::rdna:
      return {"AMD's RDNA3",
              hip,
              32,
              "device/tile/machine_rdna.h",
              "RdnaMachine",
              kHostHeader,
              "HostRdnaMachine",
              "device/tile/ops_rdna.h",
              "RdnaOps"};
    case Family::rdna4:
      return {"AMD's RDNA4",      hip,       32,        "device/tile/machine_rdna4.h", "Rdna4Machine", kHostHeader,
              "HostRdna4Machine", kOfHalves, "Rdna4Ops"};
    case Family::gfx1250:
      return {
          "AMD's gfx1250",      hip,       32,        "device/tile/machine_gfx1250.h", "Gfx1250Machine", kHostHeader,
          "HostGfx1250Machine", kOfHalves, "Rdna4Ops"};
  }
  return {"NVIDIA's",
          cuda,
          32,
          "device/tile/machine_sm80.h",
          "Sm80Machine",
          kHostHeader,
          "HostSm80Machine",
          "device/tile/ops_sm80.h",
          "Sm80Ops"};
}

/// Whether it multiplies tiles of 16 x 16 in waves of 32: AMD's WMMA, whose schedules are alike.
[[nodiscard]] constexpr bool has_wmma(Family family) {
  return family == Family::rdna || family == Family::rdna4 || family == Family::gfx1250;
}

[[nodiscard]] constexpr std::uint32_t lanes(Family family) { return traits_of(family).lanes; }

}  // namespace tilewise::gpu
