// The CUDA backend against a driver that only records: devices, plans, loads, launches, captures, workspaces,
// errors. Kernels come from a bundle of made-up machine code, so no compiler is needed.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "../support/gpu_call.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "core/device.hpp"
#include "core/device_workspace.hpp"
#include "core/run.hpp"
#include "fake_driver.hpp"
#include "gpu/tensor_map_cache.hpp"
#include "jit/cuda_driver.hpp"
#include "operations/attention/attention.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"
#include "verify/verify.hpp"

namespace tilewise {
namespace {

using test::error_of, test::fake, test::state, test::stream;

constexpr int kTooOld = 2;

/// A forward call on "device" memory.
class GpuCall : public test::GpuCall {
 public:
  explicit GpuCall(std::int64_t seqlen_q = 100, std::int64_t seqlen_k = 100, int device = 0)
      : test::GpuCall({DeviceType::cuda, device}, DType::bf16, seqlen_q, seqlen_k) {}
};

/// Of a kernel that only one test uses, so that it is not loaded before.
GpuCall with_softcap() {
  GpuCall call;
  call.arguments.options.softcap = 3.0;
  return call;
}

/// Made-up machine code for every kernel that the problems need on devices 0 and 1.
void make_up_kernels(std::initializer_list<Problem> problems) {
  test::MadeUpKernels kernels;
  jit::KernelResources resources;
  resources.registers = 168;
  resources.spill_bytes = 24;
  for (const int device : {0, 1}) {
    const gpu::Runtime& runtime = backends::cuda_runtime(device);
    for (const Problem& problem : problems) kernels.add(problem, runtime, resources);
  }
  kernels.load();
}

class CudaBackend : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    make_up_kernels(
        {describe(GpuCall().arguments), describe(GpuCall(1, 20000).arguments), describe(with_softcap().arguments)});
  }
  void SetUp() override {
    state() = {};
    fake<void(int)>("fake_cuda_make_current")(-1);
  }
  /// Every push was popped.
  void TearDown() override { EXPECT_EQ(fake<int()>("fake_cuda_current")(), -1); }
};

TEST_F(CudaBackend, LaunchesWhatTheCallDescribes) {
  GpuCall call;
  attention_forward(call.arguments, {}, stream(77));
  ASSERT_EQ(state().launches.size(), 1u);
  const fake::LaunchRecord& launch = state().launches[0];
  EXPECT_EQ(launch.device, 0);
  EXPECT_EQ(launch.stream, stream(77));
  const auto params = launch.params<device::ForwardParams>();
  EXPECT_EQ(params.q.data, call.arguments.q.data);
  EXPECT_EQ(params.out.data, call.arguments.out.data);
  EXPECT_EQ(params.shape.seqlen_k, 100);
  EXPECT_EQ(launch.blocks, static_cast<std::uint32_t>(params.grid.num_tiles) * 4);
  if (!state().loads.empty() && launch.shared_bytes > 48 << 10) {
    EXPECT_EQ(state().shared_limits, std::vector{launch.shared_bytes});
  }
  EXPECT_EQ(state().allocations, 0u);
}

TEST_F(CudaBackend, LoadsAKernelOnceForEachDevice) {
  for (const int device : {0, 1, 0, 1}) {
    GpuCall call(100, 100, device), other_lengths(77, 91, device);
    attention_forward(call.arguments);
    attention_forward(other_lengths.arguments);
    EXPECT_EQ(state().launches.back().device, device);
  }
  EXPECT_LE(state().loads.size(), 2u);  // none where a test before has loaded them
  for (const int device : state().loads) EXPECT_EQ(std::count(state().loads.begin(), state().loads.end(), device), 1);
}

TEST_F(CudaBackend, PlansBelongToADevice) {
  GpuCall first, second(100, 100, 1);
  const Plan planned = plan(describe(first.arguments));
  EXPECT_EQ(planned.implementation(), "cuda.sm80");
  run(planned, first.arguments, nullptr, stream(1));
  EXPECT_EQ(state().launches.size(), 1u);
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { run(planned, second.arguments); }),
            "plan: must be for the tensors' device, cuda:1 (got a plan for cuda:0)");
  fake<void(int)>("fake_cuda_make_current")(1);
  run(plan(describe(second.arguments)), second.arguments);  // plan() follows the thread's context
  EXPECT_EQ(state().launches.back().device, 1);
  fake<void(int)>("fake_cuda_make_current")(-1);
}

TEST_F(CudaBackend, KeepsTheThreadsContext) {
  fake<void(int)>("fake_cuda_make_current")(1);
  GpuCall call;
  attention_forward(call.arguments);
  EXPECT_EQ(state().launches.back().device, 0);
  EXPECT_EQ(fake<int()>("fake_cuda_current")(), 1);
  fake<void(int)>("fake_cuda_make_current")(-1);
}

/// The driver encodes only where the thread has a context, and callers of the library need not have one.
TEST_F(CudaBackend, EncodesTensorMapsForThreadsWithoutAContext) {
  std::array<std::uint64_t, gpu::kTensorMapBytes / sizeof(std::uint64_t)> words{};
  gpu::TensorMap map;
  map.address = words.data();
  map.dtype = DType::f16;
  map.rank = 2;
  map.dims = {64, 100};
  backends::cuda_runtime(0).encode(map, reinterpret_cast<std::byte*>(words.data()));
  EXPECT_EQ(words[0], static_cast<std::uint64_t>(jit::cuda::kTensorMapF16));
  EXPECT_EQ(words[1], 2u);
  EXPECT_EQ(words[2], reinterpret_cast<std::uintptr_t>(words.data()));
  EXPECT_EQ(words[3], 64u);
}

/// A call on tensors of an earlier one asks the driver for none of their maps.
TEST_F(CudaBackend, EncodesATensorMapOnceForEachThreadAndDevice) {
  const auto encode = [](const gpu::TensorMap& map, int device = 0) {
    std::array<std::uint64_t, gpu::kTensorMapBytes / sizeof(std::uint64_t)> words{};
    backends::cuda_runtime(device).encode(map, reinterpret_cast<std::byte*>(words.data()));
    return words;
  };
  gpu::TensorMap map;
  map.address = &map;
  map.rank = 2;
  map.dims = {64, 100};
  map.strides = {128};
  map.box = {64, 32};
  const auto first = encode(map);
  EXPECT_EQ(encode(map), first);
  EXPECT_EQ(state().encodings, 1u);
  gpu::TensorMap moved = map, longer = map, narrower = map, sparser = map, swizzled = map, of_bytes = map;
  moved.address = &moved, longer.dims[1] = 101, narrower.box[0] = 32, sparser.strides[0] = 256;
  swizzled.swizzle = gpu::Swizzle::bytes64, of_bytes.dtype = DType::fp8_e4m3;
  std::size_t known = 1;
  for (const gpu::TensorMap& other : {moved, longer, narrower, sparser, swizzled, of_bytes}) {
    EXPECT_EQ(encode(other)[2], reinterpret_cast<std::uintptr_t>(other.address));
    EXPECT_EQ(state().encodings, ++known);
  }
  encode(map, 1);
  EXPECT_EQ(state().encodings, ++known);
  std::thread([&] { encode(map); }).join();
  EXPECT_EQ(state().encodings, ++known);
}

TEST_F(CudaBackend, KeepsNoTensorMapThatTheDriverRefuses) {
  gpu::TensorMap map;  // of no dimensions
  map.address = &map;
  std::array<std::byte, gpu::kTensorMapBytes> encoded{};
  for (int i = 0; i < 2; ++i) {
    const std::string error =
        error_of(ErrorCode::runtime, [&] { backends::cuda_runtime(0).encode(map, encoded.data()); });
    EXPECT_NE(error.find("cuTensorMapEncodeTiled"), std::string::npos) << error;
  }
}

/// More maps than there are places for.
TEST_F(CudaBackend, EncodesAMapAnewThatAnotherHasTakenThePlaceOf) {
  std::array<std::uint64_t, gpu::kTensorMapBytes / sizeof(std::uint64_t)> words{};
  std::vector<char> memory(4 * gpu::TensorMapCache::kPlaces);
  for (int round = 0; round < 2; ++round) {
    for (char& byte : memory) {
      gpu::TensorMap map;
      map.address = &byte;
      map.rank = 2;
      backends::cuda_runtime(0).encode(map, reinterpret_cast<std::byte*>(words.data()));
      ASSERT_EQ(words[2], reinterpret_cast<std::uintptr_t>(&byte));
    }
  }
  EXPECT_GT(state().encodings, memory.size());
}

TEST_F(CudaBackend, ShowsWhatAKernelCosts) {
  const Plan planned = plan(describe(GpuCall().arguments));
  EXPECT_NE(planned.schedule().find("; 168 registers, "), std::string::npos) << planned.schedule();
  EXPECT_NE(planned.schedule().find(" bytes shared, 24 bytes spilled"), std::string::npos) << planned.schedule();
}

TEST_F(CudaBackend, KeepsAWorkspaceForEachStream) {
  std::thread([] {  // a thread of its own starts without any
    GpuCall call(1, 20000);
    attention_forward(call.arguments, {}, stream(1));
    attention_forward(call.arguments, {}, stream(1));
    EXPECT_EQ(state().allocations, 1u);
    ASSERT_EQ(state().launches.size(), 4u) << "splits, and what combines them";
    const float* const first = state().launches[0].params<device::ForwardParams>().out_accum;
    EXPECT_NE(first, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0u);
    EXPECT_EQ(state().launches[1].params<device::CombineParams>().out_accum, first);
    attention_forward(call.arguments, {}, stream(2));
    EXPECT_EQ(state().allocations, 2u);
    EXPECT_NE(state().launches[4].params<device::ForwardParams>().out_accum, first);
  })
      .join();
  EXPECT_EQ(state().frees, 2u);
}

/// What combines splits may begin while they end, on a device that knows how; what comes first waits for all before it.
TEST_F(CudaBackend, StepsOverlapFromSm90On) {
  for (const int device : {0, 1}) {
    GpuCall call(1, 20000, device);
    attention_forward(call.arguments, {}, stream(1));
    ASSERT_EQ(state().launches.size(), 2u);
    EXPECT_FALSE(state().launches[0].programmatic);
    EXPECT_EQ(state().launches[1].programmatic, device == 0) << "cuda:" << device;
    state().launches.clear();
  }
}

TEST_F(CudaBackend, TakesTheCallersWorkspace) {
  GpuCall call(1, 20000);
  const Plan planned = plan(describe(call.arguments));
  ASSERT_GT(planned.workspace_size(), 0u);
  std::vector<std::byte> memory(planned.workspace_size() + 64);
  auto* aligned = memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  run(planned, call.arguments, aligned, stream(1));
  EXPECT_EQ(state().allocations, 0u);
  const auto* partial =
      reinterpret_cast<const std::byte*>(state().launches[0].params<device::ForwardParams>().out_accum);
  EXPECT_GE(partial, aligned);
  EXPECT_LT(partial, aligned + planned.workspace_size());
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(partial) % 256, 0u);
}

TEST_F(CudaBackend, CapturesWhatIsWarm) {
  std::thread([] {
    GpuCall call(1, 2000), known_kernel_new_plan(93, 95);
    attention_forward(call.arguments, {}, stream(1));
    attention_forward(GpuCall().arguments, {}, stream(1));
    const std::size_t loads = state().loads.size();
    state().capture_status = 1;
    attention_forward(call.arguments, {}, stream(1));
    attention_forward(known_kernel_new_plan.arguments, {}, stream(1));
    EXPECT_EQ(state().allocations, 1u);
    EXPECT_EQ(state().loads.size(), loads);
    state().capture_status = 0;
    // The graph may be replayed at any time, so its block outlives growth and the thread.
    GpuCall larger(1, 20000);
    attention_forward(larger.arguments, {}, stream(1));
    EXPECT_EQ(state().allocations, 2u);
    EXPECT_EQ(state().frees, 0u);
  }).join();
  EXPECT_EQ(state().frees, 1u);
}

TEST_F(CudaBackend, RefusesWhatACaptureCantHave) {
  std::thread([] {
    GpuCall split(1, 20000), cold = with_softcap();
    state().capture_status = 1;
    const std::string kernel = error_of(ErrorCode::runtime, [&] { attention_forward(cold.arguments, {}, stream(1)); });
    EXPECT_NE(kernel.find("is not loaded yet); call tilewise.warmup, or the function itself, before the capture"),
              std::string::npos)
        << kernel;
    state().capture_status = 0;
    operations::attention::prepare_call(operations::attention::call_of(split.arguments), {});
    EXPECT_TRUE(state().launches.empty());
    state().capture_status = 1;
    const std::string workspace =
        error_of(ErrorCode::runtime, [&] { attention_forward(split.arguments, {}, stream(1)); });
    EXPECT_EQ(workspace.substr(0, 26), "workspace: can't allocate ") << workspace;
    EXPECT_NE(workspace.find("while the stream is captured"), std::string::npos) << workspace;
  }).join();
  state().capture_status = 0;
}

TEST_F(CudaBackend, NamesWhatTheDriverSays) {
  std::thread([] {
    GpuCall call(1, 20000);
    state().largest_allocation = 1000;
    const std::string memory = error_of(ErrorCode::runtime, [&] { attention_forward(call.arguments, {}, stream(5)); });
    EXPECT_EQ(memory.substr(0, 29), "workspace: could not allocate") << memory;
    EXPECT_NE(memory.find("cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (as the driver puts it)"), std::string::npos) << memory;
  }).join();
  GpuCall call;
  state().launch_result = 400;
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { attention_forward(call.arguments, {}, stream(5)); }),
            "stream: must be a stream of cuda:0, where the tensors are (got one that cuLaunchKernel refuses: "
            "CUDA_ERROR_INVALID_HANDLE (as the driver puts it))");
  state().launch_result = 719;
  const std::string launch = error_of(ErrorCode::runtime, [&] { attention_forward(call.arguments); });
  EXPECT_EQ(launch.substr(0, 39), "cuLaunchKernel: CUDA_ERROR_OF_SOME_KIND") << launch;
}

TEST_F(CudaBackend, RefusesDevicesByName) {
  GpuCall old(100, 100, kTooOld), missing(100, 100, 9), mixed;
  const std::string too_old = error_of(ErrorCode::unsupported, [&] { attention_forward(old.arguments); });
  EXPECT_NE(too_old.find("cuda.sm80: cuda:2: compute capability must be >= 8.0 (got 7.5)"), std::string::npos)
      << too_old;
  const std::string none = error_of(ErrorCode::unsupported, [&] { attention_forward(missing.arguments); });
  EXPECT_NE(none.find("cuda.sm80: cuda:9: must be one of the 3 CUDA devices here"), std::string::npos) << none;
  mixed.arguments.k.device.index = 1;
  EXPECT_EQ(error_of(ErrorCode::invalid_type, [&] { attention_forward(mixed.arguments); }),
            "k: must be on cuda:0, where q is (got cuda:1)");
}

TEST_F(CudaBackend, ReadsLengthsOnlyWhenAsked) {
  GpuCall call;
  call.arguments.options.seqused_k = call.lengths({101});
  make_up_kernels({describe(call.arguments)});
  attention_forward(call.arguments);
  EXPECT_EQ(state().launches.size(), 1u);
  setenv("TILEWISE_CHECK", "1", 1);
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { attention_forward(call.arguments); }),
            "seqused_k[0]: must be 0 to 100, the sequence's key rows (got 101)");
  state().capture_status = 1;
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { attention_forward(call.arguments, {}, stream(1)); }),
            "TILEWISE_CHECK: must not be 1 while a stream is captured, since lengths can't be read then");
  state().capture_status = 0;
  *static_cast<std::int32_t*>(call.arguments.options.seqused_k.data) = 100;
  attention_forward(call.arguments);
  EXPECT_EQ(state().launches.size(), 2u);
  setenv("TILEWISE_CHECK", "perhaps", 1);
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { attention_forward(call.arguments); }),
            "TILEWISE_CHECK: must be 0 or 1 (got 'perhaps')");
  unsetenv("TILEWISE_CHECK");
}

/// Neither a bundle nor a compiler is asked for this kernel, and no module is loaded.
TEST_F(CudaBackend, ExplainingLoadsNothing) {
  GpuCall call;
  call.arguments.options.softcap = 4.0;
  call.arguments.options.window_left = 7;
  make_up_kernels({describe(call.arguments)});
  const Explanation explained = explain(describe(call.arguments));
  ASSERT_TRUE(explained.rows.front().accepted) << explained.rows.front().reason;
  EXPECT_EQ(explained.rows.front().reason.find("registers"), std::string::npos) << explained.rows.front().reason;
  EXPECT_TRUE(state().loads.empty());
  const Plan planned = plan(describe(call.arguments));
  EXPECT_EQ(state().loads.size(), 1u);
  EXPECT_NE(planned.schedule().find("168 registers"), std::string::npos) << planned.schedule();
}

/// The fake computes nothing, so every output must be found unwritten, and everything else untouched.
TEST_F(CudaBackend, VerifyRunsOnCopies) {
  Problem problem = describe(GpuCall().arguments);
  problem.device = DeviceType::cpu;
  std::string refusals;
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    const verify::Report report = verify::check_implementation(problem, "cuda.sm80", seed);
    if (report.status == verify::Status::refused) {  // rows that start anywhere: a kernel outside the bundle
      refusals += report.message + "; ";
      continue;
    }
    EXPECT_NE(report.message.find("never written; 25600 such elements of 25600"), std::string::npos) << report.message;
    EXPECT_EQ(state().launches.size(), 1u);
    EXPECT_EQ(state().launches[0].params<device::ForwardParams>().shape.seqlen_q, 100);
    EXPECT_EQ(state().allocations, state().frees);
    return;
  }
  FAIL() << "every seed was refused: " << refusals;
}

TEST(CudaBackendAlone, WithoutADevice) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, where no device is open yet
  EXPECT_EXIT(
      {
        setenv("FAKE_CUDA_EMPTY", "1", 1);
        const Explanation explained =
            explain(parse_problem("attention_forward device=cuda dtype=bf16 seqlen_q=8 head_dim=64"));
        const std::string& reason = explained.rows.front().reason;
        const bool right = reason == "CUDA has no device here (cuInit: CUDA_ERROR_NO_DEVICE (as the driver puts it))";
        if (!right) fprintf(stderr, "%s\n", reason.c_str());
        std::_Exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tilewise

int main(int argc, char** argv) {
  setenv("TILEWISE_CUDA_DRIVER", TILEWISE_FAKE_DRIVER, 1);
  setenv("TILEWISE_NVRTC", "/nowhere", 1);  // a compiler that is found would make kernels of its own
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
