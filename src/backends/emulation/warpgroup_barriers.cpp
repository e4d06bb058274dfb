// Where lanes of a Hopper block wait: barriers in shared memory, named barriers, registers.
#include <algorithm>

#include "backends/emulation/lane_fault.hpp"
#include "backends/emulation/warpgroup_emulator.hpp"

namespace tilewise::backends::emulation {

using core::concat;

void WarpgroupEmulator::init_barrier(void* address, std::int32_t arrivals) {
  const std::int64_t offset = memory_of_block_.offset_of(address);
  if (offset < 0 || static_cast<std::size_t>(offset) + 8 > memory_of_block_.bytes() || offset % 8 != 0) {
    fail("initialises a barrier at offset ", offset, " of shared memory, which has ", memory_of_block_.bytes(),
         " bytes");
  }
  if (arrivals < 1) fail("initialises a barrier at offset ", offset, " of shared memory with ", arrivals, " arrivals");
  if (barriers_.size() == Actors::kMostBarriers) fail("initialises more than ", barriers_.size(), " barriers");
  for (const auto& other : barriers_) {
    if (other->offset == offset) fail("initialises ", other->name(), " twice");
  }
  auto barrier = std::make_unique<MemoryBarrier>();
  barrier->index = barriers_.size();
  barrier->offset = offset;
  barrier->expected = barrier->missing = arrivals;
  barrier->initialiser = own_lane();
  barrier->initialised = knowledge_.now();
  barrier->pending.reset(knowledge_.actors().of_cluster());
  barrier->done.reset(knowledge_.actors().of_cluster());
  barrier->waited.assign(lanes_.size(), MemoryBarrier::kNone);
  barriers_.push_back(std::move(barrier));
}

void WarpgroupEmulator::publish_barriers() {
  for (const auto& barrier : barriers_) {
    if (barrier->initialiser == own_lane()) barrier->published = true;
  }
}

MemoryBarrier& WarpgroupEmulator::barrier_at(std::int64_t offset, WarpgroupEmulator& user) {
  const std::string whose = &user == this ? std::string() : concat(" of block ", rank_in_cluster, " of its cluster");
  for (const auto& barrier : barriers_) {
    if (barrier->offset != offset) continue;
    const std::vector<Time>& seen = user.knowledge_.of(user.own_lane()).seen;
    const bool is_own = &user == this && barrier->initialiser == own_lane();
    if (!is_own && seen[knowledge_.actors().lane(barrier->initialiser)] < barrier->initialised) {
      fail("uses ", barrier->name(), whose, " with no barrier since it was initialised");
    }
    return *barrier;
  }
  fail("uses a barrier at offset ", offset, " of shared memory", whose, ", where none was initialised");
}

void WarpgroupEmulator::wake(std::vector<std::int32_t>& waiting) {
  for (const std::int32_t lane : waiting) runnable_.push_back(lane);
  waiting.clear();
}

void WarpgroupEmulator::advance(MemoryBarrier& barrier) {
  if (barrier.advance()) wake(barrier.waiting);
}

void WarpgroupEmulator::arrive(void* address, std::int32_t bytes) {
  let_time_pass();
  MemoryBarrier& barrier = barrier_at(address);
  check(barrier.arrive(bytes));
  knowledge_.tell(own_lane(), barrier.pending);
  advance(barrier);
}

bool WarpgroupEmulator::test(void* address, std::uint32_t parity) {
  let_time_pass();
  MemoryBarrier& barrier = barrier_at(address);
  const std::int32_t phase = barrier.meant(parity);
  std::int32_t& waited = barrier.waited[own_lane()];
  if (phase <= waited) fail("tests phase ", phase, " of ", barrier.name(), ", which it has waited for");
  if (barrier.phase <= phase || random(4) == 0) return false;  // the answer may come late
  waited = phase;
  knowledge_.of(own_lane()).learn(barrier.done);
  return true;
}

void WarpgroupEmulator::wait(void* address, std::uint32_t parity) {
  let_time_pass();
  MemoryBarrier& barrier = barrier_at(address);
  const std::int32_t phase = barrier.meant(parity);
  std::int32_t& waited = barrier.waited[own_lane()];
  if (phase <= waited) fail("waits for phase ", phase, " of ", barrier.name(), " twice");
  waited = phase;
  if (random(8) == 0) {  // others come first though it need not wait
    runnable_.push_back(thread);
    yield();
  }
  while (barrier.phase <= phase) {
    barrier.waiting.push_back(thread);
    yield();
  }
  knowledge_.of(own_lane()).learn(barrier.done);
}

void WarpgroupEmulator::meet_at(std::int32_t number, std::int32_t threads, bool waits) {
  let_time_pass();
  if (number < 0 || number >= static_cast<std::int32_t>(kNamedBarriers)) fail("comes to named barrier ", number);
  NamedBarrier& barrier = named_[static_cast<std::size_t>(number)];
  if (threads <= 0 || threads % static_cast<std::int32_t>(Actors::kWaveLanes) != 0) {
    fail("comes to named barrier ", number, " of ", threads, " threads, which are no whole waves");
  }
  if (barrier.arrived != 0 && barrier.threads != threads) {
    fail("comes to named barrier ", number, " of ", threads, " threads, where others said ", barrier.threads);
  }
  if (barrier.came[own_lane()]) fail("comes to named barrier ", number, " twice before all others have come");
  barrier.came[own_lane()] = true;
  barrier.threads = threads;
  knowledge_.tell(own_lane(), barrier.pending);
  if (waits) barrier.waiting.push_back(thread);
  if (++barrier.arrived < threads) {
    if (waits) yield();
    return;
  }
  for (const std::int32_t lane : barrier.waiting) knowledge_.of(static_cast<std::size_t>(lane)).learn(barrier.pending);
  if (waits) std::erase(barrier.waiting, thread);
  wake(barrier.waiting);
  barrier.arrived = 0;
  std::fill(barrier.came.begin(), barrier.came.end(), false);
}

void WarpgroupEmulator::set_registers(std::int32_t count) {
  constexpr std::int32_t kUnit = 8, kLeast = 24, kMost = 256;
  if (count % kUnit != 0 || count < kLeast || count > kMost) {
    fail("asks for ", count, " registers: must be a multiple of 8 from 24 to 256");
  }
  std::int32_t& own = registers_[own_lane()];
  while (count - own > free_registers_) {
    wants_registers_[own_lane()] = count - own;
    yield();
  }
  free_registers_ -= count - own;
  own = count;
  for (std::size_t lane = 0; lane < wants_registers_.size(); ++lane) {
    std::int32_t& wants = wants_registers_[lane];
    if (wants == 0 || wants > free_registers_) continue;
    wants = 0;
    runnable_.push_back(static_cast<std::int32_t>(lane));
  }
}

/// What lanes wait for and no lane of the block does: a copy that is yet to land, or else another block's word.
bool WarpgroupEmulator::go_on_alone() {
  if (!fault_.empty()) return false;
  if (!lane_arrivals_.empty()) {
    const LaneArrival& first = lane_arrivals_.front();
    const std::string by = name(lanes_[first.lane]);
    try {
      land_arrival(0);
    } catch (const LaneFault& fault) {
      fault_ = concat(by, ": ", fault.text());
      return false;
    }
    return true;
  }
  if (copies_.empty()) return wake_for_words();
  const std::size_t copy = random(static_cast<std::uint32_t>(copies_.size()));
  const WarpgroupEmulator& sender = *copies_[copy].sender;
  const std::string by = sender.name(sender.lanes_[copies_[copy].lane]);
  try {
    land(copy);
  } catch (const LaneFault& fault) {
    fault_ = concat(by, &sender == this ? "" : concat(" of block ", sender.block), ": ", fault.text());
    return false;
  }
  return true;
}

std::string WarpgroupEmulator::stand_still() const {
  std::string text = "no lane can go on";
  const auto add = [&](const std::vector<std::int32_t>& waiting, const std::string& what) {
    if (waiting.empty()) return;
    const Lane& first = lanes_[static_cast<std::size_t>(*std::ranges::min_element(waiting))];
    core::append(text, concat("; ", name(first)));
    if (waiting.size() > 1) core::append(text, concat(" and ", waiting.size() - 1, " more"));
    core::append(text, concat(waiting.size() > 1 ? " wait " : " waits ", what));
  };
  for (const auto& barrier : barriers_) {
    add(barrier->waiting, concat("for phase ", barrier->phase, " of ", barrier->name(), ", which ", barrier->lack()));
  }
  for (std::size_t i = 0; i < named_.size(); ++i) {
    const NamedBarrier& barrier = named_[i];
    add(barrier.waiting, concat("at named barrier ", i, ", which lacks ", barrier.threads - barrier.arrived, " of ",
                                barrier.threads, " threads"));
  }
  std::vector<std::int32_t> for_registers;
  for (const Lane& lane : lanes_) {
    if (wants_registers_[static_cast<std::size_t>(lane.thread)] != 0) for_registers.push_back(lane.thread);
  }
  add(wait_for_cluster_,
      concat("at the cluster's barrier, which lacks ", cluster_.barrier().arrivals.size() - cluster_.barrier().arrived,
             " of ", cluster_.barrier().arrivals.size(), " lanes"));
  for (const WordWait& wait : wait_for_words_) {
    add({wait.lane}, concat("for ", wait.value, " in memory that holds ", *wait.word));
  }
  add(for_registers, concat("for registers, of which ", free_registers_, " are free"));
  return text;
}

}  // namespace tilewise::backends::emulation
