// Regions of global memory: made of a launch's parameters, asked on every access of an emulated lane.
#include "backends/emulation/global_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "core/message.hpp"

namespace tilewise::backends::emulation {

using core::concat;

namespace {

/// In the place of the number of one writing lane.
constexpr std::uint32_t kManyAdders = std::numeric_limits<std::uint32_t>::max();

}  // namespace

void GlobalMemory::add(const gpu::Region& described, const void* data) {
  if (data == nullptr || described.row <= 0) return;
  const auto element = static_cast<std::int64_t>(described.element_bytes);
  auto begin = reinterpret_cast<std::intptr_t>(data), end = begin + described.row * element;
  std::vector<gpu::Dimension> outer(described.outer.begin(), described.outer.begin() + described.rank);
  for (gpu::Dimension& dim : outer) {
    if (dim.extent <= 0) return;
    dim.stride *= element;
    const std::int64_t reach = (dim.extent - 1) * dim.stride;
    (reach < 0 ? begin : end) += reach;
    dim.stride = dim.stride < 0 ? -dim.stride : dim.stride;
  }
  std::erase_if(outer, [](const gpu::Dimension& dim) { return dim.extent == 1 || dim.stride == 0; });
  std::ranges::sort(outer, [](const gpu::Dimension& a, const gpu::Dimension& b) { return a.stride > b.stride; });
  // Where every stride reaches over what lies inside it, gaps between rows are told from elements.
  std::int64_t inside = described.row * element;
  bool nested = true;
  for (auto dim = outer.rbegin(); dim != outer.rend(); ++dim) {
    nested = nested && dim->stride >= inside;
    inside = (dim->extent - 1) * dim->stride + inside;
  }
  Region region;
  region.name = described.name;
  region.begin = static_cast<std::uintptr_t>(begin);
  region.end = static_cast<std::uintptr_t>(end);
  region.writable = described.access != GlobalAccess::read;
  region.cell = std::min<std::size_t>(described.element_bytes, 2);
  region.row_bytes = nested ? static_cast<std::size_t>(described.row * element) : region.end - region.begin;
  if (nested) region.outer = std::move(outer);
  if (region.writable && described.one_writer) track_writers(region);
  regions_.push_back(std::move(region));
}

bool GlobalMemory::Region::holds(std::uintptr_t address, std::size_t bytes) const {
  if (address < begin || address + bytes > end) return false;
  auto offset = static_cast<std::int64_t>(address - begin);
  for (const gpu::Dimension& dim : outer) offset -= std::min(offset / dim.stride, dim.extent - 1) * dim.stride;
  return static_cast<std::size_t>(offset) + bytes <= row_bytes;
}

void GlobalMemory::track_writers(Region& region) {
  // calloc's zeros take no memory until they are touched.
  const std::size_t cells = (region.end - region.begin + region.cell - 1) / region.cell;
  void* zeros = std::calloc(cells, sizeof(std::atomic<std::uint32_t>));
  if (zeros == nullptr) throw Error(ErrorCode::runtime, concat("emulation: no memory to watch ", region.name));
  region.writers.reset(static_cast<std::atomic<std::uint32_t>*>(zeros), [](auto* p) { std::free(p); });
}

const GlobalMemory::Region* GlobalMemory::find(std::uintptr_t address, std::size_t bytes, bool write) const {
  if (address % bytes != 0) return nullptr;
  const auto found = std::ranges::find_if(
      regions_, [&](const Region& region) { return (region.writable || !write) && region.holds(address, bytes); });
  return found == regions_.end() ? nullptr : &*found;
}

std::string GlobalMemory::check(const void* address, std::size_t bytes, bool write) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  return find(at, bytes, write) != nullptr ? std::string{} : fault(at, bytes, write);
}

std::string GlobalMemory::access(const void* address, std::size_t bytes, GlobalAccess what,
                                 const GlobalAccessor& who) const {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const bool write = what != GlobalAccess::read;
  const Region* region = find(at, bytes, write);
  if (region == nullptr) return fault(at, bytes, write);
  if (!region->writers) return {};
  const auto threads = static_cast<std::uint32_t>(who.threads);
  const std::uint32_t lane = static_cast<std::uint32_t>(who.block) * threads + static_cast<std::uint32_t>(who.thread);
  const std::uint32_t own = what == GlobalAccess::add ? kManyAdders : lane + 1;
  for (std::uintptr_t byte = at; byte < at + bytes; byte += region->cell) {
    std::atomic<std::uint32_t>& writer =
        region->writers[static_cast<std::ptrdiff_t>((byte - region->begin) / region->cell)];
    const std::uint32_t other =
        write ? writer.exchange(own, std::memory_order_relaxed) : writer.load(std::memory_order_relaxed);
    if (other == 0 || other == own) continue;
    const std::string place = concat(write ? "writes" : "reads", " byte ", byte - region->begin, " of ", region->name);
    if (other == kManyAdders) return concat(place, ", to which lanes add in the same launch");
    const std::uint32_t block = (other - 1) / threads;
    if (!write && block == static_cast<std::uint32_t>(who.block)) continue;
    return concat(place, ", which thread ", (other - 1) % threads, " of block ", block, " wrote in the same launch");
  }
  return {};
}

/// Names the region that the address misses least.
std::string GlobalMemory::fault(std::uintptr_t address, std::size_t bytes, bool write) const {
  const std::string what = concat(write ? "writes " : "reads ", bytes, " bytes");
  const Region* nearest = nullptr;
  std::uintptr_t least = std::numeric_limits<std::uintptr_t>::max();
  for (const Region& region : regions_) {
    const std::uintptr_t distance = address < region.begin         ? region.begin - address
                                    : address + bytes > region.end ? address + bytes - region.end
                                                                   : 0;
    if (distance < least) least = distance, nearest = &region;
  }
  if (nearest == nullptr) return concat(what, " of global memory, of which the launch was given none");
  const std::string offset =
      concat(" at byte ", static_cast<std::int64_t>(address - nearest->begin), " of ", nearest->name);
  if (least != 0) return concat(what, offset, ", which ends at byte ", nearest->end - nearest->begin);
  if (address % bytes != 0) return concat(what, offset, ", which is not aligned");
  if (write && !nearest->writable) return concat(what, offset, ", which is an input");
  return concat(what, offset, ", between the rows of the tensor");
}

GlobalMemory memory_of(const gpu::KernelBody& kernel, const void* params) {
  GlobalMemory memory;
  kernel.for_each_pointer(params, [&](const gpu::Region& region, std::size_t offset) {
    const void* data = nullptr;
    std::memcpy(&data, static_cast<const std::byte*>(params) + offset, sizeof data);
    memory.add(region, data);
  });
  return memory;
}

}  // namespace tilewise::backends::emulation
