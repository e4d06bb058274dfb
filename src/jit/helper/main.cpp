// tilewise-compiler: reads a CompilerRequest on standard input, compiles with NVRTC or hipRTC and writes a
// CompilerReply. The library runs it as a child process, since these compilers may crash, hang or exit.
#include <dlfcn.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "jit/dynamic_library.hpp"
#include "jit/runtime_compiler.hpp"

namespace {

using namespace tilewise::jit;

constexpr int kExitUsage = 2;

std::vector<std::byte> read_all(int file) {
  std::vector<std::byte> bytes, buffer(1 << 16);
  for (;;) {
    const ssize_t count = read(file, buffer.data(), buffer.size());
    if (count <= 0) return bytes;
    bytes.insert(bytes.end(), buffer.begin(), buffer.begin() + count);
  }
}

bool write_all(int file, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

/// NVRTC opens its built-in functions by name; loaded from its own folder first, that name is found.
void load_builtins(const std::filesystem::path& library) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::canonical(library, error).parent_path();
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    if (it->path().filename().string().starts_with("libnvrtc-builtins.so")) dlopen(it->path().c_str(), RTLD_NOW);
  }
}

/// Empty, or why the compiler can't be used.
std::string open_compiler(const CompilerRequest& request, RuntimeCompiler& table) {
  const bool nvidia = request.interface == "nvrtc";
  if (nvidia) load_builtins(request.library);
  void* library = dlopen(request.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  const std::vector<FunctionEntry> nvrtc = {
      TILEWISE_RUNTIME_COMPILER_FUNCTIONS(TILEWISE_FUNCTION_ENTRY, "nvrtc", "CUBIN")};
  const std::vector<FunctionEntry> hiprtc = {
      TILEWISE_RUNTIME_COMPILER_FUNCTIONS(TILEWISE_FUNCTION_ENTRY, "hiprtc", "Code")};
  return look_up_functions(library, request.library, nvidia ? nvrtc : hiprtc);
}

std::string ask_version(const RuntimeCompiler& compiler, std::string& version) {
  int major = 0, minor = 0;
  if (const rtc::Result result = compiler.version(&major, &minor); result != rtc::kSuccess) {
    return compiler.error_text(result);
  }
  version = std::to_string(major) + '.' + std::to_string(minor);
  return {};
}

std::string compile(const RuntimeCompiler& compiler, const CompilerRequest& request, CompilerReply& reply) {
  std::vector<const char*> names, texts, options;
  for (const auto& [name, text] : request.headers) names.push_back(name.c_str()), texts.push_back(text.c_str());
  for (const std::string& option : request.options) options.push_back(option.c_str());
  rtc::Program program = nullptr;
  rtc::Result result = compiler.create_program(&program, request.source.c_str(), request.name.c_str(),
                                               static_cast<int>(names.size()), texts.data(), names.data());
  if (result != rtc::kSuccess) return compiler.error_text(result);
  const rtc::Result compiled = compiler.compile_program(program, static_cast<int>(options.size()), options.data());
  std::size_t size = 0;
  if (compiler.log_size(program, &size) == rtc::kSuccess && size > 1) {
    reply.log.resize(size);
    (void)compiler.log(program, reply.log.data());
    reply.log.resize(reply.log.find_last_not_of(std::string("\0\n", 2)) + 1);
  }
  if (compiled != rtc::kSuccess) return compiler.error_text(compiled);
  result = compiler.image_size(program, &size);
  if (result == rtc::kSuccess) {
    reply.image.resize(size);
    result = compiler.image(program, reinterpret_cast<char*>(reply.image.data()));
  }
  (void)compiler.destroy_program(&program);
  return result == rtc::kSuccess ? std::string() : compiler.error_text(result);
}

CompilerReply answer(const CompilerRequest& request) {
  CompilerReply reply;
  RuntimeCompiler compiler;
  reply.error = open_compiler(request, compiler);
  if (reply.error.empty()) reply.error = ask_version(compiler, reply.version);
  if (reply.error.empty() && !request.source.empty()) reply.error = compile(compiler, request, reply);
  return reply;
}

}  // namespace

int main() {
  if (isatty(STDIN_FILENO)) {
    std::fputs(
        "tilewise-compiler: the library runs this program to compile GPU kernels; it reads a request on standard "
        "input\n",
        stderr);
    return kExitUsage;
  }
  const rlimit no_core{0, 0};  // a crash is expected and told; nobody needs its memory
  setrlimit(RLIMIT_CORE, &no_core);
  // A compiler may print; its words must not get between those of the reply.
  const int reply_file = dup(STDOUT_FILENO);
  dup2(STDERR_FILENO, STDOUT_FILENO);
  CompilerRequest request;
  CompilerReply reply;
  if (request.decode(read_all(STDIN_FILENO))) {
    reply = answer(request);
  } else {
    reply.error = "tilewise-compiler: the request is of another version of Tilewise";
  }
  const bool written = write_all(reply_file, reply.encode());
  // Straight out: these libraries' own clean-up has crashed too, after all was done.
  _exit(written ? 0 : 1);
}
