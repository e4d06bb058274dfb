// `tilewise compile`: kernels for a GPU that need not be here, as files for a bare driver, as a bundle, or in the
// cache.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "commands.hpp"
#include "console.hpp"
#include "core/implementation.hpp"
#include "core/message.hpp"
#include "core/spelling.hpp"
#include "gpu/ahead_of_time.hpp"
#include "gpu/architectures.hpp"
#include "gpu/lowered_kernel.hpp"
#include "jit/bundle.hpp"
#include "jit/kernel_cache.hpp"
#include "launch_json.hpp"
#include "option_checks.hpp"
#include "target.hpp"
#include "tilewise/error.hpp"

namespace tilewise::tools {
namespace {

namespace fs = std::filesystem;

struct CompileOptions {
  std::string target, implementation, problems_file, folder, bundle;
  std::vector<std::string> words;
  int multiprocessors = 0;
};

std::vector<ProblemText> problems_of(const CompileOptions& options) {
  std::vector<ProblemText> texts = given_problems(options.words, options.problems_file);
  if (texts.empty()) core::invalid_argument("PROBLEM: must be given with --problem or --problems (got none)");
  return texts;
}

/// Those of a walk that the device has the instructions for, and why each refuses the problem.
[[noreturn]] void refuse(const AnyProblem& problem, const core::Selection& walk,
                         const core::DeviceDescription& device) {
  std::vector<const core::Candidate*> asked;
  for (const core::Candidate& candidate : walk.candidates) {
    const auto* kernels = dynamic_cast<const gpu::AheadOfTime*>(candidate.implementation);
    const bool serves = kernels != nullptr && candidate.implementation->device() == device.device.type;
    if (serves && gpu::has_family(device, kernels->family())) asked.push_back(&candidate);
  }
  std::string message;
  for (const core::Candidate* candidate : asked) {
    core::append(message,
                 core::concat(message.empty() ? "" : "\n", candidate->implementation->name(), " refuses ",
                              to_string(problem), " on ", device.architecture, ": ", candidate->verdict.reason));
  }
  throw Error(ErrorCode::unsupported, message);
}

/// The problem with what dispatch would take for it on the device.
LoweredProblem lower_problem(const AnyProblem& problem, const core::DeviceDescription& device,
                             const std::string& implementation) {
  const core::Selection walk = select_for(problem, device, implementation);
  if (walk.chosen < 0) refuse(problem, walk, device);
  const core::Candidate& chosen = walk.candidates[static_cast<std::size_t>(walk.chosen)];
  return {problem, chosen.implementation->name(),
          dynamic_cast<const gpu::LoweredKernel&>(*chosen.verdict.kernel).lowering(),
          dynamic_cast<const gpu::AheadOfTime&>(*chosen.implementation).contiguous_call(problem)};
}

std::vector<LoweredProblem> lower_problems(const CompileOptions& options, const gpu::Architecture& architecture,
                                           const core::DeviceDescription& device) {
  std::vector<LoweredProblem> lowered;
  for (const ProblemText& given : problems_of(options)) {
    try {
      lowered.push_back(lower_problem(read_problem(given.text, architecture), device, options.implementation));
    } catch (const Error& error) {
      throw Error(error.code(), given.place + error.what());
    }
  }
  return lowered;
}

/// Every kernel of the problems, compiled. Throws the first error there was.
std::vector<gpu::KernelBuild> compile_kernels(std::span<const LoweredProblem> problems, const jit::Target& target) {
  std::vector<gpu::KernelBuild> builds;
  for (const LoweredProblem& problem : problems) gpu::add_builds(problem.lowering.launches(), target, builds);
  Progress progress(static_cast<std::int64_t>(builds.size()));
  gpu::compile_ahead(builds, [&](std::size_t done) { progress.update(static_cast<std::int64_t>(done)); });
  for (const gpu::KernelBuild& build : builds) {
    if (build.error) std::rethrow_exception(build.error);
  }
  return builds;
}

void write_file(const fs::path& path, const void* bytes, std::size_t size) {
  std::ofstream file(path, std::ios::binary);
  file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  file.close();
  if (!file) throw Error(ErrorCode::runtime, core::concat("--out: ", path.string(), " could not be written"));
}

void write_folder(const fs::path& folder, std::span<const NamedKernel> kernels,
                  const nlohmann::ordered_json& launches) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw Error(ErrorCode::runtime, core::concat("--out: ", folder.string(), " could not be made: ", error.message()));
  }
  for (const NamedKernel& kernel : kernels) {
    const std::vector<std::byte>& image = kernel.build->compiled->image;
    write_file(folder / kernel.file, image.data(), image.size());
  }
  const std::string text = launches.dump(2) + "\n";
  write_file(folder / "launch.json", text.data(), text.size());
}

void write_bundle_file(const std::string& path, std::span<const gpu::KernelBuild> builds) {
  std::vector<jit::BundleEntry> entries;
  for (const gpu::KernelBuild& build : builds) {
    entries.push_back({build.target, jit::source_hash(build.target, build.source), *build.compiled});
  }
  jit::write_bundle(path, entries);
}

/// "cuda.hopper": those whose problems launch the kernel.
std::string implementations_of(const gpu::KernelBuild& build, std::span<const LoweredProblem> problems) {
  std::vector<std::string_view> names;
  for (const LoweredProblem& problem : problems) {
    const std::vector<const gpu::Launch*> launches = problem.lowering.launches();
    if (std::ranges::find(launches, build.key, &gpu::Launch::key) == launches.end()) continue;
    if (std::ranges::find(names, problem.implementation) == names.end()) names.push_back(problem.implementation);
  }
  return core::listed(names);
}

void print_table(std::span<const NamedKernel> kernels, std::span<const LoweredProblem> problems) {
  Table table({"kernel", "implementation", ">threads", ">registers", ">shared", ">spilled", ">scratch", ">seconds"});
  for (const NamedKernel& kernel : kernels) {
    const jit::CompiledKernel& compiled = *kernel.build->compiled;
    const jit::KernelResources& used = compiled.resources;
    std::string registers = std::to_string(used.registers);
    if (used.accumulation_registers > 0) registers += "+" + std::to_string(used.accumulation_registers);
    const std::uint32_t shared =
        static_cast<std::uint32_t>(used.static_shared_bytes) + kernel.build->key.dynamic_shared_bytes();
    table.add_row({kernel.file, implementations_of(*kernel.build, problems), std::to_string(used.max_threads),
                   registers, std::to_string(shared), std::to_string(used.spill_bytes),
                   std::to_string(used.scratch_bytes),
                   compiled.compile_seconds > 0 ? format_number(compiled.compile_seconds) : "kept"});
  }
  table.print(std::cout);
}

/// Where products that could overlap wait for each other, say, which costs a kernel a third of its speed.
void print_losses(std::span<const NamedKernel> kernels) {
  for (const NamedKernel& kernel : kernels) {
    std::istringstream log(kernel.build->compiled->log);
    for (std::string line; std::getline(log, line);) {
      if (line.find("Potential Performance Loss") != std::string::npos)
        std::cout << kernel.file << ": " << line << '\n';
    }
  }
}

std::string counted(std::size_t count, std::string_view thing) {
  return core::concat(count, " ", thing, count == 1 ? "" : "s");
}

void compile_problems(const CompileOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  check_that_cache_keeps();
  const gpu::Architecture& architecture = gpu::named_architecture(options.target);
  const jit::Target target = jit::parse_target(architecture.name);
  const core::DeviceDescription device = described_target(architecture, options.multiprocessors);
  const std::vector<LoweredProblem> problems = lower_problems(options, architecture, device);
  const std::vector<gpu::KernelBuild> builds = compile_kernels(problems, target);
  const std::vector<NamedKernel> kernels = name_kernels(builds);
  if (!options.folder.empty()) {
    write_folder(options.folder, kernels, launch_json(device, kernels, problems));
  }
  if (!options.bundle.empty()) write_bundle_file(options.bundle, builds);

  if (!kernels.empty()) print_table(kernels, problems), print_losses(kernels);
  std::cout << note_on(architecture);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  std::cout << counted(kernels.size(), "kernel") << " of " << counted(problems.size(), "problem") << " for "
            << jit::to_string(target) << " in " << format_seconds(passed.count());
  if (!options.folder.empty()) std::cout << ", written to " << options.folder;
  if (!options.bundle.empty()) std::cout << ", bundled in " << options.bundle;
  std::cout << '\n';
}

}  // namespace

void add_compile(CLI::App& program) {
  CLI::App& command = *program.add_subcommand("compile", "Compile the kernels of problems, for a GPU here or not");
  const auto options = std::make_shared<CompileOptions>();
  command.add_option("--target", options->target, "the GPU's architecture, e.g. sm_90a, gfx942")
      ->required()
      ->type_name("NAME");
  command.add_option("--problem", options->words, "a problem as one line of text; may be repeated")
      ->option_text("PROBLEM...");
  command.add_option("--problems", options->problems_file, "a file with a problem a line; # begins a comment")
      ->type_name("FILE");
  command
      .add_option("--implementation", options->implementation,
                  "use this one, e.g. cuda.sm80 (default: what a call on the target would take)")
      ->type_name("NAME");
  with_check(
      command.add_option("--out", options->folder, "write each kernel's code object and launch.json into this folder"),
      path_to_write("DIR"));
  with_check(
      command.add_option("--bundle", options->bundle, "write a bundle, which TILEWISE_BUNDLE loads without a compiler"),
      path_to_write("FILE"));
  with_check(command.add_option("--multiprocessors", options->multiprocessors,
                                "schedule for as many (default: those of a common GPU of the target)"),
             integer_between(1, 65536));
  command.callback([options] { compile_problems(*options); });
  command.footer("Without --out and --bundle the kernels are left in the cache (tilewise cache list).");
}

}  // namespace tilewise::tools
