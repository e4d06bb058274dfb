// TMA of a Hopper block: boxes of tensors that move beside the lanes.
#include <algorithm>
#include <cstring>
#include <utility>

#include "backends/emulation/lane_fault.hpp"
#include "backends/emulation/warpgroup_emulator.hpp"

namespace tilewise::backends::emulation {

using core::concat;

namespace {

constexpr std::int64_t kTileAlignment = 128;
constexpr std::size_t kPieceBytes = AsyncMemory::kPieceBytes;

/// Floats in a row, as a tensor of its own.
HostTensorMap run_map(const void* address, std::int32_t bytes) {
  HostTensorMap map;
  map.address = static_cast<std::byte*>(const_cast<void*>(address));
  map.rank = 1;
  map.element_bytes = sizeof(float);
  map.dims[0] = map.box[0] = static_cast<std::uint32_t>(bytes) / std::uint32_t{sizeof(float)};
  return map;
}

void add_floats(std::byte* to, const std::byte* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i, to += sizeof(float), from += sizeof(float)) {
    float sum = 0.0f, more = 0.0f;
    std::memcpy(&sum, to, sizeof sum);
    std::memcpy(&more, from, sizeof more);
    sum += more;
    std::memcpy(to, &sum, sizeof sum);
  }
}

std::array<std::int32_t, 5> coordinates(const std::int32_t* at, std::int32_t rank) {
  std::array<std::int32_t, 5> all{};
  std::copy_n(at, rank, all.begin());
  return all;
}

}  // namespace

HostTensorMap WarpgroupEmulator::map_at(const void* address, std::int32_t rank) {
  HostTensorMap map;
  std::memcpy(&map, address, sizeof map);
  if (map.mark != HostTensorMap::kMark) fail("moves a box by a tensor map that nobody has written");
  if (map.rank != rank) fail("moves a box of ", rank, " dimensions by a tensor map of ", map.rank);
  return map;
}

void WarpgroupEmulator::check_first(const HostTensorMap& map, const std::array<std::int32_t, 5>& at) {
  if (const std::int64_t byte = std::int64_t{at[0]} * map.element_bytes; byte % std::int64_t{kPieceBytes} != 0) {
    fail("moves a box that begins at byte ", byte, " of a row, not on 16 bytes");
  }
}

void WarpgroupEmulator::copy_box(void* to, const void* map, void* landed, const std::int32_t* at, std::int32_t rank,
                                 std::uint32_t blocks) {
  begin_copy(map_at(map, rank), coordinates(at, rank), to, kTileAlignment, landed, blocks);
}

void WarpgroupEmulator::copy_run(void* to, const void* from, std::int32_t bytes, void* landed) {
  prefetch_run(from, bytes);
  begin_copy(run_map(from, bytes), {}, to, kPieceBytes, landed, 0);
}

/// Nothing moves here, but what it names must be there.
void WarpgroupEmulator::prefetch_run(const void* from, std::int32_t bytes) {
  const HostTensorMap run = run_map(from, bytes);
  if (run.row_bytes() % kPieceBytes != 0) fail("copies a run of ", bytes, " bytes, not a multiple of 16");
  for (std::size_t piece = 0; piece < run.row_bytes(); piece += kPieceBytes) {
    check(global_.access(run.address + piece, kPieceBytes, GlobalAccess::read, global_accessor()));
  }
}

void WarpgroupEmulator::begin_copy(const HostTensorMap& map, const std::array<std::int32_t, 5>& at, void* to,
                                   std::int64_t alignment, void* landed, std::uint32_t blocks) {
  let_time_pass();
  check_first(map, at);
  const std::int64_t offset = memory_of_block_.offset_of(to), counts_on = memory_of_block_.offset_of(landed);
  if (offset % alignment != 0) {
    fail("copies a box to offset ", offset, " of shared memory, not on ", alignment, " bytes");
  }
  if (blocks == 0) return receive(map, at, offset, counts_on, *this);
  for (std::int32_t rank = 0; rank < 32; ++rank) {
    if (blocks >> rank & 1u) peer(rank, "copies a box to").receive(map, at, offset, counts_on, *this);
  }
}

void WarpgroupEmulator::receive(const HostTensorMap& map, const std::array<std::int32_t, 5>& at, std::int64_t to,
                                std::int64_t landed, WarpgroupEmulator& sender) {
  MemoryBarrier& barrier = barrier_at(landed, sender);
  if (!barrier.published) fail("counts a copy on ", barrier.name(), ", which publish_barriers() was not called for");
  const std::size_t lane = sender.own_lane();
  const Toucher who{knowledge_.actors().copies(barrier.index), sender.knowledge_.actors().lane(lane),
                    &sender.knowledge_.of(lane), true};
  const Time now = knowledge_.pass();
  const auto bytes = static_cast<std::int64_t>(map.box_bytes());
  for (std::int64_t piece = 0; piece < bytes; piece += kPieceBytes) {
    const std::string fault = memory_of_block_.begin_copy(who, now, swizzled(map.swizzle, to + piece));
    if (fault.empty()) continue;
    fail(&sender == this ? "" : concat("in block ", rank_in_cluster, " of its cluster "), fault);
  }
  copies_.push_back({map, at, to, &barrier, &sender, lane, random(8) == 0 ? kSlow : kQuick});
}

void WarpgroupEmulator::land(std::size_t index) {
  const BoxCopy copy = copies_[index];
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(index));
  const HostTensorMap& map = copy.map;
  MemoryBarrier& barrier = *copy.barrier;
  const std::size_t actor = knowledge_.actors().copies(barrier.index);
  const Time now = knowledge_.pass();
  std::vector<std::byte> row(map.row_bytes());
  std::int64_t to = copy.to;
  for (std::size_t i = 0; i < map.box_rows(); ++i) {
    std::ranges::fill(row, std::byte{0});
    if (const HostTensorMap::Row from = map.row(copy.at, i); from.address != nullptr) {
      std::memcpy(row.data() + from.skipped * map.element_bytes, from.address, from.count * map.element_bytes);
    }
    for (std::size_t piece = 0; piece < row.size(); piece += kPieceBytes, to += kPieceBytes) {
      memory_of_block_.land_copy({actor, copy.lane, nullptr, true}, now, swizzled(map.swizzle, to), &row[piece]);
    }
  }
  const bool from_peer = copy.sender != this;
  if (from_peer) {
    std::erase_if(peers_copies_, [&barrier](const PeerEvent& event) { return event.barrier == &barrier; });
    peers_copies_.push_back({actor, now, &barrier});
  }
  barrier.pending.seen[actor] = now;
  check(barrier.land(static_cast<std::int64_t>(map.box_bytes()), from_peer));
  advance(barrier);
}

void WarpgroupEmulator::copy_async(void* to, const void* from, bool valid) {
  let_time_pass();
  if (valid) check(global_.access(from, kPieceBytes, GlobalAccess::read, global_accessor()));
  const std::int64_t offset = memory_of_block_.offset_of(to);
  if (offset % std::int64_t{kPieceBytes} != 0) fail("copies 16 bytes to offset ", offset, " of shared memory");
  check(memory_of_block_.begin_copy(toucher(own_lane()), knowledge_.now(), offset));
  lane_copies_[own_lane()].push_back({offset, valid ? from : nullptr, copy_groups_[own_lane()]});
}

void WarpgroupEmulator::commit_copies() { ++copy_groups_[own_lane()]; }

/// What lands is the lane's own write: neither others nor the matrix unit see it without a barrier and a fence.
void WarpgroupEmulator::wait_copies(std::int32_t pending) {
  let_time_pass();
  std::deque<LaneCopy>& copies = lane_copies_[own_lane()];
  for (; !copies.empty() && copies.front().group < copy_groups_[own_lane()] - pending; copies.pop_front()) {
    land(own_lane(), copies.front());
  }
}

void WarpgroupEmulator::land(std::size_t lane, const LaneCopy& copy) {
  constexpr std::byte kZeros[kPieceBytes]{};
  memory_of_block_.land_copy(toucher(lane), knowledge_.now(), copy.to, copy.from ? copy.from : kZeros);
}

void WarpgroupEmulator::arrive_after_copies(void* barrier) {
  let_time_pass();
  lane_arrivals_.push_back({own_lane(), &barrier_at(barrier), std::exchange(lane_copies_[own_lane()], {})});
}

/// What the lane has done since counts as known too.
void WarpgroupEmulator::land_arrival(std::size_t index) {
  const LaneArrival arrival = std::move(lane_arrivals_[index]);
  lane_arrivals_.erase(lane_arrivals_.begin() + static_cast<std::ptrdiff_t>(index));
  for (const LaneCopy& copy : arrival.copies) land(arrival.lane, copy);
  check(arrival.barrier->arrive(0));
  knowledge_.tell(arrival.lane, arrival.barrier->pending);
  advance(*arrival.barrier);
}

/// Boxes that begin in front of a tensor can be loaded, but an H200 ends a store or addition of one with an illegal
/// instruction.
void WarpgroupEmulator::store_box(const void* map, const void* from, const std::int32_t* at, std::int32_t rank) {
  for (std::int32_t i = 0; i < rank; ++i) {
    if (at[i] < 0) fail("stores a box that begins at ", at[i], " in dimension ", i, ", in front of its tensor");
  }
  begin_store(map_at(map, rank), coordinates(at, rank), from, kTileAlignment, false);
}

void WarpgroupEmulator::store_run(float* to, const void* from, std::int32_t bytes) {
  begin_run(to, from, bytes, false);
}

void WarpgroupEmulator::add_run(float* to, const void* from, std::int32_t bytes) { begin_run(to, from, bytes, true); }

void WarpgroupEmulator::begin_run(float* to, const void* from, std::int32_t bytes, bool adds) {
  if (bytes <= 0 || bytes % static_cast<std::int32_t>(kPieceBytes) != 0) {
    fail(adds ? "adds" : "stores", " a run of ", bytes, " bytes, not a multiple of 16");
  }
  begin_store(run_map(to, bytes), {}, from, kPieceBytes, adds);
}

void WarpgroupEmulator::begin_store(const HostTensorMap& map, const std::array<std::int32_t, 5>& at, const void* from,
                                    std::int64_t alignment, bool adds) {
  let_time_pass();
  check_first(map, at);
  BoxStore store{map, at, memory_of_block_.offset_of(from), own_lane(), adds, knowledge_.of(own_lane())};
  if (store.from % alignment != 0) {
    fail("stores a box from offset ", store.from, " of shared memory, not on ", alignment, " bytes");
  }
  store.bytes.resize(store.map.box_bytes());
  stores_.push_back(std::move(store));
}

void WarpgroupEmulator::commit_stores() {
  for (BoxStore& store : stores_) {
    if (store.lane == own_lane() && store.group == BoxStore::kUncommitted) store.group = store_groups_[own_lane()];
  }
  ++store_groups_[own_lane()];
}

/// Reads the part of the box that lies in the tensor.
void WarpgroupEmulator::read_store(BoxStore& store) {
  const HostTensorMap& map = store.map;
  const std::size_t wave = store.lane / Actors::kWaveLanes, row_bytes = map.row_bytes();
  const Toucher who{knowledge_.actors().stores(wave), knowledge_.actors().lane(store.lane), &store.known, true};
  for (std::size_t i = 0; i < map.box_rows(); ++i) {
    const HostTensorMap::Row row = map.row(store.at, i);
    const std::size_t first = row.skipped * map.element_bytes, end = first + row.count * map.element_bytes;
    for (std::size_t piece = first / kPieceBytes * kPieceBytes; piece < end; piece += kPieceBytes) {
      const auto at = store.from + static_cast<std::int64_t>(i * row_bytes + piece);
      const std::string fault = memory_of_block_.load(who, knowledge_.now(), &store.bytes[i * row_bytes + piece],
                                                      swizzled(map.swizzle, at), kPieceBytes);
      if (!fault.empty()) fail("a store ", fault);
    }
  }
  store.read = true;
}

void WarpgroupEmulator::write_store(const BoxStore& store) {
  const HostTensorMap& map = store.map;
  const GlobalAccessor who{block, static_cast<std::int32_t>(store.lane), static_cast<std::int32_t>(lanes_.size())};
  for (std::size_t i = 0; i < map.box_rows(); ++i) {
    const HostTensorMap::Row row = map.row(store.at, i);
    const std::byte* from = store.bytes.data() + i * map.row_bytes() + row.skipped * map.element_bytes;
    const GlobalAccess access = store.adds ? GlobalAccess::add : GlobalAccess::write;
    for (std::size_t element = 0; element < row.count; ++element) {
      check(global_.access(row.address + element * map.element_bytes, map.element_bytes, access, who));
    }
    if (store.adds) {
      add_floats(row.address, from, row.count);
    } else if (row.count > 0) {
      std::memcpy(row.address, from, row.count * map.element_bytes);
    }
  }
}

void WarpgroupEmulator::wait_stores(bool written, std::int32_t pending) {
  const std::int32_t groups = store_groups_[own_lane()] - pending;
  const auto is_due = [&](const BoxStore& store) {
    return store.lane == own_lane() && store.group >= 0 && store.group < groups;
  };
  for (BoxStore& store : stores_) {
    if (is_due(store) && !store.read) read_store(store);
  }
  if (written) {
    std::erase_if(stores_, [&](const BoxStore& store) {
      if (!is_due(store)) return false;
      write_store(store);
      return true;
    });
  }
  knowledge_.of(own_lane()).seen[knowledge_.actors().stores(wave_index())] = knowledge_.pass();
}

std::uint32_t WarpgroupEmulator::peek_global(const std::uint32_t* word) {
  check(global_.access(word, sizeof *word, GlobalAccess::read, global_accessor()));
  return *word;
}

void WarpgroupEmulator::await_global(const std::uint32_t* word, std::uint32_t value) {
  while (peek_global(word) != value) {
    wait_for_words_.push_back({thread, word, value});
    yield();
  }
}

bool WarpgroupEmulator::wake_for_words() {
  const auto has_come = [](const WordWait& wait) { return *wait.word == wait.value; };
  const std::size_t before = runnable_.size();
  for (const WordWait& wait : wait_for_words_) {
    if (has_come(wait)) runnable_.push_back(wait.lane);
  }
  std::erase_if(wait_for_words_, has_come);
  return runnable_.size() > before;
}

void WarpgroupEmulator::release_global(std::uint32_t* word, std::uint32_t value) {
  check(global_.access(word, sizeof *word, GlobalAccess::add, global_accessor()));
  const auto is_own = [&](const BoxStore& store) { return store.lane == own_lane(); };
  if (const auto under_way = std::ranges::count_if(stores_, is_own); under_way > 0) {
    fail("tells other blocks of what it has stored while ", under_way, " of its stores are under way");
  }
  *word = value;
}

void WarpgroupEmulator::release_count(std::uint32_t* counter) { release_global(counter, *counter + 1); }

void WarpgroupEmulator::fence_shared_writes() { knowledge_.fence(own_lane()); }

}  // namespace tilewise::backends::emulation
