// Scheduling of lanes, and the collectives that they meet in.
#include "backends/emulation/block_emulator.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <string_view>
#include <utility>

#include "backends/emulation/lane_fault.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "device/tile/platform.h"

namespace tilewise::backends::emulation {

using core::concat;

namespace {

/// A kernel's frame with its fragments takes a few KB; unoptimised or sanitized code ten times that.
constexpr std::size_t kStackBytes = 256 << 10;

std::string_view name_of(Collective collective) {
  constexpr std::array<std::string_view, 13> kNames = {"nothing",
                                                       "barrier()",
                                                       "wave_sync()",
                                                       "any()",
                                                       "shuffle_xor()",
                                                       "load_matrices()",
                                                       "load_matrices_transposed()",
                                                       "a matrix instruction",
                                                       "store_matrices()",
                                                       "wgmma_fence()",
                                                       "wgmma()",
                                                       "wgmma_commit()",
                                                       "wgmma_wait()"};
  return kNames[static_cast<std::size_t>(collective)];
}

struct ShuffleArguments {
  std::uint32_t value;
  std::int32_t mask;
  std::uint32_t result;
};
struct LoadArguments {
  std::uint32_t* to;
  const void* row;
};

}  // namespace

BlockEmulator::BlockEmulator(const device::HostKernel& kernel, std::int32_t threads, const GlobalMemory& memory,
                             std::size_t shared_bytes)
    : kernel_(kernel),
      memory_(memory),
      wave_lanes_(kernel.lanes),
      stacks_(static_cast<std::size_t>(threads), kStackBytes),
      shared_(shared_bytes, threads / kernel.lanes, kernel.lanes),
      lanes_(static_cast<std::size_t>(threads)),
      waves_(static_cast<std::size_t>(threads / kernel.lanes)) {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].emulator = this;
    lanes_[i].thread = static_cast<std::int32_t>(i);
  }
}

std::string BlockEmulator::run(std::int32_t block_index, const void* params, std::uint64_t seed) {
  start(block_index, params, seed);
  main_.switch_to(next_fiber());
  return verdict();
}

std::string BlockEmulator::verdict() const {
  const bool still = fault_.empty() && ended_ < static_cast<std::int32_t>(lanes_.size()) && !core::abandoned();
  return still ? stand_still() : fault_;
}

void BlockEmulator::start(std::int32_t block_index, const void* params, std::uint64_t seed) {
  block = block_index;
  params_ = params;
  random_state_ = (seed + 1) * 0x9E3779B97F4A7C15u ^ static_cast<std::uint64_t>(block_index) * 0xBF58476D1CE4E5B9u;
  random_state_ |= 1;  // the generator's state must not be zero
  ended_ = at_barrier_ = 0;
  fault_.clear();
  begin_block();
  std::ranges::fill(waves_, Wave{});
  runnable_.clear();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.ended = false;
    lane.waits_for = Collective::none;
    lane.copies.clear();
    lane.copy_group = 0;
    lane.fiber.start(stacks_.bottom(i), stacks_.size(), &BlockEmulator::run_lane, &lane);
    runnable_.push_back(lane.thread);
  }
}

void BlockEmulator::run_lane(void* lane) {
  BlockEmulator& emulator = *static_cast<Lane*>(lane)->emulator;
  try {
    emulator.kernel_.run_lane(emulator, emulator.params_, emulator.window());
    emulator.end_lane();
  } catch (const LaneFault& fault) {
    emulator.fault_ = concat(emulator.name(emulator.self()), ": ", fault.text());
  }
  Fiber& own = emulator.self().fiber;
  own.leave_to(emulator.fault_.empty() ? emulator.next_fiber() : emulator.main());
}

std::uint32_t BlockEmulator::random(std::uint32_t below) {
  random_state_ ^= random_state_ << 13;
  random_state_ ^= random_state_ >> 7;
  random_state_ ^= random_state_ << 17;
  return static_cast<std::uint32_t>((random_state_ >> 32) * below >> 32);
}

BlockEmulator* BlockEmulator::next_block() {
  while (runnable_.empty() && go_on_alone()) {
  }
  return runnable_.empty() || !fault_.empty() ? nullptr : this;
}

Fiber& BlockEmulator::next_fiber() {
  // Null: every lane has ended or waits.
  BlockEmulator* const next = core::abandoned() ? nullptr : next_block();
  return next != nullptr ? next->draw_lane() : main();
}

Fiber& BlockEmulator::draw_lane() {
  std::int32_t& chosen = runnable_[random(static_cast<std::uint32_t>(runnable_.size()))];
  thread = chosen;
  chosen = runnable_.back();
  runnable_.pop_back();
  return self().fiber;
}

void BlockEmulator::yield() {
  Lane& lane = self();
  Fiber& next = next_fiber();
  if (&next != &lane.fiber) lane.fiber.switch_to(next);
}

void BlockEmulator::end_lane() {
  Lane& lane = self();
  check_company(lane, Collective::none);
  for (Copy& copy : lane.copies) land(copy);
  finish_lane();
  lane.ended = true;
  ++ended_;
  ++own_wave().ended;
}

std::string BlockEmulator::name(const Lane& lane) const {
  return concat("wave ", lane.thread / wave_lanes_, ", lane ", lane.thread % wave_lanes_);
}

std::span<BlockEmulator::Lane> BlockEmulator::wave_of(const Lane& lane) {
  const auto first = static_cast<std::size_t>(lane.thread / wave_lanes_ * wave_lanes_);
  return std::span(lanes_).subspan(first, static_cast<std::size_t>(wave_lanes_));
}

void BlockEmulator::check_company(const Lane& lane, Collective collective) {
  const Wave& wave = own_wave();
  bool fine = wave.arrived == 0 || wave.open == collective;
  if (collective == Collective::barrier) {
    fine = fine && ended_ == 0;
  } else {
    fine = fine && (collective == Collective::none ? at_barrier_ : wave.at_barrier + wave.ended) == 0;
  }
  if (!fine) fail_company(lane, collective);
}

void BlockEmulator::fail_company(const Lane& lane, Collective collective) {
  const std::string does =
      collective == Collective::none ? std::string("ends") : concat("comes to ", name_of(collective));
  for (const Lane& other : wave_of(lane)) {
    if (other.waits_for != Collective::none && other.waits_for != collective) {
      fail(does, " while ", name(other), " waits at ", name_of(other.waits_for));
    }
  }
  for (const Lane& other : lanes_) {
    if (other.ended && collective != Collective::none) fail(does, " after ", name(other), " has ended");
    if (other.waits_for == Collective::barrier) fail(does, " while ", name(other), " waits at barrier()");
  }
  fail(does, " alone");
}

void BlockEmulator::join(Collective collective, void* arguments) {
  Lane& lane = self();
  check_company(lane, collective);
  land_some();
  lane.waits_for = collective;
  lane.arguments = arguments;
  Wave& wave = own_wave();
  bool complete = false;
  if (collective == Collective::barrier) {
    ++wave.at_barrier;
    complete = ++at_barrier_ == static_cast<std::int32_t>(lanes_.size());
  } else {
    wave.open = collective;
    complete = ++wave.arrived == wave_lanes_;
  }
  if (complete) {
    const bool of_block = collective == Collective::barrier;
    const std::span<Lane> group = of_block ? std::span(lanes_) : wave_of(lane);
    perform(collective, group);
    for (Lane& other : group) {
      other.waits_for = Collective::none;
      runnable_.push_back(other.thread);
    }
    wave.arrived = 0;
    if (of_block) {
      at_barrier_ = 0;
      for (Wave& each : waves_) each.at_barrier = 0;
    }
  }
  yield();
}

void BlockEmulator::perform(Collective collective, std::span<Lane> group) {
  switch (collective) {
    case Collective::none:
      break;
    case Collective::barrier:
      shared_.barrier();
      break;
    case Collective::wave_sync:
      shared_.wave_sync(group.front().thread / wave_lanes_);
      break;
    case Collective::vote:
      vote(group);
      break;
    case Collective::shuffle:
      exchange(group);
      break;
    case Collective::load_matrices:
    case Collective::load_matrices_transposed:
      load_rows(group, collective == Collective::load_matrices_transposed);
      break;
    case Collective::multiply:
      multiply_arguments_.clear();
      for (const Lane& lane : group) multiply_arguments_.push_back(static_cast<MultiplyArguments*>(lane.arguments));
      check(emulation::multiply(multiply_arguments_));
      break;
    case Collective::store_matrices:
    case Collective::fence_products:
    case Collective::begin_product:
    case Collective::commit_products:
    case Collective::wait_products:
      fail(name_of(collective), " is no part of this machine");
  }
}

void BlockEmulator::vote(std::span<Lane> wave) {
  const bool result = std::ranges::any_of(wave, [](const Lane& lane) { return *static_cast<bool*>(lane.arguments); });
  for (const Lane& lane : wave) *static_cast<bool*>(lane.arguments) = result;
}

void BlockEmulator::exchange(std::span<Lane> wave) {
  const auto of = [&](std::size_t lane) -> ShuffleArguments& {
    return *static_cast<ShuffleArguments*>(wave[lane].arguments);
  };
  for (std::size_t lane = 0; lane < wave.size(); ++lane) {
    const std::size_t from = lane ^ static_cast<std::size_t>(of(lane).mask);
    if (from >= wave.size()) fail("shuffle_xor() with mask ", of(lane).mask, " in waves of ", wave.size(), " lanes");
    of(lane).result = of(from).value;
  }
}

void BlockEmulator::load_rows(std::span<Lane> wave, bool transposed) {
  std::uint16_t rows[32][8];
  std::array<std::uint32_t*, 32> to;
  if (wave.size() != to.size()) fail(name_of(Collective::load_matrices), " in waves of ", wave.size(), " lanes");
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto& arguments = *static_cast<const LoadArguments*>(wave[i].arguments);
    const std::string fault = load_row(wave[i], rows[i], arguments.row, sizeof rows[i]);
    if (!fault.empty()) fail("load_matrices with the address of lane ", i, " ", fault);
    to[i] = arguments.to;
  }
  distribute_matrices(rows, transposed, to);
}

std::string BlockEmulator::load_row(const Lane&, void* to, const void* row, std::size_t bytes) {
  return shared_.load(accessor(true), to, row, bytes);
}

void BlockEmulator::barrier() { join(Collective::barrier, nullptr); }
void BlockEmulator::wave_sync() { join(Collective::wave_sync, nullptr); }

bool BlockEmulator::any(bool value) {
  join(Collective::vote, &value);
  return value;
}

std::uint32_t BlockEmulator::shuffle_xor(std::uint32_t value, std::int32_t mask) {
  ShuffleArguments arguments{value, mask, 0};
  join(Collective::shuffle, &arguments);
  return arguments.result;
}

void BlockEmulator::load_matrices(std::uint32_t* to, const void* row, bool transposed) {
  LoadArguments arguments{to, row};
  join(transposed ? Collective::load_matrices_transposed : Collective::load_matrices, &arguments);
}

void BlockEmulator::multiply(device::HostMatrix matrix, std::int32_t element, float* d, const std::uint32_t* a,
                             const std::uint32_t* b) {
  MultiplyArguments arguments{matrix, element, d, a, b};
  join(Collective::multiply, &arguments);
}

void BlockEmulator::load_global(void* to, const void* from, std::int32_t bytes) {
  check(memory_.access(from, static_cast<std::size_t>(bytes), GlobalAccess::read, global_accessor()));
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void BlockEmulator::store_global(void* to, const void* from, std::int32_t bytes) {
  check(memory_.access(to, static_cast<std::size_t>(bytes), GlobalAccess::write, global_accessor()));
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void BlockEmulator::add_global(float* to, float x) {
  check(memory_.access(to, sizeof(x), GlobalAccess::add, global_accessor()));
  std::atomic_ref<float>(*to).fetch_add(x, std::memory_order_relaxed);
}

void BlockEmulator::add_global(float* to, const float (&x)[4]) {
  check(memory_.access(to, sizeof(x), GlobalAccess::add, global_accessor()));
  for (int i = 0; i < 4; ++i) std::atomic_ref<float>(to[i]).fetch_add(x[i], std::memory_order_relaxed);
}

void BlockEmulator::load_shared(void* to, const void* from, std::int32_t bytes) {
  check(shared_.load(accessor(), to, from, static_cast<std::size_t>(bytes)));
}

void BlockEmulator::store_shared(void* to, const void* from, std::int32_t bytes) {
  check(shared_.store(accessor(), to, from, static_cast<std::size_t>(bytes)));
}

void BlockEmulator::copy_async(void* to, const void* from, bool valid) {
  if (valid) check(memory_.access(from, sizeof(device::Chunk), GlobalAccess::read, global_accessor()));
  check(shared_.begin_copy(accessor(), to, sizeof(device::Chunk)));
  Lane& lane = self();
  lane.copies.push_back({to, valid ? from : nullptr, lane.copy_group, false});
  if (random(2) == 0) land(lane.copies.back());
}

void BlockEmulator::commit_copies() { ++self().copy_group; }

void BlockEmulator::wait_copies(std::int32_t pending) {
  Lane& lane = self();
  std::erase_if(lane.copies, [&](Copy& copy) {
    if (copy.group >= lane.copy_group - pending) return false;
    land(copy);
    shared_.finish_copy(accessor(), copy.to, sizeof(device::Chunk));
    return true;
  });
}

void BlockEmulator::land(Copy& copy) {
  if (copy.landed) return;
  const device::Chunk zeros{{0, 0, 0, 0}};
  shared_.land_copy(copy.to, copy.from != nullptr ? copy.from : &zeros, sizeof zeros);
  copy.landed = true;
}

/// Time passes: of this lane's copies on their way some arrive.
void BlockEmulator::land_some() {
  for (Copy& copy : self().copies) {
    if (!copy.landed && random(4) == 0) land(copy);
  }
}

}  // namespace tilewise::backends::emulation
