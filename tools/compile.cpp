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
#include "tilewise/error.hpp"

namespace tilewise::tools {
namespace {

namespace fs = std::filesystem;

struct CompileOptions {
  std::string target, implementation, problems_file, folder, bundle;
  std::vector<std::string> words;
  int multiprocessors = 0;
};

/// A row of the dispatch table that compiles ahead of time.
struct Row {
  const core::Implementation* implementation;
  const gpu::AheadOfTime* kernels;
};

/// The row that serves the problem's operation on the architecture: the first, or the one of that name. Throws Error
/// where there is none.
Row find_row(const AnyProblem& problem, const gpu::Architecture& architecture, const std::string& name) {
  const core::DeviceDescription device = gpu::describe(architecture);
  std::vector<std::string_view> names;
  for (const core::Implementation* row : core::implementation_table()) {
    const auto* kernels = dynamic_cast<const gpu::AheadOfTime*>(row);
    if (kernels == nullptr || &row->operation() != &problem.operation()) continue;
    if (row->device() != device.device.type || !gpu::has_family(device, kernels->family())) continue;
    if (name.empty() || name == row->name()) return {row, kernels};
    names.push_back(row->name());
  }
  core::invalid_argument("implementation: must be one of those for ", architecture.name, ": ", core::listed(names),
                         core::did_you_mean(name, names), " (got ", core::quoted(name), ")");
}

std::vector<ProblemText> problems_of(const CompileOptions& options) {
  std::vector<ProblemText> texts = given_problems(options.words, options.problems_file);
  if (texts.empty()) core::invalid_argument("PROBLEM: must be given with --problem or --problems (got none)");
  return texts;
}

bool names_device(const std::string& text) {
  return text.starts_with("device=") || text.find(" device=") != std::string::npos ||
         text.find("\tdevice=") != std::string::npos;
}

/// The device follows from the target where the text leaves it out.
AnyProblem read_problem(const std::string& text, const gpu::Architecture& architecture) {
  const std::string_view device = to_string(gpu::device_of(architecture));
  AnyProblem problem = parse_problem(names_device(text) ? text : core::concat(text, " device=", device));
  if (problem.device() != gpu::device_of(architecture)) {
    core::invalid_argument("device: must be ", device, " for ", architecture.name, " (got ",
                           to_string(problem.device()), ")");
  }
  return problem;
}

LoweredProblem lower_problem(const AnyProblem& problem, const Row& row, const core::DeviceDescription& device) {
  const core::Implementation& implementation = *row.implementation;
  const core::OperationInterface& operation = problem.operation();
  const core::FeatureBits missing = operation.required_features(problem.value()) & ~implementation.supported_features();
  const core::Verdict verdict =
      missing == 0 ? implementation.judge_problem(problem, device)
                   : core::Verdict::refuse(
                         core::concat("does not support ", core::features_text(missing, operation.feature_names())));
  if (!verdict.accepted()) {
    throw Error(ErrorCode::unsupported, core::concat(implementation.name(), " refuses ", to_string(problem), " on ",
                                                     device.architecture, ": ", verdict.reason));
  }
  return {problem, dynamic_cast<const gpu::LoweredKernel&>(*verdict.kernel).lowering(),
          row.kernels->contiguous_call(problem)};
}

/// What is asked for, lowered, and the implementation that serves it.
struct Lowered {
  std::string_view implementation;
  std::vector<LoweredProblem> problems;
};

Lowered lower_problems(const CompileOptions& options, const gpu::Architecture& architecture,
                       const core::DeviceDescription& device) {
  Lowered lowered;
  for (const ProblemText& given : problems_of(options)) {
    try {
      const AnyProblem problem = read_problem(given.text, architecture);
      const Row row = find_row(problem, architecture, options.implementation);
      lowered.implementation = row.implementation->name();
      lowered.problems.push_back(lower_problem(problem, row, device));
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

void print_table(std::span<const NamedKernel> kernels) {
  Table table({"kernel", ">threads", ">registers", ">shared", ">spilled", ">scratch", ">seconds"});
  for (const NamedKernel& kernel : kernels) {
    const jit::CompiledKernel& compiled = *kernel.build->compiled;
    const jit::KernelResources& used = compiled.resources;
    std::string registers = std::to_string(used.registers);
    if (used.accumulation_registers > 0) registers += "+" + std::to_string(used.accumulation_registers);
    const std::uint32_t shared =
        static_cast<std::uint32_t>(used.static_shared_bytes) + kernel.build->key.dynamic_shared_bytes();
    table.add_row({kernel.file, std::to_string(used.max_threads), registers, std::to_string(shared),
                   std::to_string(used.spill_bytes), std::to_string(used.scratch_bytes),
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
  core::DeviceDescription device = gpu::describe(architecture);
  if (options.multiprocessors > 0) device.multiprocessors = options.multiprocessors;
  const auto [implementation, problems] = lower_problems(options, architecture, device);
  const std::vector<gpu::KernelBuild> builds = compile_kernels(problems, target);
  const std::vector<NamedKernel> kernels = name_kernels(builds);
  if (!options.folder.empty()) {
    write_folder(options.folder, kernels, launch_json(implementation, device, kernels, problems));
  }
  if (!options.bundle.empty()) write_bundle_file(options.bundle, builds);

  if (!kernels.empty()) print_table(kernels), print_losses(kernels);
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
                  "use this one, e.g. cuda.sm80 (default: the first that the target has)")
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
