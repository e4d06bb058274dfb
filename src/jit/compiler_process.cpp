// Talks to tilewise-compiler, the program in which NVRTC and hipRTC run.
#include <string>
#include <utility>

#include "core/message.hpp"
#include "jit/compiler_steps.hpp"
#include "jit/complete_source.hpp"
#include "jit/files.hpp"
#include "jit/search_paths.hpp"

namespace tilewise::jit {
namespace {

namespace fs = std::filesystem;
constexpr const char* kProgram = "tilewise-compiler";

}  // namespace

fs::path find_compiler_process(std::string& reason) {
  std::string ignored;
  if (const std::string named = environment_variable("TILEWISE_COMPILER"); !named.empty()) {
    const fs::path program = find_program(named, ignored);
    if (program.empty() && ignored.empty())
      reason = core::concat("TILEWISE_COMPILER: must name a program (got ", core::quoted(named), ")");
    if (!ignored.empty()) reason = "TILEWISE_COMPILER: " + ignored;
    return program;
  }
  const fs::path own = own_folder();
  // A wheel's package, for its module and for the shared library in its lib/; a build folder's root.
  std::vector<fs::path> places{own, own.parent_path()};
  for (const fs::path& packages : package_folders()) places.push_back(packages / "tilewise");  // for its command
  for (fs::path folder = own; folder.has_relative_path(); folder = folder.parent_path()) {
    places.push_back(folder / "libexec" / "tilewise");
    std::error_code error;
    if (fs::exists(folder / "CMakeCache.txt", error)) places.push_back(folder);
  }
  for (const fs::path& place : places) {
    if (fs::path program = find_program((place / kProgram).string(), ignored); !program.empty()) return program;
  }
  fs::path program = find_program(kProgram, ignored);
  if (program.empty()) {
    reason = core::concat(kProgram, " not found beside the library (", own.string(),
                          "), in its libexec/tilewise or in PATH; TILEWISE_COMPILER names it");
    if (!ignored.empty()) add_sentence(reason, "ignored: " + ignored);
  }
  return program;
}

CompilerReply ask_compiler_process(const CompilerRequest& request, double limit_seconds) {
  CompilerReply reply;
  const fs::path program = find_compiler_process(reply.error);
  if (program.empty()) return reply;
  const std::vector<std::byte> message = request.encode();
  const ChildResult result =
      run_child({program.string()}, {reinterpret_cast<const char*>(message.data()), message.size()}, {}, limit_seconds);
  const bool understood = result.succeeded() && reply.decode(as_bytes(result.output));
  if (!understood) {
    reply = {};
    reply.error = core::concat(request.interface, " ", result.succeeded() ? "process gave no answer" : result.ending());
  }
  if (!result.errors.empty()) reply.log += (reply.log.empty() ? "" : "\n") + result.errors;
  return reply;
}

std::string standard_integers(CompilerKind kind) {
  // Neither NVRTC nor hipRTC has <stdint.h>, and the device headers need no other. hipRTC before ROCm 7 declares these
  // names by itself, with 64 bits as long long; elsewhere they are what they are on the host.
  const std::string wide = kind == CompilerKind::hiprtc ? "long long" : "long";
  std::string text = "#pragma once\n";
  for (const auto& [name, type] : {std::pair<std::string, std::string>{"int8_t", "signed char"},
                                   {"int16_t", "short"},
                                   {"int32_t", "int"},
                                   {"int64_t", wide},
                                   {"uint8_t", "unsigned char"},
                                   {"uint16_t", "unsigned short"},
                                   {"uint32_t", "unsigned int"},
                                   {"uint64_t", "unsigned " + wide},
                                   {"intptr_t", "long"},
                                   {"uintptr_t", "unsigned long"}}) {
    text += "typedef " + type + " " + name + ";\n";
  }
  return text;
}

std::string stub_name(TargetKind kind) {
  return kind == TargetKind::cuda ? "stub.cu" : kind == TargetKind::hip ? "stub.hip" : "stub.cpp";
}

Compilation compile_at_run_time(const Compiler& compiler, const Target& target, const KernelSource& source) {
  CompilerRequest request;
  request.interface = compiler.kind == CompilerKind::nvrtc ? "nvrtc" : "hiprtc";
  request.library = compiler.path;
  request.name = stub_name(target.kind);
  request.source = source.stub;
  request.headers.emplace_back("stdint.h", standard_integers(compiler.kind));
  for (const DeviceSource* header : reachable_headers(source.stub)) {
    request.headers.emplace_back(header->path, header->text);
  }
  request.options = usual_options(compiler, target);
  request.options.insert(request.options.end(), source.options.begin(), source.options.end());
  CompilerReply reply = ask_compiler_process(request, compile_timeout());
  return {std::move(reply.error), std::move(reply.log), std::move(reply.image)};
}

}  // namespace tilewise::jit
