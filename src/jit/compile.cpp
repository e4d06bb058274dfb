// One compilation from source to kernel: the folder the compiler works in, its command, and the message where it fails.
#include "jit/compiler.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>

#include "core/message.hpp"
#include "jit/code_object.hpp"
#include "jit/compiler_steps.hpp"
#include "jit/complete_source.hpp"
#include "jit/files.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOutputName = "kernel.out";
constexpr std::size_t kLongestLog = 8192;

void write_text(const fs::path& path, std::string_view text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

void write_sources(const fs::path& folder, const Target& target, const KernelSource& source) {
  write_text(folder / stub_name(target.kind), source.stub);
  for (const DeviceSource* header : reachable_headers(source.stub)) write_text(folder / header->path, header->text);
}

/// "stub.cu" or a device header, for the first place that the log names, with the line that stands there; else empty.
/// Compilers write FILE:LINE: or FILE(LINE):. Empty too where the log shows the line, as most do.
std::string offending_line(std::string_view log, const Target& target, const KernelSource& source) {
  std::size_t first = std::string_view::npos;
  std::string found;
  const auto consider = [&](std::string_view name, std::string_view text) {
    for (std::size_t at = log.find(name); at != std::string_view::npos && at < first; at = log.find(name, at + 1)) {
      const std::string_view rest = log.substr(at + name.size());
      if (rest.empty() || (rest.front() != ':' && rest.front() != '(')) continue;
      std::size_t number = 0;
      std::from_chars(rest.data() + 1, rest.data() + rest.size(), number);
      if (number == 0) continue;
      std::string_view line = text;
      for (std::size_t skipped = 1; skipped < number && !line.empty(); ++skipped) {
        line.remove_prefix(std::min(line.find('\n'), line.size() - 1) + 1);
      }
      line = line.substr(0, line.find('\n'));
      first = at;
      found = log.find(line) == std::string_view::npos ? core::concat(name, ":", number, ": ", line) : std::string();
    }
  };
  consider(stub_name(target.kind), source.stub);
  for (const DeviceSource* header : reachable_headers(source.stub)) consider(header->path, header->text);
  return found;
}

std::string numbered(std::string_view text) {
  std::string result;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    result += core::concat("\n  ", number, " | ", text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return result;
}

[[noreturn]] void fail(const Compiler& compiler, const Target& target, const KernelSource& source,
                       const Compilation& done, const std::string& kept) {
  std::string message = core::concat("compiling ", source.symbol, " for ", to_string(target), " with ", compiler.name,
                                     " (", compiler.path, ") failed: ", done.error);
  if (!done.log.empty()) message += core::concat("\n", std::string_view(done.log).substr(0, kLongestLog));
  if (done.log.size() > kLongestLog) message += "\n...";
  if (const std::string line = offending_line(done.log, target, source); !line.empty()) message += "\nat " + line;
  message += "\nstub:" + numbered(source.stub);
  message += kept.empty() ? "\n(TILEWISE_KEEP_SOURCE=1 keeps the sources)" : "\nsources kept in " + kept;
  throw Error(ErrorCode::runtime, message);
}

KernelResources resources_of(const Target& target, const KernelSource& source, Compilation& done) {
  KernelResources used;
  if (target.kind == TargetKind::cuda) return nvidia_resources(done.image, done.log, source.symbol);
  if (target.kind == TargetKind::hip) {
    std::string fault;
    const auto found = amd_resources(done.image, source.symbol, fault);
    if (!found) done.error = "the compiler's output can't be used: " + fault;
    used = found.value_or(used);
  }
  return used;
}

std::vector<std::string> command_for(const Compiler& compiler, const Target& target, const KernelSource& source) {
  std::vector<std::string> command{compiler.path};
  std::ranges::copy(usual_options(compiler, target), std::back_inserter(command));
  std::ranges::copy(source.options, std::back_inserter(command));
  for (const std::string& word :
       {std::string("-I."), stub_name(target.kind), std::string("-o"), std::string(kOutputName)}) {
    command.push_back(word);
  }
  return command;
}

}  // namespace

/// For AMD's GPUs. A lambda that is called in several places becomes a function else, and what it captures lies in
/// scratch memory then: 2 KB a lane where decoding appends.
constexpr const char* kInlineAll = "-inline-threshold=1000000";

std::vector<std::string> usual_options(const Compiler& compiler, const Target& target) {
  switch (compiler.kind) {
    case CompilerKind::nvrtc:
      return {"--gpu-architecture=" + target.architecture, "--std=c++20", "-default-device", "--ptxas-options=-v"};
    case CompilerKind::hiprtc:
      return {"--offload-arch=" + target.architecture, "-std=c++20", "-O3", "-mllvm", kInlineAll};
    case CompilerKind::clang:
      return {"-x",        "hip",        "--offload-device-only",   "--no-gpu-bundle-output",
              "-nogpuinc", "-nogpulib",  "-ffreestanding",          "-nostdlibinc",
              "-O3",       "-std=c++20", "-mcode-object-version=5", "--offload-arch=" + target.architecture,
              "-mllvm",    kInlineAll};
    case CompilerKind::host:
      break;
  }
  return {"-std=c++20", "-Og", "-fPIC", "-shared"};  // compiling takes longer than running
}

std::string recipe(const Compiler& compiler, const Target& target) {
  std::string text = compiler.name + '\n' + compiler.version + '\n';
  for (const std::string& option : usual_options(compiler, target)) text += option + '\n';
  return text + standard_integers(compiler.kind);
}

double compile_timeout() {
  constexpr double kDefault = 120, kShortest = 0.1, kLongest = 86400;
  const std::string text = environment_variable("TILEWISE_COMPILE_TIMEOUT");
  if (text.empty()) return kDefault;
  double seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (error != std::errc{} || end != text.data() + text.size() || !(seconds >= kShortest && seconds <= kLongest)) {
    core::invalid_argument("TILEWISE_COMPILE_TIMEOUT: must be a number of seconds in [", kShortest, ", ", kLongest,
                           "] (got ", core::quoted(text), ")");
  }
  return seconds;
}

Compilation compile_with_program(const Compiler& compiler, const Target& target, const KernelSource& source,
                                 const fs::path& folder) {
  const ChildResult result = run_child(command_for(compiler, target, source), {}, folder.string(), compile_timeout());
  Compilation done;
  done.log = result.output + result.errors;
  if (!result.succeeded()) {
    done.error = result.ending();
  } else if (auto image = read_file(folder / kOutputName); image && !image->empty()) {
    done.image = std::move(*image);
  } else {
    done.error = "it wrote nothing";
  }
  return done;
}

CompiledKernel compile(const Compiler& compiler, const Target& target, const KernelSource& source) {
  const auto begin = std::chrono::steady_clock::now();
  const bool keep = environment_variable("TILEWISE_KEEP_SOURCE") == "1";
  const bool runs_program = compiler.kind == CompilerKind::clang || compiler.kind == CompilerKind::host;
  std::unique_ptr<TemporaryFolder> folder;
  std::string kept;
  if (keep || runs_program) {
    folder = std::make_unique<TemporaryFolder>();
    write_sources(folder->path(), target, source);
  }
  Compilation done = runs_program ? compile_with_program(compiler, target, source, folder->path())
                                  : compile_at_run_time(compiler, target, source);
  CompiledKernel kernel;
  if (done.error.empty()) kernel.resources = resources_of(target, source, done);
  if (keep) {
    folder->keep();
    kept = folder->path().string();
    write_text(folder->path() / "log.txt", done.error + "\n" + done.log);
    std::fputs(core::concat("tilewise: sources of ", source.symbol, " for ", to_string(target), " kept in ", kept, "\n")
                   .c_str(),
               stderr);
  }
  if (!done.error.empty()) fail(compiler, target, source, done, kept);
  kernel.image = std::move(done.image);
  kernel.symbol = source.symbol;
  kernel.compiler = compiler.name;
  kernel.log = std::move(done.log);
  kernel.compile_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return kernel;
}

}  // namespace tilewise::jit
