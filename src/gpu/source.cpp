// The generated stub of a kernel: includes, a constexpr configuration, one extern "C" function.
#include <string>
#include <string_view>

#include "core/message.hpp"
#include "gpu/kernel.hpp"

namespace tilewise::gpu {
namespace {

using core::concat;

/// How each compiler declares a kernel and its shared memory.
std::string entry_text(const KernelKey& key, bool host, std::string_view symbol) {
  const KernelBody& body = *key.body;
  if (host) {
    return concat(
        "extern \"C\" const tilewise::device::HostKernel* ", symbol, "() {\n",
        "  return tilewise::device::host_kernel<tilewise::device::Kernel, tilewise::device::Ops::Machine>();\n}\n");
  }
  const std::uint32_t threads = key.threads(), shared_bytes = key.shared_bytes();
  const std::string run = "  tilewise::device::Kernel::run(params, shared);\n}\n";
  constexpr std::string_view kNoShared = "  tilewise::device::NoShared shared;\n";
  if (traits_of(key.family).device == DeviceType::cuda) {
    // Registers move between warpgroups only in kernels that have said that one block fills a multiprocessor.
    const std::string_view blocks = key.family == Family::sm90 ? ", 1" : "";
    std::string text = concat("extern \"C\" __global__ void __launch_bounds__(", threads, blocks, ") ", symbol,
                              "(const __grid_constant__ tilewise::device::", body.params, " params) {\n");
    if (shared_bytes > 0) {
      text += "  extern __shared__ __align__(1024) unsigned char memory[];\n";
      text += "  auto& shared = *reinterpret_cast<tilewise::device::Kernel::Shared*>(memory);\n";
    } else {
      text += kNoShared;
    }
    return text + run;
  }
  std::string text = concat("extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(", threads, ", ", threads,
                            "))) void ", symbol, "(const tilewise::device::", body.params, " params) {\n");
  text += shared_bytes > 0 ? "  static __attribute__((shared)) tilewise::device::Kernel::Shared shared;\n"
                           : std::string(kNoShared);
  return text + run;
}

}  // namespace

jit::KernelSource make_source(const KernelKey& key, bool host) {
  const KernelBody& body = *key.body;
  const FamilyTraits family = traits_of(key.family);
  const std::string symbol = concat("tilewise_", body.name);
  const bool amd = family.device == DeviceType::hip && !host;
  std::string text = "// Generated: one kernel, specialised on its configuration.\n";
  if (amd) text += "#pragma clang force_cuda_host_device begin\n";
  for (const std::string_view header :
       {host ? family.host_header : family.machine_header, family.ops_header, body.header}) {
    text += concat("#include \"", header, "\"\n");
  }
  text += key.definitions;
  text += "namespace tilewise::device {\n";
  text += concat("using Ops = ", family.ops, "<", host ? family.host_machine : family.machine, ">;\n");
  text += concat("inline constexpr ", body.config, " kConfig = [] {\n  ", body.config, " c;\n  ",
                 body.config_text(key.config.data()), "\n  return c;\n}();\n");
  text += concat("using Kernel = ", body.kernel, "<Ops, kConfig>;\n");
  if (const std::uint32_t bytes = key.shared_bytes(); bytes > 0) {
    text += concat("static_assert(sizeof(Kernel::Shared) == ", bytes, ", \"the host's arithmetic differs\");\n");
  } else {
    text += "static_assert(IsSame<Kernel::Shared, NoShared>::value, \"the host gives it no shared memory\");\n";
  }
  text += "}  // namespace tilewise::device\n";
  if (amd) text += "#pragma clang force_cuda_host_device end\n";
  return {text + entry_text(key, host, symbol), symbol, {}};
}

}  // namespace tilewise::gpu
