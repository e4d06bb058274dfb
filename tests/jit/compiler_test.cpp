// Compilers that are programs: found or not, failing, crashing, hanging; what their errors show; sources kept.
#include "jit/compiler.hpp"

#include "jit/host_module.hpp"
#include "support.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;

class Compilers : public JitTest {
 protected:
  /// The message of a compilation for the host that must fail.
  std::string failure(const KernelSource& source = doubling_kernel()) {
    return error_of(ErrorCode::runtime, [&source] { (void)find_or_compile(kHost, source); });
  }
  static void expect_parts(const std::string& message, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
};

TEST_F(Compilers, HostKernelRuns) {
  const auto kernel = find_or_compile(kHost, doubling_kernel());
  EXPECT_EQ(kernel->symbol, "doubled");
  EXPECT_GT(kernel->compile_seconds, 0);
  EXPECT_FALSE(kernel->compiler.empty());
  EXPECT_EQ(kernel->resources, KernelResources{});
  const HostModule module(kernel->image);
  EXPECT_EQ(reinterpret_cast<int (*)(int)>(module.find("doubled"))(21), 42);
  expect_parts(error_of(ErrorCode::runtime, [&module] { (void)module.find("halved"); }), {"halved"});
}

TEST_F(Compilers, HostModulesOfOneNameStayApart) {
  const auto value_kernel = [](int value) {
    return find_or_compile(kHost,
                           {"extern \"C\" int value() { return " + std::to_string(value) + "; }\n", "value", {}});
  };
  const HostModule one(value_kernel(1)->image), two(value_kernel(2)->image);
  EXPECT_EQ(reinterpret_cast<int (*)()>(one.find("value"))(), 1);
  EXPECT_EQ(reinterpret_cast<int (*)()>(two.find("value"))(), 2);
  EXPECT_THROW(HostModule(as_bytes("no library")), Error);
}

TEST_F(Compilers, ErrorShowsTheLineAndTheStub) {
  const KernelSource source{
      "#include \"device/common/mask.h\"\nextern \"C\" int broken() {\n  return undeclared_thing;\n}\n", "broken", {}};
  expect_parts(
      failure(source),
      {"compiling broken for the host with ", "failed: exit status", "stub.cpp:3", "  return undeclared_thing;",
       "stub:\n  1 | #include \"device/common/mask.h\"\n  2 | extern", "TILEWISE_KEEP_SOURCE=1"});
}

TEST_F(Compilers, ErrorShowsTheLineWhereTheCompilerDoesNot) {
  set_variable("TILEWISE_CXX", make_compiler("terse", "echo 'device/common/mask.h:2: error: odd' >&2; exit 1"));
  const std::string line = "at device/common/mask.h:2: #pragma once";
  expect_parts(failure(), {"with g++ 1.2", "exit status 1", "error: odd", line});
}

TEST_F(Compilers, CrashAndTimeLimitAreErrors) {
  set_variable("TILEWISE_CXX", make_compiler("crashing", "echo last words >&2; kill -SEGV $$"));
  expect_parts(failure(), {"ended by signal 11 (Segmentation fault)", "last words"});
  set_variable("TILEWISE_CXX", make_compiler("hanging", "echo thinking; sleep 1000"));
  set_variable("TILEWISE_COMPILE_TIMEOUT", "0.3");
  expect_parts(failure(), {"stopped after", "thinking"});
  set_variable("TILEWISE_CXX", make_compiler("lazy", "exit 0"));
  expect_parts(failure(), {"it wrote nothing"});
  EXPECT_TRUE(kernel_files().empty());
}

TEST_F(Compilers, FailureIsRememberedUntilSomethingChanges) {
  set_variable("TILEWISE_CXX", make_compiler("failing", "exit 1"));
  EXPECT_EQ(failure(), failure());
  EXPECT_EQ(runs(), 1U);
  failure(doubling_kernel("another"));
  EXPECT_EQ(runs(), 2U);
  set_variable("TILEWISE_CXX", make_compiler("working", "echo made > kernel.out"));
  EXPECT_EQ(find_or_compile(kHost, doubling_kernel())->image.size(), 5U);
}

TEST_F(Compilers, BadVariablesAreTold) {
  for (const char* value : {"soon", "0", "-1", "1e9", "nan", "5s"}) {
    set_variable("TILEWISE_COMPILE_TIMEOUT", value);
    expect_parts(error_of(ErrorCode::invalid_argument, [] { (void)find_or_compile(kHost, doubling_kernel()); }),
                 {"TILEWISE_COMPILE_TIMEOUT: must be a number of seconds in [0.1, 86400] (got '" + std::string(value)});
  }
}

TEST_F(Compilers, SourceIsKeptOnRequest) {
  set_variable("TILEWISE_KEEP_SOURCE", "1");
  set_variable("TMPDIR", folder().string());
  set_variable("TILEWISE_CXX", make_compiler("failing", "echo what went wrong; exit 1"));
  const std::string message = failure();
  const std::size_t at = message.find("sources kept in ");
  ASSERT_NE(at, std::string::npos) << message;
  const fs::path kept = message.substr(at + 16);
  EXPECT_EQ(read(kept / "stub.cpp"), doubling_kernel().stub);
  EXPECT_FALSE(read(kept / "device/common/mask.h").empty());
  expect_parts(read(kept / "log.txt"), {"exit status 1", "what went wrong"});
}

TEST_F(Compilers, NothingIsLeftBehindOtherwise) {
  fs::create_directory(folder() / "temporary");
  set_variable("TMPDIR", (folder() / "temporary").string());
  (void)find_or_compile(kHost, doubling_kernel());
  set_variable("TILEWISE_CXX", make_compiler("failing", "exit 1"));
  failure(doubling_kernel("another"));
  EXPECT_TRUE(fs::is_empty(folder() / "temporary"));
}

TEST_F(Compilers, OptionsReachTheCompiler) {
  KernelSource source = doubling_kernel();
  source.options = {"-DEXTRA=1"};
  set_variable("TILEWISE_CXX", make_compiler("telling", "echo \"$@\" > kernel.out"));
  const auto kernel = find_or_compile(kHost, source);
  const std::string told(reinterpret_cast<const char*>(kernel->image.data()), kernel->image.size());
  expect_parts(told, {"-std=c++20", "-Og", "-fPIC", "-shared", "-DEXTRA=1", "-I.", "stub.cpp", "-o kernel.out"});
}

TEST_F(Compilers, MissingOnesAreReasons) {
  set_variable("PATH", folder().string());
  set_variable("TILEWISE_CXX", "no-such-compiler");
  expect_parts(compiler_reason(kHost), {"no-such-compiler (TILEWISE_CXX)"});
  EXPECT_EQ(compiler_name(kHost), "");
  expect_parts(error_of(ErrorCode::unsupported, [] { (void)find_or_compile(kHost, doubling_kernel()); }),
               {"doubled: no compiler for the host: no C++ compiler that runs found as no-such-compiler"});
  EXPECT_EQ(find_compiled(kHost, doubling_kernel()), nullptr);

  set_variable("TILEWISE_HIPRTC", "/no/such/library");
  set_variable("ROCM_PATH", "/no/such/folder");
  expect_parts(compiler_reason(parse_target("gfx942")),
               {"clang 19 or newer not found as clang++-22", "/no/such/folder/llvm/bin/clang++",
                "TILEWISE_CLANG names one", "hipRTC (libhiprtc.so, libamdhip64.so) not found in /no/such/library"});

  set_variable("TILEWISE_CXX", make_compiler("present", "exit 1", "g++ (Debian 12.2.0-14) 13.4.0"));
  EXPECT_EQ(compiler_reason(kHost), "");
  EXPECT_EQ(compiler_name(kHost), "g++ 13.4");
}

TEST_F(Compilers, OldOrLonelyClangIsRefused) {
  set_variable("PATH", folder().string());
  set_variable("ROCM_PATH", "/no/such/folder");
  set_variable("TILEWISE_HIPRTC", "/no/such/library");
  const Target target = parse_target("gfx942");
  make_compiler("clang++", "exit 1", "Debian clang version 14.0.6");
  expect_parts(compiler_reason(target), {"version must be >= 19 (got 'Debian clang version 14.0.6')"});
  make_compiler("clang++-20", "exit 1", "clang version 20.1.2 (a fork 3.0)");
  forget_kernels();
  expect_parts(compiler_reason(target), {"needs lld beside it (Debian: lld-20)"});
  make_compiler("lld", "exit 1");
  forget_kernels();
  EXPECT_EQ(compiler_reason(target), "");
  EXPECT_EQ(compiler_name(target), "clang 20.1");
}

TEST_F(Compilers, ClangErrorNamesTheTarget) {
  const Target target = parse_target("gfx942");
  if (!find_compiler(TargetKind::hip).compiler) GTEST_SKIP() << find_compiler(TargetKind::hip).reason;
  const KernelSource source{"extern \"C\" __attribute__((global)) void k(float* p) {\n  *p = nothing;\n}\n", "k", {}};
  expect_parts(error_of(ErrorCode::runtime, [&] { (void)find_or_compile(target, source); }),
               {"compiling k for HIP gfx942 with ", "*p = nothing;", "'nothing'"});
  // A symbol that the stub does not define is found missing when its resources are read.
  const KernelSource other{"extern \"C\" __attribute__((global)) void k(float* p) { *p = 1; }\n", "l", {}};
  expect_parts(error_of(ErrorCode::runtime, [&] { (void)find_or_compile(target, other); }), {"no kernel 'l'"});
}

}  // namespace
}  // namespace tilewise::jit
