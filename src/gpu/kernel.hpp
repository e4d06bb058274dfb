// A kernel of src/device as the host knows it, and the key that decides what is compiled.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "gpu/family.hpp"
#include "gpu/parameters.hpp"
#include "jit/kernel_source.hpp"

namespace tilewise::gpu {

inline constexpr std::size_t kMostConfigInts = 48;
/// Of a parameter block, as every driver takes it.
inline constexpr std::size_t kMostParameterBytes = 4096;

/// Made of a kernel's traits by body_of(); its address stands for the kernel.
struct KernelBody {
  std::string_view name;                    ///< "forward": in symbols, messages and tables
  std::string_view header;                  ///< "device/attention/forward.h"
  std::string_view kernel, config, params;  ///< the C++ names: a class template of Ops and a config, and two structs
  std::size_t config_ints, params_bytes;
  /// "c.head_dim = 64; ...": the assignments that make this config.
  std::string (*config_text)(const std::int32_t* config);
  std::uint32_t (*threads)(const std::int32_t* config, Family family);
  std::uint32_t (*shared_bytes)(const std::int32_t* config, Family family);
  std::vector<ParameterField> (*fields)();
  void (*for_each_pointer)(const void* params, const RegionVisitor& visit);
};

/// The part of a launch that decides what is compiled: equal keys share one compiled kernel. No lengths, batch, heads
/// or strides stand in it.
struct KernelKey {
  const KernelBody* body = nullptr;
  Family family = Family::sm80;
  std::array<std::int32_t, kMostConfigInts> config{};
  /// Source that the stub has before the kernel: what a problem brings of its own, and the config speaks of.
  std::string definitions{};

  friend bool operator==(const KernelKey&, const KernelKey&) = default;
  [[nodiscard]] std::uint32_t threads() const { return body->threads(config.data(), family); }
  /// Of a block; the generated stub asserts it against the kernel's own struct.
  [[nodiscard]] std::uint32_t shared_bytes() const { return body->shared_bytes(config.data(), family); }
  /// The part of it that a launch asks the driver for: AMD's stubs declare theirs, so that it stands in the code
  /// object.
  [[nodiscard]] std::uint32_t dynamic_shared_bytes() const {
    return traits_of(family).device == DeviceType::cuda ? shared_bytes() : 0;
  }
};

template <typename Config>
[[nodiscard]] Config config_from(const std::int32_t* ints) {
  static_assert(std::is_trivially_copyable_v<Config> && sizeof(Config) % sizeof(std::int32_t) == 0);
  Config config;
  std::memcpy(static_cast<void*>(&config), ints, sizeof config);  // its defaults make it non-trivial to construct
  return config;
}

/// A name of parts, made when the library is compiled.
struct JoinedName {
  std::array<char, 96> letters{};
  std::size_t size = 0;
  template <typename... Parts>
  explicit constexpr JoinedName(const Parts&... parts) {
    const auto add = [this](std::string_view part) {
      for (const char letter : part) letters[size++] = letter;
    };
    (add(parts), ...);
  }
  [[nodiscard]] constexpr std::string_view view() const { return {letters.data(), size}; }
};

/// What most kernels' traits have in common; see body_of().
template <typename Config_, typename Params_>
struct KernelTraits {
  using Config = Config_;
  using Params = Params_;
  static constexpr bool kWaits = false;  ///< itself, for the step before it
  static std::uint32_t threads(const Config& config, Family family) {
    return static_cast<std::uint32_t>(config.waves) * lanes(family);
  }
};

/// Traits are a struct of the kernel, in its backend:
///   Config, Params                      structs of src/device; a Config is 32-bit integers alone
///   kName, kHeader, kKernel, kConfig, kParams
///   threads(config, family), shared_bytes(config, family)
///   for_each_pointer(params, visit)     the table of pointers; see parameters.hpp
template <typename Traits>
[[nodiscard]] const KernelBody& body_of() {
  using Config = typename Traits::Config;
  using Params = typename Traits::Params;
  static_assert(sizeof(Config) <= kMostConfigInts * sizeof(std::int32_t) && sizeof(Params) <= kMostParameterBytes);
  static_assert(
      [] {
        Config config;
        std::size_t fields = 0;
        Config::for_each_field(config, [&fields](std::string_view, std::int32_t&) { ++fields; });
        return fields * sizeof(std::int32_t) == sizeof(Config);
      }(),
      "for_each_field() lists every field of a config");
  static constexpr KernelBody kBody{
      Traits::kName,
      Traits::kHeader,
      Traits::kKernel,
      Traits::kConfig,
      Traits::kParams,
      sizeof(Config) / sizeof(std::int32_t),
      sizeof(Params),
      [](const std::int32_t* ints) {
        const auto config = config_from<Config>(ints);
        std::string text;
        Config::for_each_field(config, [&text](std::string_view name, const std::int32_t& value) {
          core::append(text, core::concat("c.", name, " = ", value, "; "));
        });
        return text;
      },
      [](const std::int32_t* ints, Family family) { return Traits::threads(config_from<Config>(ints), family); },
      [](const std::int32_t* ints, Family family) { return Traits::shared_bytes(config_from<Config>(ints), family); },
      [] { return fields_of<Params>(); },
      [](const void* params, const RegionVisitor& visit) {
        Traits::for_each_pointer(*static_cast<const Params*>(params), visit);
      }};
  return kBody;
}

template <typename Traits>
[[nodiscard]] KernelKey key_of(Family family, const typename Traits::Config& config) {
  KernelKey key;
  key.body = &body_of<Traits>();
  key.family = family;
  std::memcpy(key.config.data(), &config, sizeof config);
  return key;
}

/// The config of a key, which must be of this kernel.
template <typename Traits>
[[nodiscard]] typename Traits::Config config_of(const KernelKey& key) {
  return config_from<typename Traits::Config>(key.config.data());
}

template <typename Traits>
[[nodiscard]] bool is_kernel(const KernelKey& key) {
  return key.body == &body_of<Traits>();
}

/// The generated source of a kernel: includes the machine's operations and the body, defines one extern "C" kernel.
/// `host`: for the emulation of the machine instead of the device.
[[nodiscard]] jit::KernelSource make_source(const KernelKey& key, bool host);

}  // namespace tilewise::gpu
