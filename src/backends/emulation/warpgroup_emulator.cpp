// Collectives and memory of a Hopper block's lanes. Barriers stand in warpgroup_barriers.cpp, TMA in
// warpgroup_copies.cpp.
#include "backends/emulation/warpgroup_emulator.hpp"

#include <algorithm>
#include <atomic>

#include "backends/emulation/lane_fault.hpp"
#include "backends/emulation/matrix_unit.hpp"

namespace tilewise::backends::emulation {
namespace {

struct StoreArguments {
  void* row;
  const std::uint32_t* from;
  bool transposed;
};

}  // namespace

WarpgroupEmulator::WarpgroupEmulator(const device::HostKernel& kernel, const Actors& actors, std::int32_t grid_blocks,
                                     const GlobalMemory& memory, Cluster& cluster)
    : BlockEmulator(kernel, static_cast<std::int32_t>(actors.lanes), memory, 0),
      cluster_(cluster),
      knowledge_(actors),
      memory_of_block_(static_cast<std::size_t>(kernel.shared_bytes), knowledge_.actors()),
      global_(memory),
      lane_copies_(actors.lanes),
      store_groups_(actors.lanes),
      copy_groups_(actors.lanes),
      registers_(actors.lanes),
      wants_registers_(actors.lanes) {
  warpgroups = this;
  rank_in_cluster = static_cast<std::int32_t>(actors.rank);
  blocks = grid_blocks;
  for (std::size_t wave = 0; wave < knowledge_.actors().waves(); ++wave) {
    products_.emplace_back(wave, memory_of_block_, knowledge_);
  }
}

void WarpgroupEmulator::begin_block() {
  constexpr std::int32_t kRegisters = 65536, kUnit = 8;  // of a multiprocessor, which one block fills
  knowledge_.begin_block();
  memory_of_block_.begin_block();
  barriers_.clear();
  for (NamedBarrier& barrier : named_) {
    barrier = NamedBarrier{};
    barrier.pending.reset(knowledge_.actors().of_cluster());
    barrier.came.assign(lanes_.size(), false);
  }
  for (WaveProducts& wave : products_) wave.begin_block();
  copies_.clear();
  stores_.clear();
  std::ranges::fill(store_groups_, 0);
  std::ranges::fill(copy_groups_, 0);
  for (auto& copies : lane_copies_) copies.clear();
  lane_arrivals_.clear();
  std::ranges::fill(registers_, kRegisters / static_cast<std::int32_t>(lanes_.size()) / kUnit * kUnit);
  std::ranges::fill(wants_registers_, 0);
  free_registers_ = 0;
  wait_for_cluster_.clear();
  wait_for_words_.clear();
  peers_arrivals_.assign(lanes_.size() * knowledge_.actors().blocks, {});
  peers_copies_.clear();
}

void WarpgroupEmulator::perform(Collective collective, std::span<Lane> group) {
  const auto first = static_cast<std::size_t>(group.front().thread);
  WaveProducts& products = products_[first / Actors::kWaveLanes];
  switch (collective) {
    case Collective::barrier:
    case Collective::wave_sync:
      return knowledge_.meet(first, group.size());
    case Collective::store_matrices:
      return store_rows(group);
    case Collective::fence_products:
      return products.fence();
    case Collective::begin_product: {
      WaveProducts::Lanes lanes;
      for (std::size_t i = 0; i < lanes.size(); ++i) {
        lanes[i] = static_cast<const device::HostProduct*>(group[i].arguments);
      }
      return check(products.begin(lanes));
    }
    case Collective::commit_products:
      return products.commit();
    case Collective::wait_products:
      return check(products.wait(*static_cast<const std::int32_t*>(group.front().arguments)));
    default:
      return BlockEmulator::perform(collective, group);
  }
}

void WarpgroupEmulator::finish_lane() {
  for (const BoxStore& store : stores_) {
    if (store.lane == own_lane() && !store.read) fail("ends before a store of its has read shared memory");
  }
  if (!products_[wave_index()].is_idle()) fail("ends while products of its wave are under way");
  if (!lane_copies_[own_lane()].empty()) fail("ends while copies of its own are under way");
  wait_stores(true, 0);
  if (ended_ + 1 < static_cast<std::int32_t>(lanes_.size())) return;
  if (!lane_arrivals_.empty()) {
    fail("ends the block while lanes' copies are under way that count on ", lane_arrivals_.front().barrier->name());
  }
  if (!copies_.empty()) {
    fail("ends the block while a copy is under way that counts on ", copies_.front().barrier->name());
  }
  check_peers();
}

// ------------------------------------------------------------------ memory

void WarpgroupEmulator::load_shared(void* to, const void* from, std::int32_t bytes) {
  check(memory_of_block_.load(toucher(own_lane()), knowledge_.now(), to, memory_of_block_.offset_of(from),
                              static_cast<std::size_t>(bytes)));
}

void WarpgroupEmulator::store_shared(void* to, const void* from, std::int32_t bytes) {
  check(memory_of_block_.store(toucher(own_lane()), knowledge_.now(), memory_of_block_.offset_of(to), from,
                               static_cast<std::size_t>(bytes)));
}

std::string WarpgroupEmulator::load_row(const Lane& lane, void* to, const void* row, std::size_t bytes) {
  return memory_of_block_.load(toucher(static_cast<std::size_t>(lane.thread)), knowledge_.now(), to,
                               memory_of_block_.offset_of(row), bytes);
}

std::uint32_t WarpgroupEmulator::shared_address(const void* pointer) {
  const std::int64_t offset = memory_of_block_.offset_of(pointer);
  if (offset < 0 || static_cast<std::size_t>(offset) >= memory_of_block_.bytes()) {
    fail("takes the shared address of offset ", offset, ", of ", memory_of_block_.bytes(), " bytes");
  }
  return static_cast<std::uint32_t>(offset);
}

std::uint32_t WarpgroupEmulator::count_global(std::uint32_t* counter) {
  check(global_.access(counter, sizeof *counter, GlobalAccess::add, global_accessor()));
  return std::atomic_ref<std::uint32_t>(*counter).fetch_add(1, std::memory_order_relaxed);
}

std::uint64_t WarpgroupEmulator::exchange_global_if(std::uint64_t* to, std::uint64_t expected, std::uint64_t desired) {
  check(global_.access(to, sizeof *to, GlobalAccess::add, global_accessor()));
  std::atomic_ref<std::uint64_t>(*to).compare_exchange_strong(expected, desired, std::memory_order_relaxed);
  return expected;
}

void WarpgroupEmulator::store_matrices(void* row, const std::uint32_t* from, bool transposed) {
  StoreArguments arguments{row, from, transposed};
  join(Collective::store_matrices, &arguments);
}

void WarpgroupEmulator::store_rows(std::span<Lane> wave) {
  constexpr std::size_t kRows = 32;
  const auto held = [](const Lane& lane, std::size_t matrix) {
    return static_cast<const StoreArguments*>(lane.arguments)->from[matrix];
  };
  for (std::size_t row = 0; row < kRows; ++row) {
    std::uint32_t words[4];  // row % 8 of matrix row / 8: four lanes hold two elements each
    for (std::size_t i = 0; i < 4; ++i) {
      words[i] = held(wave[row % 8 * 4 + i], row / 8);
    }
    const auto& arguments = *static_cast<const StoreArguments*>(wave[row].arguments);
    for (std::size_t i = 0; i < 4 && arguments.transposed; ++i) {  // of a column, which eight lanes hold
      const std::size_t column = row % 8, shift = 16 * (column % 2);
      const auto half = [&](std::size_t k) { return held(wave[4 * k + column / 2], row / 8) >> shift & 0xFFFFu; };
      words[i] = half(2 * i) | half(2 * i + 1) << 16;
    }
    check(memory_of_block_.store(toucher(static_cast<std::size_t>(wave[row].thread)), knowledge_.now(),
                                 memory_of_block_.offset_of(arguments.row), words, sizeof words));
  }
}

// ------------------------------------------------------------------ products

void WarpgroupEmulator::fence_products() { join(Collective::fence_products, nullptr); }

void WarpgroupEmulator::begin_product(const device::HostProduct& product) {
  device::HostProduct own = product;
  join(Collective::begin_product, &own);
}

void WarpgroupEmulator::commit_products() {
  let_time_pass();
  join(Collective::commit_products, nullptr);
}

void WarpgroupEmulator::wait_products(std::int32_t pending) {
  let_time_pass();
  join(Collective::wait_products, &pending);
}

void WarpgroupEmulator::let_time_pass() {
  WaveProducts& products = products_[wave_index()];
  while (products.has_uncomputed() && random(16) == 0) check(products.compute_next());
  for (std::size_t i = copies_.size(); i-- > 0;) {
    if (random(copies_[i].odds) == 0) land(i);
  }
  for (std::size_t i = lane_arrivals_.size(); i-- > 0;) {
    if (random(kQuick) == 0) land_arrival(i);
  }
  for (BoxStore& store : stores_) {
    if (store.lane == own_lane() && store.group >= 0 && !store.read && random(2) == 0) read_store(store);
  }
}

}  // namespace tilewise::backends::emulation
