// What AMD's kernels must not do, read from their machine code: call functions, whose registers go to scratch, and
// address memory without saying which.
#pragma once

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/message.hpp"
#include "jit/child_process.hpp"
#include "jit/compiler.hpp"
#include "jit/files.hpp"

namespace tilewise::backends::portable {

/// LLVM's, beside the clang that compiled the kernels; empty where another compiler did.
inline std::string disassembler() {
  const jit::CompilerSearch found = jit::find_compiler(jit::TargetKind::hip);
  if (!found.compiler || found.compiler->kind != jit::CompilerKind::clang) return {};
  return (std::filesystem::canonical(found.compiler->path).parent_path() / "llvm-objdump").string();
}

/// The first instruction of a code object that calls a function, makes a flat access or touches scratch; empty where
/// there is none. gfx90a touches scratch by buffer instructions, ours among which have offsets of lanes.
inline std::string unwanted_instruction(const std::string& program, const jit::CompiledKernel& kernel) {
  constexpr std::array<std::string_view, 5> kUnwanted{"\ts_swappc_b64", "\ts_call_b64", "\tflat_", "\tscratch_",
                                                      ", off, s["};
  const jit::TemporaryFolder folder;
  const std::filesystem::path file = folder.path() / "kernel.hsaco";
  if (std::string fault = jit::write_file_atomically(file, kernel.image); !fault.empty()) return fault;
  constexpr double kLimitSeconds = 60;
  const jit::ChildResult done =
      jit::run_child({program, "-d", "--no-show-raw-insn", file.string()}, {}, {}, kLimitSeconds);
  if (!done.succeeded()) return core::concat(program, ": ", done.start_error, done.ending(), " ", done.errors);
  if (done.output.find("\ts_endpgm") == std::string::npos) return core::concat(program, " found no kernel's end");
  for (const std::string_view unwanted : kUnwanted) {
    if (const std::size_t at = done.output.find(unwanted); at != std::string::npos) {
      const std::size_t line = done.output.rfind('\n', at) + 1;
      return done.output.substr(line, done.output.find('\n', at) - line);
    }
  }
  return {};
}

}  // namespace tilewise::backends::portable
