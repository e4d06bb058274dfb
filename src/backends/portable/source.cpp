// The generated stub of a kernel: includes, a constexpr configuration, one extern "C" function.
#include <array>
#include <string>
#include <string_view>

#include "backends/portable/schedule.hpp"
#include "core/message.hpp"

namespace tilewise::backends::portable {
namespace {

using core::concat;

struct Body {
  std::string_view name, header, kernel, shared;  // shared: empty where the kernel has no shared memory
};

/// In the order of KernelKind.
constexpr std::array<Body, 10> kBodies{{
    {"forward", "forward.h", "ForwardKernel<Ops, kConfig>", "ForwardShared<Ops, kConfig>"},
    {"merge_splits", "merge_splits.h", "MergeSplitsKernel<Ops::Machine, kConfig>",
     "MergeSplitsKernel<Ops::Machine, kConfig>::Shared"},
    {"row_delta", "row_delta.h", "RowDeltaKernel<Ops::Machine, kConfig>", ""},
    {"query_gradient", "query_gradient.h", "QueryGradientKernel<Ops, kConfig>", "QueryGradientShared<Ops, kConfig>"},
    {"key_gradient", "key_gradient.h", "KeyGradientKernel<Ops, kConfig>", "KeyGradientShared<Ops, kConfig>"},
    {"fused_gradient", "fused_gradient.h", "FusedGradientKernel<Ops, kConfig>", "FusedGradientShared<Ops, kConfig>"},
    {"store_query_sums", "query_sums.h", "StoreQuerySumsKernel<Ops, kConfig>",
     "StoreQuerySumsKernel<Ops, kConfig>::Shared"},
    {"store_key_sums", "key_sums.h", "StoreKeySumsKernel<Ops, kConfig>", "StoreKeySumsKernel<Ops, kConfig>::Shared"},
    {"bias_gradient", "bias_gradient.h", "BiasGradientKernel<Ops, kConfig>", "BiasGradientShared<Ops, kConfig>"},
    {"sink_gradient", "row_delta.h", "SinkGradientKernel<Ops::Machine, kConfig>",
     "SinkGradientKernel<Ops::Machine, kConfig>::Shared"},
}};

struct Target {
  std::string_view ops_header, ops, machine_header, machine, host_machine;
};

/// In the order of device::Machine.
constexpr std::array<Target, 3> kTargets{{
    {"ops_sm80.h", "Sm80Ops", "machine_sm80.h", "Sm80Machine", "HostSm80Machine"},
    {"ops_cdna.h", "CdnaOps", "machine_cdna.h", "CdnaMachine", "HostCdnaMachine"},
    {"ops_rdna.h", "RdnaOps", "machine_rdna.h", "RdnaMachine", "HostRdnaMachine"},
}};

std::string config_text(const device::KernelConfig& c) {
  std::string text = "inline constexpr KernelConfig kConfig{";
  const auto field = [&text](std::string_view name, std::int64_t value) {
    text += concat(".", name, " = ", value, ", ");
  };
  const auto flag = [&text](std::string_view name, bool value) {
    text += concat(".", name, " = ", value ? "true" : "false", ", ");
  };
  field("element", c.element);
  field("head_dim", c.head_dim);
  field("head_dim_v", c.head_dim_v);
  field("waves", c.waves);
  field("rows_per_wave", c.rows_per_wave);
  field("tile_cols", c.tile_cols);
  field("stages", c.stages);
  field("wave_cols", c.wave_cols);
  flag("rows_in_registers", c.rows_in_registers);
  flag("vector_rows", c.vector_rows);
  flag("exact_dims", c.exact_dims);
  flag("plain_scale", c.plain_scale);
  flag("lengths", c.lengths);
  flag("ranged", c.ranged);
  flag("softcap", c.softcap);
  flag("alibi", c.alibi);
  flag("sink", c.sink);
  flag("dropout", c.dropout);
  field("bias_type", c.bias_type);
  flag("packed_heads", c.packed_heads);
  flag("split", c.split);
  flag("wants_dk", c.wants_dk);
  flag("wants_dv", c.wants_dv);
  flag("wants_dq", c.wants_dq);
  return text + "};\n";
}

/// How each compiler declares a kernel and its shared memory.
std::string entry_text(const Body& body, device::Machine machine, bool host, std::string_view symbol,
                       std::uint32_t threads) {
  const bool shares = !body.shared.empty();
  const std::string run = concat(body.kernel, "::run(params", shares ? ", shared" : "", ");");
  if (host) {
    const std::string_view shared = shares ? "Shared" : "NoShared";
    std::string text = concat("extern \"C\" const tilewise::device::HostKernel* ", symbol, "() {\n");
    text += "  using namespace tilewise::device;\n";
    text += concat("  return host_kernel<Ops::Machine, ", shared, ">([](const KernelParams& params, [[maybe_unused]] ",
                   shared, "& shared) { ", run, " });\n");
    return text + "}\n";
  }
  if (machine == device::kSm80) {
    std::string text = concat("extern \"C\" __global__ void __launch_bounds__(", threads, ") ", symbol,
                              "(const __grid_constant__ tilewise::device::KernelParams params) {\n");
    text += "  using namespace tilewise::device;\n";
    if (shares) {
      text += "  extern __shared__ __align__(1024) unsigned char memory[];\n";
      text += "  Shared& shared = *reinterpret_cast<Shared*>(memory);\n";
    }
    return text + "  " + run + "\n}\n";
  }
  std::string text = concat("extern \"C\" __attribute__((global, amdgpu_flat_work_group_size(", threads, ", ", threads,
                            "))) void ", symbol, "(const tilewise::device::KernelParams params) {\n");
  text += "  using namespace tilewise::device;\n";
  if (shares) text += "  static __attribute__((shared)) Shared shared;\n";
  return text + "  " + run + "\n}\n";
}

}  // namespace

std::string kernel_name(KernelKind kind) { return std::string(kBodies[static_cast<std::size_t>(kind)].name); }

jit::KernelSource make_source(const KernelKey& key, device::Machine machine, bool host) {
  const Body& body = kBodies[static_cast<std::size_t>(key.kind)];
  const Target& target = kTargets[static_cast<std::size_t>(machine)];
  const std::string symbol = concat("tilewise_", body.name);
  const bool amd = machine != device::kSm80 && !host;
  std::string text = "// Generated: one kernel, specialised on its configuration.\n";
  if (amd) text += "#pragma clang force_cuda_host_device begin\n";
  for (const std::string_view header :
       {host ? std::string_view("machine_host.h") : target.machine_header, target.ops_header, body.header}) {
    text += concat("#include \"device/portable/", header, "\"\n");
  }
  text += "namespace tilewise::device {\n";
  text += concat("using Ops = ", target.ops, "<", host ? target.host_machine : target.machine, ">;\n");
  text += config_text(key.config);
  if (!body.shared.empty()) {
    text += concat("using Shared = ", body.shared, ";\n");
    text += concat("static_assert(sizeof(Shared) == ", shared_bytes(key.kind, key.config, machine),
                   ", \"the host's arithmetic differs\");\n");
  }
  text += "}  // namespace tilewise::device\n";
  if (amd) text += "#pragma clang force_cuda_host_device end\n";
  const std::uint32_t threads = static_cast<std::uint32_t>(key.config.waves) * lanes(machine);
  text += entry_text(body, machine, host, symbol, threads);
  return {text, symbol, {}};
}

}  // namespace tilewise::backends::portable
