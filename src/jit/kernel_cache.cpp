// Memory, bundles, disk, compiler, in this order; and the state of the process that goes with them.
#include "jit/kernel_cache.hpp"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <list>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/message.hpp"
#include "jit/bundle.hpp"
#include "jit/bundle_file.hpp"
#include "jit/compiler.hpp"
#include "jit/disk_cache.hpp"
#include "jit/files.hpp"
#include "jit/hash.hpp"
#include "jit/search_paths.hpp"
#include "jit/trust.hpp"

namespace tilewise::jit {
namespace {

using KernelPointer = std::shared_ptr<const CompiledKernel>;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kKernelsKept = 1024;
constexpr std::size_t kFailuresKept = 256;
/// A compiler that was missing may have been installed since (pip install in a notebook).
constexpr auto kMissingKept = std::chrono::seconds(5);

struct Slot {
  std::string key;
  KernelPointer kernel;
};

struct KnownSearch {
  std::string fingerprint;
  Clock::time_point when;
  CompilerSearch search;
};

struct NamedBundle {
  std::string path;
  std::shared_ptr<const Bundle> bundle;
};

struct State {
  std::mutex mutex;
  std::list<Slot> kernels;  // most recently used first
  std::unordered_map<std::string, std::list<Slot>::iterator> by_key;
  std::unordered_map<std::string, std::shared_future<KernelPointer>> under_way;
  std::unordered_map<std::string, std::pair<std::string, Error>> failures;  // fingerprint, what was thrown
  std::array<KnownSearch, 3> searches;
  std::vector<NamedBundle> bundles;
};

/// Never destroyed: other threads may still run while main() returns.
State& state() {
  static State* const made = [] {
    auto* fresh = new State;
    pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                   [] {
                     // The threads that were compiling are not in the child.
                     state().under_way.clear();
                     state().mutex.unlock();
                   });
    return fresh;
  }();
  return *made;
}

/// Made while the library loads, so that no fork() finds it half-made.
[[maybe_unused]] const bool kMadeAtLoad = (state(), true);

std::string memory_key(const Target& target, const KernelSource& source) {
  std::string key = core::concat(target.architecture, " ", source.symbol, " ", source.stub.size(), "\n", source.stub);
  for (const std::string& option : source.options) key += core::concat("\n", option);
  return key;
}

KernelPointer find_in_memory(State& all, const std::string& key) {
  const auto found = all.by_key.find(key);
  if (found == all.by_key.end()) return nullptr;
  all.kernels.splice(all.kernels.begin(), all.kernels, found->second);
  return found->second->kernel;
}

void keep_in_memory(State& all, const std::string& key, const KernelPointer& kernel) {
  if (find_in_memory(all, key)) return;
  all.kernels.push_front({key, kernel});
  all.by_key.emplace(key, all.kernels.begin());
  if (all.kernels.size() <= kKernelsKept) return;
  all.by_key.erase(all.kernels.back().key);
  all.kernels.pop_back();
}

CompilerSearch search_compiler(TargetKind kind) {
  std::string fingerprint = search_fingerprint();
  KnownSearch& known = state().searches[static_cast<std::size_t>(kind)];
  {
    const std::lock_guard guard(state().mutex);
    const bool fresh = known.search.compiler || Clock::now() - known.when < kMissingKept;
    if (known.fingerprint == fingerprint && fresh) return known.search;
  }
  CompilerSearch search = find_compiler(kind);
  const std::lock_guard guard(state().mutex);
  known = {std::move(fingerprint), Clock::now(), search};
  return search;
}

/// What TILEWISE_BUNDLE names and is not loaded yet.
std::vector<std::string> bundles_to_load() {
  std::vector<std::string> paths;
  const std::string list = environment_variable("TILEWISE_BUNDLE");
  for (std::size_t start = 0; start < list.size();) {
    const std::size_t end = std::min(list.find(':', start), list.size());
    const std::string path = list.substr(start, end - start);
    start = end + 1;
    const std::lock_guard guard(state().mutex);
    const auto& known = state().bundles;
    if (!path.empty() && std::ranges::find(known, path, &NamedBundle::path) == known.end()) paths.push_back(path);
  }
  return paths;
}

/// Why a bundle that TILEWISE_BUNDLE names is passed over; empty where it is not.
std::string ignored_bundle(const std::string& path) {
  const std::string fault = distrust(path);
  return fault.empty() ? fault : core::concat("TILEWISE_BUNDLE: ", path, " is ignored: ", fault);
}

/// Loads what TILEWISE_BUNDLE names; all bundles, the first named first.
std::vector<NamedBundle> loaded_bundles(std::string& faults) {
  for (const std::string& path : bundles_to_load()) {
    if (const std::string ignored = ignored_bundle(path); ignored.empty()) {
      load_bundle(path);
    } else {
      faults += "; " + ignored;
    }
  }
  const std::lock_guard guard(state().mutex);
  return state().bundles;
}

KernelPointer find_in_bundles(const std::string& hash, std::string& faults) {
  for (const NamedBundle& named : loaded_bundles(faults)) {
    std::string fault;
    if (auto kernel = named.bundle->find(hash, fault)) {
      kernel->compile_seconds = 0;
      return std::make_shared<const CompiledKernel>(std::move(*kernel));
    }
    if (!fault.empty()) faults += core::concat("; ", named.path, ": its kernel is ", fault);
  }
  return nullptr;
}

std::string disk_key(const Compiler& compiler, const Target& target, const std::string& hash) {
  Sha256 key;
  key.update_field("tilewise kernel");
  key.update_field(std::to_string(kKernelFileVersion));
  key.update_field(hash);
  key.update_field(recipe(compiler, target));
  return to_hex(key.finish());
}

KernelPointer find_on_disk(const std::string& key) {
  auto file = load_from_disk(key);
  if (!file) return nullptr;
  file->kernel.compile_seconds = 0;
  return std::make_shared<const CompiledKernel>(std::move(file->kernel));
}

KernelPointer compile_once(const Compiler& compiler, const Target& target, const KernelSource& source,
                           const std::string& hash, const std::string& key) {
  constexpr double kWaitBeyondTimeout = 10;
  const KeyLock lock(key, compile_timeout() + kWaitBeyondTimeout);
  if (KernelPointer kernel = find_on_disk(key)) return kernel;
  KernelFile file{key, hash, target, compile(compiler, target, source)};
  store_on_disk(file);
  return std::make_shared<const CompiledKernel>(std::move(file.kernel));
}

/// Everything but memory. Null only where `may_compile` is false.
KernelPointer produce(const Target& target, const KernelSource& source, bool may_compile) {
  const std::string hash = source_hash(target, source);
  std::string faults;
  if (KernelPointer kernel = find_in_bundles(hash, faults)) return kernel;
  const CompilerSearch search = search_compiler(target.kind);
  if (!search.compiler) {
    if (!may_compile) return nullptr;
    throw Error(ErrorCode::unsupported,
                core::concat(source.symbol, ": no compiler for ", to_string(target), ": ", search.reason, faults));
  }
  const std::string key = disk_key(*search.compiler, target, hash);
  if (KernelPointer kernel = find_on_disk(key)) return kernel;
  return may_compile ? compile_once(*search.compiler, target, source, hash, key) : nullptr;
}

/// What a failure depends on, besides the source.
std::string failure_fingerprint() {
  std::string text = search_fingerprint();
  for (const char* name : {"TILEWISE_BUNDLE", "TILEWISE_COMPILE_TIMEOUT", "TILEWISE_KEEP_SOURCE", "TILEWISE_CACHE_DIR",
                           "TILEWISE_CACHE_SIZE_MB", "TMPDIR"}) {
    text += environment_variable(name) + '\n';
  }
  return text;
}

/// Produces and tells those who wait. A failed compilation is remembered: it would take as long to fail again.
KernelPointer produce_for_all(const Target& target, const KernelSource& source, const std::string& key,
                              std::promise<KernelPointer>& promise) {
  State& all = state();
  try {
    KernelPointer kernel = produce(target, source, true);
    const std::lock_guard guard(all.mutex);
    keep_in_memory(all, key, kernel);
    all.under_way.erase(key);
    promise.set_value(kernel);
    return kernel;
  } catch (const Error& error) {
    const std::lock_guard guard(all.mutex);
    if (error.code() == ErrorCode::runtime) {
      if (all.failures.size() >= kFailuresKept) all.failures.clear();
      all.failures.insert_or_assign(key, std::pair(failure_fingerprint(), error));
    }
    all.under_way.erase(key);
    promise.set_exception(std::current_exception());
    throw;
  } catch (...) {
    const std::lock_guard guard(all.mutex);
    all.under_way.erase(key);
    promise.set_exception(std::current_exception());
    throw;
  }
}

}  // namespace

std::shared_ptr<const CompiledKernel> find_or_compile(const Target& target, const KernelSource& source) {
  State& all = state();
  const std::string key = memory_key(target, source);
  std::promise<KernelPointer> promise;
  std::shared_future<KernelPointer> others;
  {
    const std::lock_guard guard(all.mutex);
    if (KernelPointer kernel = find_in_memory(all, key)) return kernel;
    if (const auto failed = all.failures.find(key); failed != all.failures.end()) {
      if (failed->second.first == failure_fingerprint()) throw failed->second.second;
      all.failures.erase(failed);
    }
    const auto [place, fresh] = all.under_way.try_emplace(key);
    if (fresh) {
      place->second = promise.get_future().share();
    } else {
      others = place->second;
    }
  }
  return others.valid() ? others.get() : produce_for_all(target, source, key, promise);
}

std::shared_ptr<const CompiledKernel> find_compiled(const Target& target, const KernelSource& source) {
  State& all = state();
  const std::string key = memory_key(target, source);
  {
    const std::lock_guard guard(all.mutex);
    if (KernelPointer kernel = find_in_memory(all, key)) return kernel;
  }
  KernelPointer kernel = produce(target, source, false);
  const std::lock_guard guard(all.mutex);
  if (kernel) keep_in_memory(all, key, kernel);
  return kernel;
}

std::string compiler_reason(const Target& target) { return search_compiler(target.kind).reason; }

std::string compiler_name(const Target& target) {
  const CompilerSearch search = search_compiler(target.kind);
  return search.compiler ? search.compiler->name : std::string();
}

std::string ignored_compilers(const Target& target) { return search_compiler(target.kind).ignored; }

std::vector<std::string> bundle_faults() {
  std::vector<std::string> faults;
  for (const std::string& path : bundles_to_load()) {
    std::string fault = ignored_bundle(path);
    try {
      if (fault.empty()) static_cast<void>(Bundle(path));
    } catch (const Error& error) {
      fault = error.what();
    }
    if (!fault.empty()) faults.push_back(std::move(fault));
  }
  return faults;
}

std::size_t load_bundle(const std::string& path) {
  if (const std::string fault = distrust(path); !fault.empty()) core::invalid_argument("bundle: ", fault);
  auto bundle = std::make_shared<const Bundle>(path);
  const std::size_t count = bundle->size();
  State& all = state();
  const std::lock_guard guard(all.mutex);
  const auto known = std::ranges::find(all.bundles, path, &NamedBundle::path);
  if (known == all.bundles.end()) {
    all.bundles.push_back({path, std::move(bundle)});
  } else {
    known->bundle = std::move(bundle);
  }
  return count;
}

void forget_kernels() {
  State& all = state();
  const std::lock_guard guard(all.mutex);
  all.by_key.clear();
  all.kernels.clear();
  all.failures.clear();
  all.bundles.clear();
  all.searches = {};
}

}  // namespace tilewise::jit
