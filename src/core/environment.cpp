// The list of them.
#include "core/environment.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "core/message.hpp"
#include "core/spelling.hpp"

namespace tilewise::core {
namespace {

constexpr std::array<EnvironmentVariable, 23> kVariables = {{
    {"TILEWISE_FORCE", "use only these implementations"},
    {"TILEWISE_DISABLE", "never use these implementations"},
    {"TILEWISE_LOG", "dispatch: print each decision once"},
    {"TILEWISE_NUM_THREADS", "CPU threads"},
    {"TILEWISE_CPU_ISA", "the best CPU instruction set to use"},
    {"TILEWISE_TORCH_OPS", "python or c++: how the torch operators are registered"},
    {"TILEWISE_VLLM", "which layers vLLM computes by Tilewise"},
    {"TILEWISE_FLASH_ATTN_DMASK", "rocm: S_dmask of the flash_attn drop-in as bytes"},
    {"TILEWISE_FLASH_ATTN_STRICT", "1: the flash_attn drop-in refuses what flash_attn's kernels do not take"},
    {"TILEWISE_CACHE_DIR", "folder of compiled kernels and tuned schedules"},
    {"TILEWISE_CACHE_SIZE_MB", "how large that folder may become"},
    {"TILEWISE_BUNDLE", "files of kernels compiled ahead of time, separated by ':'"},
    {"TILEWISE_COMPILE_TIMEOUT", "seconds that one compilation may take"},
    {"TILEWISE_KEEP_SOURCE", "1: keep what compilers are given and say"},
    {"TILEWISE_COMPILER", "the program in which NVRTC and hipRTC run"},
    {"TILEWISE_NVRTC", "NVRTC, or the folder with it"},
    {"TILEWISE_CLANG", "clang for AMD GPUs; none: hipRTC"},
    {"TILEWISE_HIPRTC", "hipRTC, or the folder with it"},
    {"TILEWISE_CXX", "C++ compiler for emulated kernels"},
    {"TILEWISE_EMULATION_SEED", "order in which emulated lanes advance"},
    {"TILEWISE_CUDA_DRIVER", "library to open in place of libcuda.so.1"},
    {"TILEWISE_HIP_DRIVER", "library to open in place of libamdhip64"},
    {"TILEWISE_CHECK", "1: check lengths that lie in a GPU's memory; refuse indices outside captured tensors"},
}};

}  // namespace

std::span<const EnvironmentVariable> environment_variables() { return kVariables; }

std::vector<std::string> unknown_variables() {
  constexpr std::string_view kPrefix = "TILEWISE_";  // what all have resembles nothing
  std::vector<std::string_view> known;
  for (const EnvironmentVariable& variable : kVariables) known.push_back(variable.name.substr(kPrefix.size()));
  std::vector<std::string> sentences;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    if (!name.starts_with(kPrefix)) continue;
    const std::string_view own = name.substr(kPrefix.size());
    if (own.starts_with("TEST_")) continue;  // the test programs' own
    if (std::ranges::find(known, own) != known.end()) continue;
    const std::string_view meant = nearest_word(own, known);
    const std::string advice = meant.empty() ? "" : concat("; did you mean ", kPrefix, meant, "?");
    sentences.push_back(concat(name, ": must be a variable that Tilewise reads", advice, " (got an unknown name)"));
  }
  return sentences;
}

}  // namespace tilewise::core
