// Regions of global memory: made of a call's parameters, asked on every access of an emulated lane.
#include "backends/emulation/global_memory.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "core/message.hpp"
#include "operations/elements.hpp"

namespace tilewise::backends::emulation {

using core::concat;

namespace {

/// In the place of the number of one writing lane.
constexpr std::uint32_t kManyAdders = std::numeric_limits<std::uint32_t>::max();

}  // namespace

void GlobalMemory::add(std::string_view name, const void* data, std::size_t element_bytes, std::vector<Dimension> outer,
                       std::int64_t row, bool writable) {
  if (data == nullptr || row <= 0) return;
  const auto element = static_cast<std::int64_t>(element_bytes);
  auto begin = reinterpret_cast<std::intptr_t>(data), end = begin + row * element;
  for (Dimension& dim : outer) {
    if (dim.extent <= 0) return;
    dim.stride *= element;
    const std::int64_t reach = (dim.extent - 1) * dim.stride;
    (reach < 0 ? begin : end) += reach;
    dim.stride = dim.stride < 0 ? -dim.stride : dim.stride;
  }
  std::erase_if(outer, [](const Dimension& dim) { return dim.extent == 1 || dim.stride == 0; });
  std::ranges::sort(outer, [](const Dimension& a, const Dimension& b) { return a.stride > b.stride; });
  // Where every stride reaches over what lies inside it, gaps between rows are told from elements.
  std::int64_t inside = row * element;
  bool nested = true;
  for (auto dim = outer.rbegin(); dim != outer.rend(); ++dim) {
    nested = nested && dim->stride >= inside;
    inside = (dim->extent - 1) * dim->stride + inside;
  }
  Region region;
  region.name = name;
  region.begin = static_cast<std::uintptr_t>(begin);
  region.end = static_cast<std::uintptr_t>(end);
  region.writable = writable;
  region.row_bytes = nested ? static_cast<std::size_t>(row * element) : region.end - region.begin;
  if (nested) region.outer = std::move(outer);
  regions_.push_back(std::move(region));
}

bool GlobalMemory::Region::holds(std::uintptr_t address, std::size_t bytes) const {
  if (address < begin || address + bytes > end) return false;
  auto offset = static_cast<std::int64_t>(address - begin);
  for (const Dimension& dim : outer) offset -= std::min(offset / dim.stride, dim.extent - 1) * dim.stride;
  return static_cast<std::size_t>(offset) + bytes <= row_bytes;
}

void GlobalMemory::track_writers() {
  for (Region& region : regions_) {
    if (!region.writable) continue;
    // calloc's zeros take no memory until they are touched.
    const std::size_t cells = (region.end - region.begin + 1) / 2;
    void* zeros = std::calloc(cells, sizeof(std::atomic<std::uint32_t>));
    if (zeros == nullptr) throw Error(ErrorCode::runtime, concat("emulation: no memory to watch ", region.name));
    region.writers.reset(static_cast<std::atomic<std::uint32_t>*>(zeros), [](auto* p) { std::free(p); });
  }
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
  for (std::uintptr_t byte = at; byte < at + bytes; byte += 2) {
    std::atomic<std::uint32_t>& writer = region->writers[(byte - region->begin) / 2];
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

namespace {

using device::AttentionParams;

void add_lengths(GlobalMemory& memory, const AttentionParams& p) {
  constexpr std::size_t kBytes = sizeof(std::int32_t);
  memory.add("cu_seqlens_q", p.cu_seqlens_q, kBytes, {}, p.batch_size + 1, false);
  memory.add("cu_seqlens_k", p.cu_seqlens_k, kBytes, {}, p.batch_size + 1, false);
  memory.add("seqused_q", p.seqused_q, kBytes, {}, p.batch_size, false);
  memory.add("seqused_k", p.seqused_k, kBytes, {}, p.batch_size, false);
  memory.add("leftpad_k", p.leftpad_k, kBytes, {}, p.batch_size, false);
}

/// A packed tensor counts its rows over all sequences, and is one batch entry.
struct Rows {
  std::int64_t batch, rows, heads;
};

void add_tensor(GlobalMemory& memory, const char* name, const device::Tensor4& t, const Rows& rows, std::int64_t cols,
                bool writable) {
  memory.add(name, t.data, 2, {{rows.batch, t.batch_stride}, {rows.rows, t.seq_stride}, {rows.heads, t.head_stride}},
             cols, writable);
}

void add_lse(GlobalMemory& memory, const char* name, const device::LseTensor& t, const Rows& rows, bool writable) {
  memory.add(name, t.data, sizeof(float),
             {{rows.batch, t.batch_stride}, {rows.rows, t.seq_stride}, {rows.heads, t.head_stride}}, 1, writable);
}

void add_options(GlobalMemory& memory, const AttentionParams& p) {
  const auto bytes_of = [](std::int32_t type) { return size_of(operations::dtype_of(type)); };
  const std::size_t bias_bytes = bytes_of(p.bias_type), sink_bytes = bytes_of(p.sink_type);
  memory.add("bias", p.bias.data, bias_bytes,
             {{p.batch_size, p.bias.batch_stride},
              {p.num_heads_q, p.bias.head_stride},
              {p.seqlen_q, p.bias.query_stride},
              {p.seqlen_k, p.bias.key_stride}},
             1, false);
  memory.add("dbias", p.dbias.data, bias_bytes,
             {{p.dbias_shape[0], p.dbias.batch_stride},
              {p.dbias_shape[1], p.dbias.head_stride},
              {p.dbias_shape[2], p.dbias.query_stride},
              {p.dbias_shape[3], p.dbias.key_stride}},
             1, true);
  memory.add("alibi_slopes", p.alibi_slopes, sizeof(float),
             {{p.batch_size, p.alibi_batch_stride}, {p.num_heads_q, p.alibi_head_stride}}, 1, false);
  memory.add("sink", p.sink, sink_bytes, {{p.num_heads_q, p.sink_stride}}, 1, false);
  memory.add("dsink", p.dsink, sink_bytes, {{p.num_heads_q, p.dsink_stride}}, 1, true);
  memory.add("seed_and_offset", p.seed_and_offset, sizeof(std::int64_t), {{2, p.seed_and_offset_stride}}, 1, false);
}

void add_workspace(GlobalMemory& memory, const AttentionParams& p, const device::GridParams& grid) {
  const std::int64_t rows = p.batch_size * p.num_heads_q * p.seqlen_q;
  const std::int64_t split_rows = std::max(grid.num_splits, 1) * rows;
  memory.add("partial_out", grid.partial_out, sizeof(float), {}, split_rows * p.head_dim_v, true);
  memory.add("partial_lse", grid.partial_lse, sizeof(float), {}, split_rows, true);
  memory.add("delta", grid.delta, sizeof(float), {}, rows, true);
  const std::int64_t key_parts = std::int64_t{grid.num_tiles} * grid.key_splits * grid.heads * p.batch_size;
  memory.add("key_sums", grid.key_sums, sizeof(float), {}, key_parts * grid.key_sums_a_block, true);
  memory.add("query_sums", grid.query_sums, sizeof(float), {}, p.batch_size * p.num_heads_q * grid.query_sums_a_head,
             true);
}

}  // namespace

GlobalMemory memory_of(const device::KernelParams& params) {
  const AttentionParams& p = params.call;
  const Rows queries =
      p.cu_seqlens_q ? Rows{1, p.total_q, p.num_heads_q} : Rows{p.batch_size, p.seqlen_q, p.num_heads_q};
  const Rows keys = p.cu_seqlens_k ? Rows{1, p.total_k, p.num_heads_k} : Rows{p.batch_size, p.seqlen_k, p.num_heads_k};
  const bool backward = p.dout.data != nullptr;  // out and lse are its inputs
  GlobalMemory memory;
  add_tensor(memory, "q", p.q, queries, p.head_dim, false);
  add_tensor(memory, "k", p.k, keys, p.head_dim, false);
  add_tensor(memory, "v", p.v, keys, p.head_dim_v, false);
  add_tensor(memory, "out", p.out, queries, p.head_dim_v, !backward);
  add_tensor(memory, "dout", p.dout, queries, p.head_dim_v, false);
  add_tensor(memory, "dq", p.dq, queries, p.head_dim, true);
  add_tensor(memory, "dk", p.dk, keys, p.head_dim, true);
  add_tensor(memory, "dv", p.dv, keys, p.head_dim_v, true);
  add_lse(memory, "softmax_lse", p.softmax_lse, queries, !backward);
  add_lse(memory, "dlse", p.dlse, queries, false);
  add_lengths(memory, p);
  add_options(memory, p);
  add_workspace(memory, p, params.grid);
  // Sequences may overlap where lengths in device memory lie.
  if (p.cu_seqlens_q == nullptr && p.cu_seqlens_k == nullptr) memory.track_writers();
  return memory;
}

}  // namespace tilewise::backends::emulation
