// Linear layers and experts on the CPU: what few rows read of memory each second, and what many rows compute.
//
// usage: tilewise-experts-cpu [--isa NAME] [--threads N] [--cpu-time] [--warm] [PART OF A LABEL]
//
// --cpu-time: what all threads have computed, instead of what the clock says. Of one thread it is what a busy machine
// would take by itself. --warm: one weight again and again, from the cache where it fits.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>
#include <string>
#include <vector>

#include "backends/cpu/gemm/grouped_product.hpp"
#include "backends/cpu/linear/linear_kernel.hpp"
#include "backends/cpu/moe/moe_kernel.hpp"
#include "ceilings/timing.hpp"
#include "core/ceil_div.hpp"
#include "core/num_threads.hpp"
#include "operations/elements.hpp"
#include "verify/random.hpp"

namespace tilewise {
namespace {

using backends::cpu::GemmKernels, backends::cpu::Isa;
using operations::ExpertMatrices, operations::Matrix;

constexpr double kSampleSeconds = 0.3;
constexpr int kSamples = 5;

struct Options {
  Isa isa = Isa::generic;
  std::string part;
  bool cpu_time = false, warm = false;
};

double seconds_now(const Options& options) {
  timespec now{};
  clock_gettime(options.cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Zeroed memory that stays.
void* memory(std::size_t bytes) { return (new std::vector<std::byte>(bytes + 64))->data(); }

/// Numbers about as large as weights of that many columns; a pattern, since their values cost no time.
void fill(void* data, DType dtype, std::int64_t count, std::int64_t columns) {
  constexpr std::int64_t kPattern = 65536;
  verify::Random random(7);
  const auto bits = static_cast<std::int64_t>(bits_of(dtype));
  for (std::int64_t i = 0; i < std::min(count, kPattern); ++i)
    operations::store_element(dtype, data, i, random.normal() / std::sqrt(static_cast<double>(columns)));
  auto* bytes = static_cast<std::byte*>(data);
  const std::int64_t pattern = kPattern * bits / 8, all = count * bits / 8;
  for (std::int64_t at = pattern; at < all; at += pattern)
    std::memcpy(bytes + at, bytes, static_cast<std::size_t>(std::min(pattern, all - at)));
}

ExpertMatrices weights(const BlockFormat& format, DType dtype, std::int64_t experts, std::int64_t rows,
                       std::int64_t columns) {
  ExpertMatrices w{};
  w.dtype = format.defined() ? format.element : dtype;
  const std::int64_t count = experts * rows * columns;
  w.data = memory(static_cast<std::size_t>(count) * bits_of(w.dtype) / 8);
  fill(w.data, w.dtype, count, format.defined() ? 1 : columns);
  w.num_experts = experts, w.rows = rows, w.columns = columns;
  w.expert_stride = rows * columns, w.row_stride = columns, w.column_stride = 1;
  if (!format.defined()) return w;
  const auto block = [](std::int64_t size, std::int64_t of) { return size == BlockFormat::kAll ? of : size; };
  const std::int64_t block_rows = block(format.block_rows, rows), block_columns = block(format.block_columns, columns);
  const std::int64_t down = core::ceil_div(rows, block_rows), across = core::ceil_div(columns, block_columns);
  void* scales = memory(static_cast<std::size_t>(experts * down * across) * size_of(format.scale));
  for (std::int64_t i = 0; i < experts * down * across; ++i)
    operations::store_element(format.scale, scales, i,
                              format.scale == DType::fp8_e4m3 ? 1.0 + static_cast<double>(i % 3) : 0.015625);
  w.scales = {scales, format.scale, block_rows, block_columns, down * across, across, 1};
  return w;
}

Matrix rows_of(DType dtype, std::int64_t rows, std::int64_t columns) {
  void* data = memory(static_cast<std::size_t>(rows * columns) * size_of(dtype));
  fill(data, dtype, rows * columns, 1);
  return {data, dtype, rows, columns, columns, 1};
}

double bytes_of(const ExpertMatrices& w) {
  const double elements = static_cast<double>(w.rows) * static_cast<double>(w.columns);
  if (w.scales.data == nullptr) return elements * static_cast<double>(bits_of(w.dtype)) / 8;
  const double scales =
      elements / static_cast<double>(w.scales.block_rows) / static_cast<double>(w.scales.block_columns);
  return elements * static_cast<double>(bits_of(w.dtype)) / 8 + scales * static_cast<double>(size_of(w.scales.dtype));
}

void report(const std::string& label, double seconds, double bytes, double flops) {
  std::printf("%-44s %10.1f us %8.1f GB/s %9.1f GFLOP/s\n", label.c_str(), seconds * 1e6, bytes / seconds * 1e-9,
              flops / seconds * 1e-9);
  std::fflush(stdout);
}

/// The median over samples of the mean time of one call.
template <typename Call>
double median_seconds(const Options& options, Call&& call) {
  const auto sample = [&](int calls) {
    const double start = seconds_now(options);
    for (int i = 0; i < calls; ++i) call();
    return (seconds_now(options) - start) / calls;
  };
  sample(1);
  const int calls = static_cast<int>(std::max(1.0, kSampleSeconds / std::max(sample(1), 1e-9)));
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) samples.push_back(sample(calls));
  return tools::median(samples);
}

bool is_wanted(const Options& options, const std::string& label) {
  return label.find(options.part) != std::string::npos;
}

/// Several weights in turn, so that they come from memory.
void linear(const Options& options, DType dtype, std::string_view format, std::int64_t tokens, std::int64_t n,
            std::int64_t k) {
  const std::string label = "linear " + std::string(to_string(dtype)) + " x " + std::string(format) + " " +
                            std::to_string(tokens) + " x " + std::to_string(n) + " x " + std::to_string(k);
  if (!is_wanted(options, label)) return;
  constexpr double kMostCache = 256e6;
  const BlockFormat parsed = format == "same" ? BlockFormat{} : parse_block_format(format);
  operations::linear::LinearParams p{};
  p.x = rows_of(dtype, tokens, k);
  p.out = rows_of(dtype, tokens, n);
  const double one =
      static_cast<double>(n * k) * static_cast<double>(parsed.defined() ? bits_of(parsed.element) : 16) / 8;
  const auto copies = options.warm ? 1 : static_cast<std::int64_t>(std::max(1.0, kMostCache / one));
  const ExpertMatrices all = weights(parsed, dtype, copies, n, k);
  const GemmKernels& kernels = backends::cpu::gemm_kernels_of(options.isa);
  if (backends::cpu::gemm_kernel(kernels, dtype, all.dtype) == nullptr) return;
  std::vector<std::byte> workspace(1 << 16);
  std::int64_t next = 0;
  const double seconds = median_seconds(options, [&] {
    p.w = all;
    p.w.num_experts = 1;
    const std::int64_t copy = next++ % copies;
    p.w.data = static_cast<std::byte*>(all.data) +
               copy * all.expert_stride * static_cast<std::int64_t>(bits_of(all.dtype)) / 8;
    backends::cpu::run_linear(p, kernels, workspace.data());
  });
  report(label, seconds, bytes_of(p.w), 2.0 * static_cast<double>(tokens * n * k));
}

struct Layer {
  const char* name;
  std::int64_t experts, top_k, hidden, intermediate;
};
constexpr Layer kLayers[] = {{"qwen3-30b-a3b", 128, 8, 2048, 768}, {"gpt-oss-20b", 32, 4, 2880, 2880}};

/// Drawn routings in turn. Backward: of everything, after no forward pass.
void experts(const Options& options, const Layer& layer, DType dtype, std::string_view format, std::int64_t tokens,
             bool backward = false) {
  const std::string label = (backward ? "moe backward " : "moe ") + std::string(layer.name) + " " +
                            std::string(to_string(dtype)) + " x " + std::string(format) + " " + std::to_string(tokens);
  if (!is_wanted(options, label)) return;
  const BlockFormat parsed = format == "same" ? BlockFormat{} : parse_block_format(format);
  operations::moe::MoeParams p{};
  p.x = rows_of(dtype, tokens, layer.hidden);
  p.out = rows_of(dtype, tokens, layer.hidden);
  p.gate_up = weights(parsed, dtype, layer.experts, 2 * layer.intermediate, layer.hidden);
  p.down = weights(parsed, dtype, layer.experts, layer.hidden, layer.intermediate);
  p.gate_layout = device::GateLayout::concatenated;
  p.activation.kind = device::ActivationKind::silu;
  p.topk_weights = rows_of(DType::f32, tokens, layer.top_k);
  const GemmKernels& kernels = backends::cpu::gemm_kernels_of(options.isa);
  if (backends::cpu::gemm_kernel(kernels, dtype, p.gate_up.dtype) == nullptr) return;
  constexpr int kRoutings = 16;
  std::vector<std::vector<std::int32_t>> ids(kRoutings);
  verify::Random random(11);
  double touched = 0;
  for (auto& routing : ids) {
    std::set<std::int32_t> all;
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::set<std::int32_t> own;
      while (static_cast<std::int64_t>(own.size()) < layer.top_k)
        own.insert(static_cast<std::int32_t>(random.integer(0, layer.experts - 1)));
      routing.insert(routing.end(), own.begin(), own.end());
      all.insert(own.begin(), own.end());
    }
    touched += static_cast<double>(all.size()) / kRoutings;
  }
  p.topk_ids = {ids[0].data(), DType::i32, tokens, layer.top_k, layer.top_k, 1};
  if (backward) {
    p.dout = rows_of(dtype, tokens, layer.hidden);
    p.dx = rows_of(dtype, tokens, layer.hidden);
    p.dtopk_weights = rows_of(DType::f32, tokens, layer.top_k);
    p.dgate_up = weights({}, dtype, layer.experts, p.gate_up.rows, p.gate_up.columns);
    p.ddown = weights({}, dtype, layer.experts, p.down.rows, p.down.columns);
  }
  std::vector<std::byte> workspace(backward ? backends::cpu::moe_backward_workspace_size(p)
                                            : backends::cpu::moe_workspace_size(p));
  std::size_t next = 0;
  const double seconds = median_seconds(options, [&] {
    p.topk_ids.data = ids[next++ % kRoutings].data();
    if (backward)
      backends::cpu::run_moe_backward(p, kernels, workspace.data());
    else
      backends::cpu::run_moe(p, kernels, workspace.data());
  });
  report(label, seconds, touched * (bytes_of(p.gate_up) + bytes_of(p.down)),
         // Both products; backward the first once more, and two of each for its gradients.
         (backward ? 16.0 : 6.0) * static_cast<double>(tokens * layer.top_k * layer.hidden * layer.intermediate));
}

void run(const Options& options) {
  for (const std::int64_t tokens : {1, 4, 16, 64, 512}) {
    for (const char* format : {"same", "fp8_row", "fp8_128x128", "mxfp8", "mxfp4", "nvfp4"})
      linear(options, DType::bf16, format, tokens, 4096, 4096);
    for (const char* format : {"same", "fp8_128x128", "mxfp4"}) linear(options, DType::f32, format, tokens, 4096, 4096);
  }
  for (const Layer& layer : kLayers)
    for (const std::int64_t tokens : {1, 16, 512, 4096})
      for (const char* format : {"same", "fp8_128x128", "mxfp4"}) experts(options, layer, DType::bf16, format, tokens);
  for (const Layer& layer : kLayers) experts(options, layer, DType::bf16, "same", 4096, true);
}

}  // namespace
}  // namespace tilewise

int main(int argc, char** argv) {
  tilewise::Options options;
  for (const auto& status : tilewise::backends::cpu::machine_isas())
    if (status.available) options.isa = status.isa;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--isa" && i + 1 < argc) {
      const std::string name = argv[++i];
      for (const auto& status : tilewise::backends::cpu::machine_isas())
        if (status.available && to_string(status.isa) == name) options.isa = status.isa;
    } else if (word == "--threads" && i + 1 < argc) {
      tilewise::core::set_num_threads(std::atoi(argv[++i]), 0);
    } else if (word == "--warm") {
      options.warm = true;
    } else if (word == "--cpu-time") {
      options.cpu_time = true;
    } else {
      options.part = word;
    }
  }
  std::printf("%s, %d threads\n", std::string(to_string(options.isa)).c_str(), tilewise::core::num_threads());
  tilewise::run(options);
}
