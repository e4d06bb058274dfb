// Checked shared memory: one record for each two bytes says who wrote and read them last, and when.
#include "backends/emulation/shared_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/message.hpp"

namespace tilewise::backends::emulation {

using core::concat;

namespace {
constexpr std::size_t kCellBytes = 2;
}  // namespace

SharedMemory::SharedMemory(std::size_t bytes, std::int32_t waves, std::int32_t lanes)
    : lanes_(lanes),
      data_(bytes),
      cells_((bytes + kCellBytes - 1) / kCellBytes),
      wave_sync_time_(static_cast<std::size_t>(waves), 1),
      window_bytes_(std::max<std::size_t>(bytes, 1)),
      window_(mmap(nullptr, window_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  if (window_ == MAP_FAILED) {
    throw Error(ErrorCode::runtime, concat("emulation: no addresses for ", bytes, " bytes of shared memory"));
  }
}

SharedMemory::~SharedMemory() { munmap(window_, window_bytes_); }

void SharedMemory::begin_block() {
  if (now_ > std::numeric_limits<Time>::max() / 2) {
    std::ranges::fill(cells_, Cell{});
    now_ = 0;
  }
  block_start_ = barrier_time_ = ++now_;
  std::ranges::fill(wave_sync_time_, block_start_);
  // What lies there by chance is not zero: a NaN in either element type, and in fp32.
  std::ranges::fill(data_, std::byte{0xFF});
}

std::int16_t SharedMemory::id_of(const Accessor& who) {
  return static_cast<std::int16_t>(who.whole_wave ? kWave - who.wave : who.thread);
}

std::string SharedMemory::name(std::int16_t id) const {
  if (id == kMany) return "lanes of several waves";
  if (id <= kWave) return concat("wave ", wave_of(id));
  return concat("lane ", id % lanes_, " of wave ", id / lanes_);
}

/// Whether an access of `id` at `time` happened before whatever `who` does now.
bool SharedMemory::ordered(Time time, std::int16_t id, const Accessor& who) const {
  if (time <= barrier_time_) return true;
  if (id == kMany) return false;
  if (wave_of(id) == who.wave && time <= wave_sync_time_[static_cast<std::size_t>(who.wave)]) return true;
  return id > kMany && !who.whole_wave && id == who.thread;
}

std::string SharedMemory::locate(const void* address, std::size_t bytes, const char* verb, std::size_t& first) const {
  const auto base = reinterpret_cast<std::intptr_t>(window_), at = reinterpret_cast<std::intptr_t>(address);
  const std::intptr_t offset = at - base;
  const bool inside = offset >= 0 && static_cast<std::size_t>(offset) + bytes <= data_.size();
  first = static_cast<std::size_t>(offset);
  if (inside && first % bytes == 0) return {};
  const std::string what = concat(verb, " ", bytes, " bytes at offset ", offset, " of shared memory");
  return inside ? concat(what, ", which is not aligned") : concat(what, ", which has ", data_.size(), " bytes");
}

void SharedMemory::note_read(Cell& cell, const Accessor& who) {
  const std::int16_t id = id_of(who);
  // Only readers of this barrier interval matter: a writer after the next barrier is ordered after all of them.
  if (cell.read <= barrier_time_ || cell.reader == id) {
    cell.reader = id;
  } else if (cell.reader != kMany && wave_of(cell.reader) == who.wave) {
    const bool synced = cell.read <= wave_sync_time_[static_cast<std::size_t>(who.wave)];
    cell.reader = synced ? id : static_cast<std::int16_t>(kWave - who.wave);
  } else {
    cell.reader = kMany;
  }
  cell.read = now_ + 1;
}

std::string SharedMemory::load(const Accessor& who, void* to, const void* from, std::size_t bytes) {
  std::size_t first = 0;
  if (std::string fault = locate(from, bytes, "reads", first); !fault.empty()) return fault;
  for (std::size_t at = first; at < first + bytes; at += kCellBytes) {
    Cell& cell = cells_[at / kCellBytes];
    const char* problem = nullptr;
    if (cell.written <= block_start_) {
      return concat("reads offset ", at, " of shared memory, which nobody wrote since the block began");
    }
    if (cell.copying)
      problem = ", where an asynchronous copy is under way that was not waited for, by ";
    else if (!ordered(cell.written, cell.writer, who))
      problem = ", with no barrier since it was written by ";
    if (problem) return concat("reads offset ", at, " of shared memory", problem, name(cell.writer));
    note_read(cell, who);
  }
  std::memcpy(to, data_.data() + first, bytes);
  return {};
}

std::string SharedMemory::check_write(const Accessor& who, const void* to, std::size_t bytes, const char* verb,
                                      std::size_t& first) {
  if (std::string fault = locate(to, bytes, verb, first); !fault.empty()) return fault;
  for (std::size_t at = first; at < first + bytes; at += kCellBytes) {
    const Cell& cell = cells_[at / kCellBytes];
    const auto fault = [&](const char* problem, std::int16_t other) {
      return concat(verb, " offset ", at, " of shared memory", problem, name(other));
    };
    if (cell.written > block_start_) {
      if (cell.copying)
        return fault(", where an asynchronous copy is under way that was not waited for, by ", cell.writer);
      if (!ordered(cell.written, cell.writer, who))
        return fault(", with no barrier since it was written by ", cell.writer);
    }
    if (!ordered(cell.read, cell.reader, who)) return fault(", with no barrier since it was read by ", cell.reader);
  }
  return {};
}

std::string SharedMemory::store(const Accessor& who, void* to, const void* from, std::size_t bytes) {
  std::size_t first = 0;
  if (std::string fault = check_write(who, to, bytes, "writes", first); !fault.empty()) return fault;
  for (std::size_t at = first; at < first + bytes; at += kCellBytes) {
    Cell& cell = cells_[at / kCellBytes];
    cell.written = now_ + 1, cell.writer = id_of(who), cell.copying = false;
  }
  std::memcpy(data_.data() + first, from, bytes);
  return {};
}

std::string SharedMemory::begin_copy(const Accessor& who, void* to, std::size_t bytes) {
  std::size_t first = 0;
  if (std::string fault = check_write(who, to, bytes, "copies to", first); !fault.empty()) return fault;
  for (std::size_t at = first; at < first + bytes; at += kCellBytes) {
    Cell& cell = cells_[at / kCellBytes];
    cell.written = now_ + 1, cell.writer = id_of(who), cell.copying = true;
  }
  return {};
}

void SharedMemory::land_copy(void* to, const void* from, std::size_t bytes) {
  const auto offset = static_cast<std::size_t>(static_cast<char*>(to) - static_cast<char*>(window_));
  std::memcpy(data_.data() + offset, from, bytes);
}

void SharedMemory::finish_copy(const Accessor& who, void* to, std::size_t bytes) {
  const auto first = static_cast<std::size_t>(static_cast<char*>(to) - static_cast<char*>(window_));
  for (std::size_t at = first; at < first + bytes; at += kCellBytes) {
    Cell& cell = cells_[at / kCellBytes];
    cell.written = now_ + 1, cell.writer = id_of(who), cell.copying = false;
  }
}

}  // namespace tilewise::backends::emulation
