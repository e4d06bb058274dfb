// Counting of arrivals, bytes and phases.
#include "backends/emulation/barriers.hpp"

#include "core/message.hpp"

namespace tilewise::backends::emulation {

using core::concat;

std::string MemoryBarrier::arrive(std::int64_t more_bytes) {
  if (missing == 0) return concat("arrives at ", name(), ", whose ", expected, " arrivals have come in phase ", phase);
  bytes += more_bytes;
  --missing;
  return missing == 0 && bytes < 0 ? surplus() : std::string();
}

std::string MemoryBarrier::land(std::int64_t count, bool from_peer) {
  bytes -= count;
  return bytes < 0 && (missing == 0 || !from_peer) ? surplus() : std::string();
}

std::string MemoryBarrier::surplus() const {
  return concat(-bytes, " bytes more than it was told to expect land on ", name(), " in phase ", phase);
}

bool MemoryBarrier::advance() {
  if (missing != 0 || bytes != 0) return false;
  ++phase;
  missing = expected;
  done.learn(pending);
  return true;
}

std::int32_t MemoryBarrier::meant(std::uint32_t parity) const {
  return static_cast<std::uint32_t>(phase & 1) == parity ? phase : phase - 1;
}

std::string MemoryBarrier::name() const { return concat("barrier ", index, " (offset ", offset, " of shared memory)"); }

std::string MemoryBarrier::lack() const {
  return concat("lacks ", missing, " of ", expected, " arrivals and ", bytes, " bytes");
}

}  // namespace tilewise::backends::emulation
