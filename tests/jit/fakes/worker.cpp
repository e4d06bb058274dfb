// One of the processes that want the same kernel at the same time: prints whether it compiled it or found it.
#include <cstdio>
#include <exception>

#include "jit/kernel_cache.hpp"

int main() {
  try {
    const tilewise::jit::KernelSource source{"extern \"C\" void shared_kernel() {}\n", "shared_kernel", {}};
    const auto kernel = tilewise::jit::find_or_compile(tilewise::jit::parse_target("host"), source);
    std::puts(kernel->compile_seconds > 0 ? "compiled" : "found");
    return kernel->image.empty() ? 1 : 0;
  } catch (const std::exception& error) {
    std::puts(error.what());
    return 1;
  }
}
