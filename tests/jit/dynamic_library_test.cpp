// Tables of functions against a small library: alternate names, optional entries, reasons. And the real drivers, which
// need not be there but must never crash.
#include "jit/dynamic_library.hpp"

#include <gtest/gtest.h>

#include <array>

#include "jit/cuda_driver.hpp"
#include "jit/hip_driver.hpp"

namespace tilewise::jit {
namespace {

#define TEST_FUNCTIONS(X)                                     \
  X(plain, "driver_old_and_new", true, int())                 \
  X(renamed, "driver_renamed|driver_renamed_v2", true, int()) \
  X(preferred, "driver_both_v2|driver_both", true, int())     \
  X(absent, "driver_absent|driver_absent_v2", false, int(int first, int second))

struct TestDriver {
  TEST_FUNCTIONS(TILEWISE_FUNCTION_MEMBER)
};

void* fake_driver() {
  std::string reason;
  void* library = open_library(std::array<std::string, 2>{"libno-such-library.so.1", FAKE_DRIVER}, reason);
  EXPECT_NE(library, nullptr) << reason;
  return library;
}

TEST(FunctionTable, TakesTheFirstNameThatIsThere) {
  void* library = fake_driver();
  TestDriver table;
  const std::vector<FunctionEntry> entries{TEST_FUNCTIONS(TILEWISE_FUNCTION_ENTRY)};
  EXPECT_EQ(look_up_functions(library, "fake", entries), "");
  ASSERT_TRUE(table.plain && table.renamed && table.preferred);
  EXPECT_EQ(table.plain(), 1);
  EXPECT_EQ(table.renamed(), 2);
  EXPECT_EQ(table.preferred(), 4);
  EXPECT_EQ(table.absent, nullptr);
  EXPECT_NE(library_path(library, "otherwise").find("fake_driver"), std::string::npos);
}

TEST(FunctionTable, NamesAMissingFunction) {
  void* library = fake_driver();
  void* slot = library;
  const std::array entries{FunctionEntry{"driver_absent|driver_absent_v2", true, &slot}};
  EXPECT_EQ(look_up_functions(library, "libfake.so", entries),
            "libfake.so: function driver_absent|driver_absent_v2 is missing");
  EXPECT_EQ(slot, nullptr);
}

TEST(OpenLibrary, TellsWhatTheLoaderSaid) {
  std::string reason;
  EXPECT_EQ(open_library(std::array<std::string, 2>{"libno-such-1.so", "libno-such-2.so"}, reason), nullptr);
  EXPECT_NE(reason.find("libno-such-1.so"), std::string::npos) << reason;
  EXPECT_NE(reason.find("libno-such-2.so"), std::string::npos) << reason;
}

TEST(Drivers, AreThereOrTellWhyNot) {
  if (cuda_driver().functions()) {
    EXPECT_FALSE(cuda_driver().path.empty());
  } else {
    EXPECT_NE(cuda_driver().reason.find("libcuda.so.1"), std::string::npos) << cuda_driver().reason;
    EXPECT_EQ(cuda_driver_version(), 0);
  }
  if (hip_driver().functions()) {
    EXPECT_FALSE(hip_driver().path.empty());
  } else {
    EXPECT_NE(hip_driver().reason.find("libamdhip64"), std::string::npos) << hip_driver().reason;
  }
}

int properties_with_name(void* properties, int device) {
  const std::string name = device == 0 ? "a gfx card" : "another";
  name.copy(static_cast<char*>(properties), 256);
  constexpr std::string_view kArchitecture = "gfx942:sramecc+:xnack-";
  // Where ROCm 5 and 6 have it, as far as only the order matters.
  kArchitecture.copy(static_cast<char*>(properties) + (device == 0 ? 396 : 1160), 256);
  return device < 2 ? hip::kSuccess : hip::kErrorInvalidValue;
}

TEST(HipArchitecture, IsFoundWhereverTheVersionHasIt) {
  HipDriver driver;
  driver.hipGetDeviceProperties = properties_with_name;
  hip::Result error = hip::kErrorNotFound;
  for (const int device : {0, 1}) {
    EXPECT_EQ(hip_architecture(driver, device, error), "gfx942");
    EXPECT_EQ(error, hip::kSuccess);
  }
  EXPECT_EQ(hip_architecture(driver, 2, error), "");
  EXPECT_EQ(error, hip::kErrorInvalidValue);
}

}  // namespace
}  // namespace tilewise::jit
