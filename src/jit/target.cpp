// The list of architectures, and reading their names.
#include "jit/target.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "core/spelling.hpp"

namespace tilewise::jit {
namespace {

struct Known {
  TargetKind kind;
  std::string_view architecture;
};
constexpr std::array<Known, 26> kKnown = {{
    {TargetKind::cuda, "sm_80"},  {TargetKind::cuda, "sm_86"},  {TargetKind::cuda, "sm_87"},
    {TargetKind::cuda, "sm_89"},  {TargetKind::cuda, "sm_90"},  {TargetKind::cuda, "sm_90a"},
    {TargetKind::cuda, "sm_100"}, {TargetKind::cuda, "sm_103"}, {TargetKind::cuda, "sm_110"},
    {TargetKind::cuda, "sm_120"}, {TargetKind::cuda, "sm_121"}, {TargetKind::hip, "gfx90a"},
    {TargetKind::hip, "gfx942"},  {TargetKind::hip, "gfx950"},  {TargetKind::hip, "gfx1100"},
    {TargetKind::hip, "gfx1101"}, {TargetKind::hip, "gfx1102"}, {TargetKind::hip, "gfx1103"},
    {TargetKind::hip, "gfx1150"}, {TargetKind::hip, "gfx1151"}, {TargetKind::hip, "gfx1152"},
    {TargetKind::hip, "gfx1153"}, {TargetKind::hip, "gfx1200"}, {TargetKind::hip, "gfx1201"},
    {TargetKind::hip, "gfx1250"}, {TargetKind::host, "host"},
}};

}  // namespace

Target parse_target(std::string_view text) {
  const auto found = std::ranges::find(kKnown, text, &Known::architecture);
  if (found != kKnown.end()) return {found->kind, std::string(found->architecture)};
  std::vector<std::string_view> names;
  for (const Known& known : kKnown) names.push_back(known.architecture);
  core::refuse_word("target", text, names);
}

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const Known& known : kKnown) names.emplace_back(known.architecture);
  return names;
}

std::string to_string(const Target& target) {
  switch (target.kind) {
    case TargetKind::cuda:
      return "CUDA " + target.architecture;
    case TargetKind::hip:
      return "HIP " + target.architecture;
    case TargetKind::host:
      break;
  }
  return "the host";
}

}  // namespace tilewise::jit
