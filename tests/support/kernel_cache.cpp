// Linked into tests that compile kernels: all of a build share one folder of them, so that each is compiled once.
#include <cstdlib>

namespace {

/// Before anything is compiled.
[[maybe_unused]] const int kCacheSet = setenv("TILEWISE_CACHE_DIR", TILEWISE_TEST_KERNELS, 1);

}  // namespace
