// `tilewise doctor`: what this machine offers, what is in force, and what is wrong.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "backends/cpu/cpu_features.hpp"
#include "commands.hpp"
#include "console.hpp"
#include "core/environment.hpp"
#include "core/plan.hpp"
#include "jit/cuda_driver.hpp"
#include "jit/disk_cache.hpp"
#include "jit/hip_driver.hpp"
#include "jit/kernel_cache.hpp"
#include "machine.hpp"
#include "operations/attention/attention.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"

namespace tilewise::tools {
namespace {

using Json = nlohmann::ordered_json;
namespace cpu = backends::cpu;

/// The value of `compute`, or null with the error's sentence added to `problems`.
Json checked(Json& problems, const std::function<Json()>& compute) {
  try {
    return compute();
  } catch (const Error& error) {
    if (std::ranges::find(problems, Json(error.what())) == problems.end()) problems.push_back(error.what());
    return nullptr;
  }
}

Json instruction_sets(Json& problems) {
  Json list = Json::array();
  for (const cpu::IsaStatus& machine : cpu::machine_isas()) {
    Json entry{{"name", cpu::to_string(machine.isa)}, {"available", machine.available}, {"reason", machine.reason}};
    const Json capped = checked(problems, [&machine] {
      const cpu::IsaStatus status = cpu::isa_status(machine.isa);
      return Json{{"available", status.available}, {"reason", status.reason}};
    });
    if (!capped.is_null()) entry.update(capped);
    list.push_back(std::move(entry));
  }
  return list;
}

Json implementations() {
  constexpr std::array<std::string_view, 6> kTold{"forward", "backward", "f32", "bf16", "f16", "f64"};
  Json list = Json::array();
  for (const core::Implementation* row : core::implementation_table()) {
    const std::span<const std::string_view> names = row->operation().feature_names();
    Json can = Json::array();
    for (const std::string_view feature : kTold) {
      const auto found = std::ranges::find(names, feature);
      if (found != names.end() && (row->supported_features() >> (found - names.begin()) & 1) != 0)
        can.push_back(feature);
    }
    list.push_back({{"name", row->name()},
                    {"operation", row->operation().name()},
                    {"device", to_string(row->device())},
                    {"supports", std::move(can)}});
  }
  return list;
}

/// What a common problem of each dtype would run on. Finds overrides that leave nothing or name nothing.
Json choices(Json& problems) {
  Json list = Json::object();
  for (const std::string dtype : {"f32", "bf16", "f16"}) {
    list[dtype] = checked(problems, [&dtype] {
      const Problem problem = parse_problem("attention_forward dtype=" + dtype + " seqlen_q=64 head_dim=64");
      return Json(plan(problem).implementation());
    });
  }
  return list;
}

Json gpus() {
  Json list = Json::array();
  for (const GpuDevice& gpu : gpu_devices()) list.push_back({{"vendor", gpu.vendor}, {"address", gpu.address}});
  return list;
}

Json library(std::string_view name, const std::string& path, const std::string& reason) {
  return {{"name", name}, {"found", reason.empty()}, {"detail", reason.empty() ? path : reason}};
}

Json compiler(std::string_view name, std::string_view architecture, Json& problems) {
  const jit::Target target = jit::parse_target(architecture);
  std::string found;
  const Json reason = checked(problems, [&target, &found] {
    found = jit::compiler_name(target);
    return Json(jit::compiler_reason(target));
  });
  if (reason.is_null()) return library(name, found, "see the problems below");
  const std::string ignored = reason.get<std::string>().empty() ? jit::ignored_compilers(target) : std::string();
  if (!ignored.empty()) found += " (ignored: " + ignored + ")";
  return library(name, found, reason.get<std::string>());
}

/// The drivers, and a compiler for each kind of target.
Json libraries(Json& problems) {
  return {library("libcuda.so.1", jit::cuda_driver().path, jit::cuda_driver().reason),
          library("libamdhip64.so", jit::hip_driver().path, jit::hip_driver().reason),
          compiler("compiler for NVIDIA", "sm_80", problems), compiler("compiler for AMD", "gfx942", problems),
          compiler("compiler for emulation", "host", problems)};
}

Json kernel_cache(Json& problems) {
  const Json limit = checked(problems, [] { return Json(jit::cache_size_limit()); });
  const std::string reason = jit::cache_folder_reason();
  if (jit::cache_is_ignored()) problems.push_back("kernel cache: " + reason);
  return {{"folder", jit::cache_folder().string()}, {"limit_bytes", limit}, {"reason", reason}};
}

Json environment(Json& problems) {
  Json list = Json::array();
  for (const core::EnvironmentVariable& variable : core::environment_variables()) {
    const char* value = std::getenv(std::string(variable.name).c_str());
    list.push_back(
        {{"name", variable.name}, {"value", value ? Json(value) : Json(nullptr)}, {"meaning", variable.meaning}});
  }
  for (std::string& sentence : core::unknown_variables()) problems.push_back(std::move(sentence));
  return list;
}

Json examine() {
  Json problems = Json::array(), report;
  report["version"] = version();
  report["cpu"] = {{"name", processor_name()}, {"processors", allowed_processors()}, {"memory_bytes", memory_bytes()}};
  report["instruction_sets"] = instruction_sets(problems);
  report["num_threads"] = checked(problems, [] { return Json(get_num_threads()); });
  report["implementations"] = implementations();
  report["choices"] = choices(problems);
  report["plan_cache"] = {{"place", "memory of each process"}, {"capacity", core::kPlanCacheCapacity}};
  report["gpus"] = gpus();
  report["libraries"] = libraries(problems);
  report["kernel_cache"] = kernel_cache(problems);
  for (const std::string& fault : jit::bundle_faults()) problems.push_back(fault);
  report["environment"] = environment(problems);
  report["problems"] = std::move(problems);
  return report;
}

std::string text(const Json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

void print_machine(const Json& report) {
  const Json& machine = report["cpu"];
  constexpr double kGibibyte = 1024.0 * 1024.0 * 1024.0;
  std::cout << "Tilewise " << text(report["version"]) << "\n\nDevices\n  cpu   " << text(machine["name"]) << ", "
            << machine["processors"] << " processors allowed, "
            << format_number(machine["memory_bytes"].get<double>() / kGibibyte) << " GiB memory\n";
  for (const Json& gpu : report["gpus"]) {
    std::cout << "  gpu   " << text(gpu["vendor"]) << " at PCI " << text(gpu["address"]) << '\n';
  }
  if (report["gpus"].empty()) std::cout << "  gpu   none of NVIDIA or AMD on the PCI bus\n";

  std::cout << "\nInstruction sets\n";
  Table sets({"name", "", "reason"});
  for (const Json& set : report["instruction_sets"])
    sets.add_row({text(set["name"]), set["available"].get<bool>() ? "available" : "missing", text(set["reason"])});
  sets.print(std::cout, 2);
}

void print_software(const Json& report) {
  std::cout << "\nCPU threads: " << (report["num_threads"].is_null() ? "unknown" : report["num_threads"].dump())
            << "\n\nImplementations, in the order they are asked\n";
  Table rows({"name", "operation", "device", "supports"});
  for (const Json& row : report["implementations"]) {
    std::string can;
    for (const Json& feature : row["supports"]) can += (can.empty() ? "" : ", ") + text(feature);
    rows.add_row({text(row["name"]), text(row["operation"]), text(row["device"]), can});
  }
  rows.print(std::cout, 2);
  std::cout << "  Chosen for a common problem:";
  for (const auto& [dtype, name] : report["choices"].items())
    std::cout << (dtype == "f32" ? " " : ", ") << dtype << ' ' << (name.is_null() ? "none" : text(name));
  std::cout << "\n\nPlan cache: " << report["plan_cache"]["capacity"] << " plans, in the "
            << text(report["plan_cache"]["place"]) << '\n';
  const Json& kernels = report["kernel_cache"];
  const bool writable = kernels["reason"].get<std::string>().empty();
  std::cout << "Kernel cache: " << (writable ? kernels["folder"] : kernels["reason"]).get<std::string>()
            << (writable ? "\n" : " (nothing is kept)\n");

  std::cout << "\nGPU libraries and compilers\n";
  Table found({"name", "", "detail"});
  for (const Json& library : report["libraries"])
    found.add_row({text(library["name"]), library["found"].get<bool>() ? "found" : "missing", text(library["detail"])});
  found.print(std::cout, 2);

  std::cout << "\nEnvironment\n";
  Table variables({"name", "value", "meaning"});
  for (const Json& variable : report["environment"])
    variables.add_row({text(variable["name"]), variable["value"].is_null() ? "(not set)" : text(variable["value"]),
                       text(variable["meaning"])});
  variables.print(std::cout, 2);
}

void run_doctor(bool json) {
  const Json report = examine();
  if (json) {
    std::cout << report.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    print_machine(report);
    print_software(report);
    std::cout << (report["problems"].empty() ? "\nNo problems found.\n" : "\nProblems\n");
    for (const Json& problem : report["problems"]) std::cout << "  " << text(problem) << '\n';
  }
  if (!report["problems"].empty()) throw Failure{};
}

}  // namespace

void add_doctor(CLI::App& program) {
  CLI::App& command = *program.add_subcommand("doctor", "Say what this machine offers and what is in force");
  const auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "print JSON");
  command.callback([json] { run_doctor(*json); });
}

}  // namespace tilewise::tools
