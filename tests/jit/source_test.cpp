// Targets, the embedded device headers, and what a kernel's hash depends on.
#include <gtest/gtest.h>

#include <algorithm>

#include "jit/complete_source.hpp"
#include "support.hpp"

namespace tilewise::jit {
namespace {

TEST(Target, ReadsEveryArchitectureItLists) {
  ASSERT_FALSE(known_architectures().empty());
  for (const std::string& name : known_architectures()) {
    const Target target = parse_target(name);
    EXPECT_EQ(target.architecture, name);
    EXPECT_EQ(target.kind, name.starts_with("sm_")   ? TargetKind::cuda
                           : name.starts_with("gfx") ? TargetKind::hip
                                                     : TargetKind::host);
  }
  EXPECT_EQ(to_string(parse_target("sm_90a")), "CUDA sm_90a");
  EXPECT_EQ(to_string(parse_target("gfx942")), "HIP gfx942");
}

TEST(Target, ListsWhatIsKnown) {
  for (const char* name : {"", "sm_70", "sm_90b", "gfx906", "SM_80", "sm_80 "}) {
    const std::string message = error_of(ErrorCode::invalid_argument, [name] { (void)parse_target(name); });
    for (const char* part : {"target: must be one of sm_80, ", "gfx942", "host", name}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
  }
}

TEST(DeviceSources, AreTheHeadersSortedByPath) {
  const auto sources = device_sources();
  ASSERT_FALSE(sources.empty());
  EXPECT_TRUE(std::ranges::is_sorted(sources, {}, &DeviceSource::path));
  const auto mask = std::ranges::find(sources, "device/common/mask.h", &DeviceSource::path);
  ASSERT_NE(mask, sources.end());
  EXPECT_NE(mask->text.find("#pragma once"), std::string_view::npos);
  EXPECT_TRUE(mask->text.ends_with("\n"));
  for (const DeviceSource& source : sources) EXPECT_EQ(source.text.find("//"), std::string_view::npos) << source.path;
}

TEST(ReachableHeaders, FollowsIncludesUnderConditions) {
  const auto headers =
      reachable_headers("#if 0\n  #  include \"device/common/mask.h\" // why\n#endif\n#include <stdint.h>\n");
  ASSERT_FALSE(headers.empty());
  for (const char* path : {"device/common/mask.h", "device/common/params.h"}) {  // mask.h includes params.h
    EXPECT_NE(std::ranges::find(headers, path, &DeviceSource::path), headers.end()) << path;
  }
  EXPECT_EQ(std::ranges::find(headers, "device/common/philox.h", &DeviceSource::path), headers.end());
  EXPECT_TRUE(reachable_headers("int x; // #include \"device/common/mask.h\"\n").empty());
}

TEST(ReachableHeaders, NamesAnIncludeThatIsNone) {
  const std::string message =
      error_of(ErrorCode::invalid_argument, [] { (void)reachable_headers("#include \"device/no/such.h\"\n"); });
  EXPECT_NE(message.find("stub: must include device headers of this library (got 'device/no/such.h')"),
            std::string::npos)
      << message;
}

TEST(SourceHash, CoversEverything) {
  const KernelSource source{"#include \"device/common/mask.h\"\n", "k", {"-O2"}};
  const Target target = parse_target("sm_80");
  const std::string hash = source_hash(target, source);
  EXPECT_EQ(hash.size(), 64U);
  EXPECT_EQ(source_hash(target, source), hash);
  EXPECT_NE(source_hash(parse_target("sm_90"), source), hash);
  EXPECT_NE(source_hash(target, {source.stub + " ", source.symbol, source.options}), hash);
  EXPECT_NE(source_hash(target, {source.stub, "l", source.options}), hash);
  EXPECT_NE(source_hash(target, {source.stub, source.symbol, {}}), hash);
  EXPECT_NE(source_hash(target, {source.stub, source.symbol, {"-O2", ""}}), hash);
  EXPECT_NE(source_hash(target, {"", source.symbol, source.options}), hash);
}

}  // namespace
}  // namespace tilewise::jit
