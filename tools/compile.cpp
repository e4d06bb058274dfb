// `tilewise compile`: kernels for a GPU that need not be here, as files for a bare driver, as a bundle, or in the
// cache.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "backends/portable/architectures.hpp"
#include "backends/portable/gpu_implementation.hpp"
#include "backends/portable/schedule.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "core/message.hpp"
#include "jit/bundle.hpp"
#include "jit/kernel_cache.hpp"
#include "launch_json.hpp"
#include "tilewise/error.hpp"

namespace tilewise::tools {
namespace {

namespace fs = std::filesystem;
namespace portable = backends::portable;

struct Options {
  std::string target, implementation, problems_file, folder, bundle;
  std::vector<std::string> words;
  int multiprocessors = 0;
};

/// A problem as it was given, and where.
struct ProblemText {
  std::string text, place;
};

/// The row of the dispatch table whose kernels run on the architecture. Throws Error for another implementation.
const core::Implementation& find_implementation(const portable::Architecture& architecture, const std::string& name) {
  std::string names;
  for (const core::Implementation* row : core::implementation_table()) {
    const auto* gpu = dynamic_cast<const portable::GpuImplementation*>(row);
    if (gpu == nullptr || gpu->machine() != architecture.machine) continue;
    if (name.empty() || name == gpu->name()) return *gpu;
    core::append(names, core::concat(names.empty() ? "" : ", ", gpu->name()));
  }
  core::invalid_argument("implementation: must be one of those for ", architecture.name, ": ", names, " (got ",
                         core::quoted(name), ")");
}

std::vector<ProblemText> given_problems(const Options& options) {
  std::vector<ProblemText> texts;
  for (std::string& text : join_problems(options.words)) texts.push_back({std::move(text), {}});
  if (!options.problems_file.empty()) {
    std::ifstream file(options.problems_file);
    if (!file) core::invalid_argument("--problems: ", options.problems_file, " can't be read");
    int number = 0;
    for (std::string line; std::getline(file, line);) {
      ++number;
      line.erase(std::min(line.find('#'), line.size()));
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      texts.push_back({line, core::concat(options.problems_file, ":", number, ": ")});
    }
  }
  if (texts.empty()) core::invalid_argument("PROBLEM: must be given with --problem or --problems (got none)");
  return texts;
}

bool names_device(const std::string& text) {
  return text.starts_with("device=") || text.find(" device=") != std::string::npos ||
         text.find("\tdevice=") != std::string::npos;
}

/// The device follows from the target where the text leaves it out.
Problem read_problem(const std::string& text, const portable::Architecture& architecture) {
  const std::string_view device = to_string(portable::device_of(architecture));
  const Problem problem = parse_problem(names_device(text) ? text : core::concat(text, " device=", device));
  if (problem.device != portable::device_of(architecture)) {
    core::invalid_argument("device: must be ", device, " for ", architecture.name, " (got ", to_string(problem.device),
                           ")");
  }
  return problem;
}

LoweredProblem lower_problem(const Problem& problem, const core::Implementation& implementation,
                             const portable::DeviceTraits& traits) {
  using operations::attention::FeatureSet;
  const FeatureSet supported = operations::attention::features_of(implementation);
  const FeatureSet missing = operations::attention::required_features(problem).minus(supported);
  const std::string reason = missing.empty() ? portable::portable_refusal(problem, traits)
                                             : core::concat("does not support ", to_string(missing));
  if (!reason.empty()) {
    throw Error(ErrorCode::unsupported, core::concat(implementation.name(), " refuses ", to_string(problem), " on ",
                                                     traits.architecture, ": ", reason));
  }
  return {problem, portable::lower(problem, traits)};
}

std::vector<LoweredProblem> lower_problems(const Options& options, const portable::Architecture& architecture,
                                           const core::Implementation& implementation,
                                           const portable::DeviceTraits& traits) {
  std::vector<LoweredProblem> lowered;
  for (const ProblemText& given : given_problems(options)) {
    try {
      lowered.push_back(lower_problem(read_problem(given.text, architecture), implementation, traits));
    } catch (const Error& error) {
      throw Error(error.code(), given.place + error.what());
    }
  }
  return lowered;
}

/// Every kernel of the problems, compiled. Throws the first error there was.
std::vector<portable::KernelBuild> compile_kernels(std::span<const LoweredProblem> problems,
                                                   const portable::DeviceTraits& traits, const jit::Target& target) {
  std::vector<portable::KernelBuild> builds;
  for (const LoweredProblem& problem : problems) portable::add_builds(problem.lowering, traits, target, builds);
  Progress progress(static_cast<std::int64_t>(builds.size()));
  portable::compile_ahead(builds, [&](std::size_t done) { progress.update(static_cast<std::int64_t>(done)); });
  for (const portable::KernelBuild& build : builds) {
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

void write_bundle_file(const std::string& path, std::span<const portable::KernelBuild> builds) {
  std::vector<jit::BundleEntry> entries;
  for (const portable::KernelBuild& build : builds) {
    entries.push_back({build.target, jit::source_hash(build.target, build.source), *build.compiled});
  }
  jit::write_bundle(path, entries);
}

void print_table(std::span<const NamedKernel> kernels, device::Machine machine) {
  Table table({"kernel", ">threads", ">registers", ">shared", ">spilled", ">scratch", ">seconds"});
  for (const NamedKernel& kernel : kernels) {
    const jit::CompiledKernel& compiled = *kernel.build->compiled;
    const jit::KernelResources& used = compiled.resources;
    std::string registers = std::to_string(used.registers);
    if (used.accumulation_registers > 0) registers += "+" + std::to_string(used.accumulation_registers);
    const std::uint32_t shared = static_cast<std::uint32_t>(used.static_shared_bytes) +
                                 portable::dynamic_shared_bytes(kernel.build->key, machine);
    table.add_row({kernel.file, std::to_string(used.max_threads), registers, std::to_string(shared),
                   std::to_string(used.spill_bytes), std::to_string(used.scratch_bytes),
                   compiled.compile_seconds > 0 ? format_number(compiled.compile_seconds) : "kept"});
  }
  table.print(std::cout);
}

std::string counted(std::size_t count, std::string_view thing) {
  return core::concat(count, " ", thing, count == 1 ? "" : "s");
}

void compile_problems(const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const portable::Architecture& architecture = portable::named_architecture(options.target);
  const jit::Target target = jit::parse_target(architecture.name);
  const core::Implementation& implementation = find_implementation(architecture, options.implementation);
  portable::DeviceTraits traits = portable::traits_of(architecture);
  if (options.multiprocessors > 0) traits.multiprocessors = options.multiprocessors;
  const std::vector<LoweredProblem> problems = lower_problems(options, architecture, implementation, traits);
  const std::vector<portable::KernelBuild> builds = compile_kernels(problems, traits, target);
  const std::vector<NamedKernel> kernels = name_kernels(builds);
  if (!options.folder.empty()) {
    write_folder(options.folder, kernels, launch_json(implementation.name(), traits, kernels, problems));
  }
  if (!options.bundle.empty()) write_bundle_file(options.bundle, builds);

  if (!kernels.empty()) print_table(kernels, architecture.machine);
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
  const auto options = std::make_shared<Options>();
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
