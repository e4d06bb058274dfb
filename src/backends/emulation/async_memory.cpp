// One record for each 16 bytes says who wrote them, and when each wave and each engine last read them.
#include "backends/emulation/async_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "core/message.hpp"

namespace tilewise::backends::emulation {

using core::concat;

namespace {
constexpr std::uint8_t kSeveral = 255;
}  // namespace

AsyncMemory::AsyncMemory(std::size_t bytes, const Actors& actors)
    : actors_(actors),
      slots_(actors.waves() + actors.count() - actors.lanes - Actors::kMostBarriers),
      data_(bytes),
      pieces_((bytes + kPieceBytes - 1) / kPieceBytes),
      reads_(pieces_.size() * slots_),
      reading_lane_(pieces_.size() * actors.waves()),
      window_bytes_(std::max<std::size_t>(bytes, 1)),
      window_(mmap(nullptr, window_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  if (window_ == MAP_FAILED) {
    throw Error(ErrorCode::runtime, concat("emulation: no addresses for ", bytes, " bytes of shared memory"));
  }
}

AsyncMemory::~AsyncMemory() { munmap(window_, window_bytes_); }

void AsyncMemory::begin_block() {
  std::ranges::fill(pieces_, Piece{});
  std::ranges::fill(reads_, Time{0});
  // What lies there by chance is not zero: a NaN in either element type, and in fp32.
  std::ranges::fill(data_, std::byte{0xFF});
}

std::string AsyncMemory::name(std::size_t actor) const {
  actor -= actors_.first();
  if (actor < actors_.lanes) return concat("wave ", actor / Actors::kWaveLanes, ", lane ", actor % Actors::kWaveLanes);
  actor -= actors_.lanes;
  if (actor < Actors::kMostBarriers) return concat("a copy that counts on barrier ", actor);
  actor -= Actors::kMostBarriers;
  const std::size_t products = actors_.waves() * Actors::kProductGroups;
  if (actor < products) return concat("a product of wave ", actor / Actors::kProductGroups);
  return concat("a store of wave ", actor - products);
}

std::string AsyncMemory::locate(std::int64_t at, std::size_t bytes, const char* verb) const {
  const bool inside = at >= 0 && static_cast<std::size_t>(at) + bytes <= data_.size();
  const std::size_t alignment = std::min(bytes & (~bytes + 1), kPieceBytes);
  if (inside && static_cast<std::size_t>(at) % alignment == 0) return {};
  const std::string what = concat(verb, " ", bytes, " bytes at offset ", at, " of shared memory");
  return inside ? concat(what, ", which is not aligned") : concat(what, ", which has ", data_.size(), " bytes");
}

bool AsyncMemory::knows_writer(const Toucher& who, const Piece& piece) const {
  const std::size_t writer = piece.writer;
  if (!is_lane(writer) || !who.engine) {
    return writer == who.lane || who.clock->seen[writer] >= piece.written;
  }
  return who.clock->visible[writer] >= piece.written;
}

std::size_t AsyncMemory::reader_of(const Toucher& who) const {
  const std::size_t actor = who.actor - actors_.first();
  if (actor < actors_.lanes) return actor / Actors::kWaveLanes;
  return actors_.waves() + actor - actors_.lanes - Actors::kMostBarriers;
}

void AsyncMemory::note_read(const Toucher& who, Time now, std::size_t piece) {
  const std::size_t slot = reader_of(who);
  Time& last = reads_[piece * slots_ + slot];
  if (is_lane(who.actor)) {
    std::uint8_t& lane = reading_lane_[piece * actors_.waves() + slot];
    const std::size_t first = actors_.lane(slot * Actors::kWaveLanes);
    const auto own = static_cast<std::uint8_t>(who.lane - first);
    const bool alone = last == 0 || lane == own || (lane != kSeveral && who.clock->seen[first + lane] >= last);
    lane = alone ? own : kSeveral;
  }
  last = now;
}

/// Whoever knows of the write knows of the reads before it.
void AsyncMemory::note_write(const Toucher& who, Time now, std::size_t piece, bool copying) {
  pieces_[piece] = {now, static_cast<std::uint16_t>(who.actor), copying};
  std::fill_n(reads_.begin() + static_cast<std::ptrdiff_t>(piece * slots_), slots_, Time{0});
}

std::size_t AsyncMemory::unknown_reader(const Toucher& who, std::size_t piece) const {
  const Time* reads = &reads_[piece * slots_];
  const std::vector<Time>& seen = who.clock->seen;
  for (std::size_t slot = 0; slot < slots_; ++slot) {
    if (reads[slot] == 0) continue;
    if (slot >= actors_.waves()) {
      const std::size_t actor = actors_.first() + slot - actors_.waves() + actors_.lanes + Actors::kMostBarriers;
      if (seen[actor] < reads[slot]) return actor;
      continue;
    }
    const std::uint8_t alone = reading_lane_[piece * actors_.waves() + slot];
    const std::size_t first = actors_.lane(slot * Actors::kWaveLanes);
    for (std::size_t i = 0; i < Actors::kWaveLanes; ++i) {
      if ((alone == kSeveral || alone == i) && first + i != who.lane && seen[first + i] < reads[slot]) return first + i;
    }
  }
  return actors_.of_cluster();
}

std::string AsyncMemory::load(const Toucher& who, Time now, void* to, std::int64_t from, std::size_t bytes) {
  if (std::string fault = locate(from, bytes, "reads"); !fault.empty()) return fault;
  const auto first = static_cast<std::size_t>(from);
  for (std::size_t i = first / kPieceBytes; i * kPieceBytes < first + bytes; ++i) {
    const Piece& piece = pieces_[i];
    const auto fault = [&](const char* problem) {
      return concat("reads offset ", i * kPieceBytes, " of shared memory", problem, name(piece.writer));
    };
    if (piece.copying) return fault(", where a copy is under way: ");
    if (piece.written == 0) {
      return concat("reads offset ", i * kPieceBytes, " of shared memory, which nobody wrote since the block began");
    }
    if (!knows_writer(who, piece)) {
      const bool known = who.engine && is_lane(piece.writer) &&
                         (piece.writer == who.lane || who.clock->seen[piece.writer] >= piece.written);
      return fault(known ? ", with no fence_shared_writes() since it was written by "
                         : ", with no barrier since it was written by ");
    }
    note_read(who, now, i);
  }
  std::memcpy(to, data_.data() + first, bytes);
  return {};
}

std::string AsyncMemory::check_write(const Toucher& who, std::int64_t to, std::size_t bytes, const char* verb) {
  if (std::string fault = locate(to, bytes, verb); !fault.empty()) return fault;
  const auto first = static_cast<std::size_t>(to);
  for (std::size_t i = first / kPieceBytes; i * kPieceBytes < first + bytes; ++i) {
    const Piece& piece = pieces_[i];
    const auto fault = [&](const char* problem, std::size_t other) {
      return concat(verb, " offset ", i * kPieceBytes, " of shared memory", problem, name(other));
    };
    if (piece.copying) return fault(", where a copy is under way: ", piece.writer);
    if (piece.written != 0 && !knows_writer(who, piece)) {
      return fault(who.engine && is_lane(piece.writer) ? ", with no fence and barrier since it was written by "
                                                       : ", with no barrier since it was written by ",
                   piece.writer);
    }
    if (const std::size_t reader = unknown_reader(who, i); reader != actors_.of_cluster()) {
      return fault(", with no barrier since it was read by ", reader);
    }
  }
  return {};
}

std::string AsyncMemory::store(const Toucher& who, Time now, std::int64_t to, const void* from, std::size_t bytes) {
  if (std::string fault = check_write(who, to, bytes, "writes"); !fault.empty()) return fault;
  const auto first = static_cast<std::size_t>(to);
  for (std::size_t i = first / kPieceBytes; i * kPieceBytes < first + bytes; ++i) {
    note_write(who, now, i, false);
  }
  std::memcpy(data_.data() + first, from, bytes);
  return {};
}

std::string AsyncMemory::begin_copy(const Toucher& who, Time now, std::int64_t to) {
  if (std::string fault = check_write(who, to, kPieceBytes, "copies to"); !fault.empty()) return fault;
  note_write(who, now, static_cast<std::size_t>(to) / kPieceBytes, true);
  return {};
}

void AsyncMemory::land_copy(const Toucher& who, Time now, std::int64_t to, const void* from) {
  pieces_[static_cast<std::size_t>(to) / kPieceBytes] = {now, static_cast<std::uint16_t>(who.actor), false};
  std::memcpy(data_.data() + to, from, kPieceBytes);
}

}  // namespace tilewise::backends::emulation
