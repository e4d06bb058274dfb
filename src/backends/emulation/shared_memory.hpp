// The shared memory of a block under emulation, every access checked: bounds and alignment, words never
// written since the block began, races, and asynchronous copies that nobody waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tilewise::backends::emulation {

/// Who touches memory. A collective access (a matrix load) is the whole wave's.
struct Accessor {
  std::int32_t thread = 0, wave = 0;
  bool whole_wave = false;
};

/// Two accesses are ordered by a barrier between them, or by a wave_sync where they are of one wave.
/// Functions that check return an empty text, or what is wrong; nothing was moved then.
class SharedMemory {
 public:
  SharedMemory(std::size_t bytes, std::int32_t waves, std::int32_t lanes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// The addresses that the kernel sees. They fault: whatever passes the accessors by ends the program.
  [[nodiscard]] void* window() const noexcept { return window_; }

  void begin_block();
  void barrier() { barrier_time_ = ++now_; }
  void wave_sync(std::int32_t wave) { wave_sync_time_[static_cast<std::size_t>(wave)] = ++now_; }

  [[nodiscard]] std::string load(const Accessor& who, void* to, const void* from, std::size_t bytes);
  [[nodiscard]] std::string store(const Accessor& who, void* to, const void* from, std::size_t bytes);
  /// From here to finish_copy() the words belong to the copy.
  [[nodiscard]] std::string begin_copy(const Accessor& who, void* to, std::size_t bytes);
  /// The bytes arrive, at any time up to finish_copy().
  void land_copy(void* to, const void* from, std::size_t bytes);
  /// `who` has waited: as if it wrote the words now.
  void finish_copy(const Accessor& who, void* to, std::size_t bytes);

 private:
  using Time = std::uint32_t;
  /// Of two bytes, the smallest access. Times of earlier blocks count as never.
  struct Cell {
    Time written = 0, read = 0;
    std::int16_t writer = 0, reader = 0;  ///< thread, or kWave - wave where several lanes of one wave, or kMany
    bool copying = false;                 ///< by `writer`
  };
  static constexpr std::int16_t kMany = -1, kWave = -2;

  [[nodiscard]] std::int32_t wave_of(std::int16_t id) const { return id <= kWave ? kWave - id : id / lanes_; }
  [[nodiscard]] static std::int16_t id_of(const Accessor& who);
  [[nodiscard]] bool ordered(Time time, std::int16_t id, const Accessor& who) const;
  [[nodiscard]] std::string locate(const void* address, std::size_t bytes, const char* verb, std::size_t& first) const;
  [[nodiscard]] std::string check_write(const Accessor& who, const void* to, std::size_t bytes, const char* verb,
                                        std::size_t& first);
  void note_read(Cell& cell, const Accessor& who);
  [[nodiscard]] std::string name(std::int16_t id) const;

  std::int32_t lanes_;
  std::vector<std::byte> data_;
  std::vector<Cell> cells_;
  std::vector<Time> wave_sync_time_;
  Time now_ = 1, block_start_ = 1, barrier_time_ = 1;
  std::size_t window_bytes_;
  void* window_;
};

}  // namespace tilewise::backends::emulation
