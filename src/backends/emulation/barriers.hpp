// mbarriers and named barriers of a block under emulation: their counts, and what who passes them knows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "backends/emulation/knowledge.hpp"

namespace tilewise::backends::emulation {

/// A barrier in shared memory. A phase ends once all arrivals have come and all expected bytes have landed.
struct MemoryBarrier {
  static constexpr std::int32_t kNone = -2;  ///< a phase before the one before the first
  std::size_t index = 0;
  std::int64_t offset = 0;  ///< in shared memory
  std::int32_t expected = 0, missing = 0;
  std::int64_t bytes = 0;  ///< expected and not landed
  std::int32_t phase = 0;  ///< that is under way
  bool published = false;
  std::size_t initialiser = 0;  ///< lane
  Time initialised = 0;
  Clock pending, done;                  ///< what who arrived knew; what who waits learns
  std::vector<std::int32_t> waited;     ///< of each lane: the last phase it waited for, or kNone
  std::vector<std::int32_t> waiting{};  ///< lanes

  /// Empty, or what is wrong. Bytes that another block sends may land before this one has said what to expect.
  [[nodiscard]] std::string arrive(std::int64_t more_bytes);
  [[nodiscard]] std::string land(std::int64_t count, bool from_peer);
  /// Begins the next phase if this one has ended.
  bool advance();
  /// The phase that a wait for this parity means: the one under way, or the one before.
  [[nodiscard]] std::int32_t meant(std::uint32_t parity) const;
  [[nodiscard]] std::string name() const;
  /// "lacks 1 of 12 arrivals and 0 bytes"
  [[nodiscard]] std::string lack() const;

 private:
  [[nodiscard]] std::string surplus() const;
};

/// A hardware barrier by number.
struct NamedBarrier {
  std::int32_t threads = 0, arrived = 0;
  Clock pending;
  std::vector<std::int32_t> waiting{};
  std::vector<bool> came;  ///< of each lane, in this round
};
inline constexpr std::size_t kNamedBarriers = 16;

/// That of all lanes of a cluster's blocks, each of which arrives and then waits.
struct ClusterBarrier {
  std::size_t arrived = 0;  ///< lanes
  std::int32_t phase = 0;   ///< that is under way
  Clock pending, done;
  std::vector<std::int32_t> arrivals, waits;  ///< of each lane, one block's after the other's
};

}  // namespace tilewise::backends::emulation
