// What happened before what in a block whose lanes meet by barriers in shared memory: vector clocks. An actor is a
// lane, or what moves or multiplies beside the lanes on behalf of one of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tilewise::backends::emulation {

using Time = std::uint32_t;

/// Of each actor, up to when what it did is known.
struct Clock {
  std::vector<Time> seen;     ///< by lanes
  std::vector<Time> visible;  ///< by TMA and the matrix unit too

  void reset(std::size_t actors) {
    seen.assign(actors, 0);
    visible.assign(actors, 0);
  }
  void learn(const Clock& other) {
    learn(seen, other.seen);
    learn(visible, other.visible);
  }
  static void learn(std::vector<Time>& to, const std::vector<Time>& from) {
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
  }
};

/// The actors of a block, by number, among those of the blocks of its cluster, which have equally many. Products take a
/// number for each of a few groups, so that one that has ended says nothing of those behind it.
struct Actors {
  static constexpr std::size_t kMostBarriers = 128, kProductGroups = 4, kWaveLanes = 32;
  std::size_t lanes = 0;             ///< of a block
  std::size_t rank = 0, blocks = 1;  ///< of this block; of the cluster

  [[nodiscard]] std::size_t waves() const { return lanes / kWaveLanes; }
  [[nodiscard]] std::size_t first() const { return rank * count(); }
  [[nodiscard]] std::size_t lane(std::size_t lane) const { return first() + lane; }
  /// The copies that count on a barrier.
  [[nodiscard]] std::size_t copies(std::size_t barrier) const { return first() + lanes + barrier; }
  [[nodiscard]] std::size_t products(std::size_t wave, std::size_t group) const {
    return first() + lanes + kMostBarriers + wave * kProductGroups + group % kProductGroups;
  }
  /// What takes a wave's tiles to global memory.
  [[nodiscard]] std::size_t stores(std::size_t wave) const {
    return first() + lanes + kMostBarriers + waves() * kProductGroups + wave;
  }
  [[nodiscard]] std::size_t count() const { return lanes + kMostBarriers + waves() * (kProductGroups + 1); }
  [[nodiscard]] std::size_t of_cluster() const { return blocks * count(); }
};

/// A clock of each lane, and the time of the block, which passes where lanes tell each other something. Clocks of a
/// cluster know of the actors of all its blocks, each by the time of its own.
class Knowledge {
 public:
  explicit Knowledge(const Actors& actors) : actors_(actors), clocks_(actors.lanes) {}

  void begin_block() {
    now_ = 1;
    for (Clock& clock : clocks_) clock.reset(actors_.of_cluster());
  }
  [[nodiscard]] const Actors& actors() const noexcept { return actors_; }
  [[nodiscard]] Time now() const noexcept { return now_; }
  Time pass() noexcept { return now_++; }
  [[nodiscard]] Clock& of(std::size_t lane) { return clocks_[lane]; }

  /// Whoever learns of `to` knows what the lane has done up to now.
  void tell(std::size_t lane, Clock& to) {
    clocks_[lane].seen[actors_.lane(lane)] = pass();
    to.learn(clocks_[lane]);
  }
  /// What the lane knows becomes visible to TMA and the matrix unit.
  void fence(std::size_t lane) {
    Clock& own = clocks_[lane];
    own.seen[actors_.lane(lane)] = pass();
    Clock::learn(own.visible, own.seen);
  }
  /// Lanes [first, first + count) know what each of them knew.
  void meet(std::size_t first, std::size_t count) {
    all_.reset(actors_.of_cluster());
    for (std::size_t lane = first; lane < first + count; ++lane) tell(lane, all_);
    for (std::size_t lane = first; lane < first + count; ++lane) clocks_[lane] = all_;
  }

 private:
  Actors actors_;
  std::vector<Clock> clocks_;
  Clock all_;
  Time now_ = 1;
};

}  // namespace tilewise::backends::emulation
