// From a Problem to a list of steps on a GPU: kernels, of one room or several, and clears, over one workspace. A pure
// function of the problem and the device's description makes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <variant>
#include <vector>

#include "core/visibility.hpp"
#include "gpu/kernel.hpp"
#include "gpu/tensor_map.hpp"

namespace tilewise::gpu {

struct Extent3 {
  std::uint32_t x = 1, y = 1, z = 1;
  friend bool operator==(const Extent3&, const Extent3&) = default;
  [[nodiscard]] std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

/// Sets in a parameter block what only the call knows: addresses, strides, seeds. `call` points at the operation's
/// parameters.
using Bind = void (*)(const void* call, void* params);

/// A pointer of a block into the workspace.
struct WorkspacePointer {
  std::uint32_t param_offset;
  std::size_t offset;  ///< in bytes
};

/// One kernel launch.
struct Launch {
  KernelKey key;
  Extent3 grid, cluster;
  bool programmatic = false;             ///< may begin before the step before it has ended; the kernel waits itself
  std::uint32_t least_shared_bytes = 0;  ///< of a block of a programmatic launch: what it takes, needed or not
  std::vector<std::byte> params;         ///< the block, but for what `bind` and the workspace bring
  Bind bind = nullptr;
  std::vector<WorkspacePointer> workspace{};
  std::vector<TensorMapParameter> tensor_maps{};

  [[nodiscard]] std::uint32_t threads() const { return key.threads(); }
};

/// Zeros in a part of the workspace.
struct Clear {
  std::string_view part;
  std::size_t offset = 0, bytes = 0;
};

using Step = std::variant<Launch, Clear>;

/// Of the workspace and each of its parts, in bytes.
inline constexpr std::size_t kWorkspaceAlignment = 256;

struct WorkspacePart {
  std::string_view name;
  std::size_t offset = 0, bytes = 0;
};

struct TILEWISE_INTERNAL Lowering {
  std::vector<Step> steps;
  std::vector<WorkspacePart> parts;
  std::size_t workspace_bytes = 0;
  std::string schedule;  ///< one line for explain()
  double estimated_us = 0.0;

  /// Null where there is none of that name.
  [[nodiscard]] const WorkspacePart* part(std::string_view name) const;
  [[nodiscard]] std::vector<const Launch*> launches() const;
};

/// A lowering, or why kernels can't serve a problem whose features they have.
struct Outcome {
  Lowering lowering;
  std::string refusal;
};

/// Collects steps, then places the workspace that their tables of pointers speak of: regions of one name are one part,
/// as large as the largest of them.
class LoweringBuilder {
 public:
  /// `overlaps_steps`: the device lets kernels that wait themselves (Traits::kWaits) begin before the step before them
  /// has ended.
  explicit LoweringBuilder(bool overlaps_steps = false) : overlaps_steps_(overlaps_steps) {}

  /// `values`: the block as far as the problem decides it. A grid of no blocks is no step. Returns the launch for what
  /// most have no use for, or null.
  template <typename Traits>
  Launch* launch(Family family, const typename Traits::Config& config, Extent3 grid,
                 const typename Traits::Params& values, Bind bind) {
    if (grid.count() == 0) return nullptr;
    Launch launch;
    launch.key = key_of<Traits>(family, config);
    launch.grid = grid;
    launch.params.resize(sizeof values);
    std::memcpy(launch.params.data(), &values, sizeof values);
    launch.bind = bind;
    if constexpr (requires { Traits::kWaits; }) {
      launch.programmatic = Traits::kWaits && overlaps_steps_ && !lowering_.steps.empty();
    }
    lowering_.steps.emplace_back(std::move(launch));
    return &std::get<Launch>(lowering_.steps.back());
  }
  [[nodiscard]] std::size_t steps() const { return lowering_.steps.size(); }
  void clear(std::string_view part) { lowering_.steps.emplace_back(Clear{part}); }

  /// Another kernel's part of the schedule's line; more of the same part.
  void append_schedule(const std::string& text);
  void extend_schedule(const std::string& text) { lowering_.schedule += text; }
  [[nodiscard]] Lowering finish();

 private:
  bool overlaps_steps_;
  Lowering lowering_;
};

/// A launch's block as the kernel gets it, written to kMostParameterBytes bytes, which are aligned to 64; tensor maps
/// aside. `workspace` is aligned to kWorkspaceAlignment.
TILEWISE_INTERNAL void fill_params(const Launch& launch, const void* call, void* workspace, std::byte* block);

/// A launch's tensor map with what the call and the workspace bring.
[[nodiscard]] TILEWISE_INTERNAL TensorMap bound_map(const TensorMapParameter& parameter, const void* call,
                                                    void* workspace);

}  // namespace tilewise::gpu
