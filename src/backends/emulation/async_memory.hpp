// The shared memory of a block that TMA and a matrix unit use beside its lanes: who touched what, and whether
// the one knew of the other. Checks bounds, alignment, words nobody wrote, races, and writes of lanes that were not
// made visible to the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backends/emulation/knowledge.hpp"

namespace tilewise::backends::emulation {

/// Who touches memory, and what he knows. Lanes see what others `seen`; engines what was made visible.
struct Toucher {
  std::size_t actor = 0;  ///< of this block, whose access it is recorded as
  std::size_t lane = 0;   ///< on behalf of which, as an actor, which may be of another block of the cluster
  const Clock* clock = nullptr;
  bool engine = false;
};

/// Functions that check return an empty text, or what is wrong; nothing was moved then. Accesses are recorded by pieces
/// of 16 bytes: two lanes that write parts of one need a barrier between.
class AsyncMemory {
 public:
  static constexpr std::size_t kPieceBytes = 16, kPatternBytes = 1024;

  AsyncMemory(std::size_t bytes, const Actors& actors);
  ~AsyncMemory();
  AsyncMemory(const AsyncMemory&) = delete;
  AsyncMemory& operator=(const AsyncMemory&) = delete;

  /// The addresses that the kernel sees. They fault: whatever passes the accessors by ends the program.
  [[nodiscard]] void* window() const noexcept { return window_; }
  /// Where an address lies; negative or past the end where it is no address of shared memory.
  [[nodiscard]] std::int64_t offset_of(const void* address) const noexcept {
    return static_cast<const char*>(address) - static_cast<const char*>(window_);
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return data_.size(); }

  void begin_block();
  /// Whether somebody wrote the piece since the block began.
  [[nodiscard]] bool is_written(std::int64_t at) const {
    return at >= 0 && static_cast<std::size_t>(at) < data_.size() &&
           pieces_[static_cast<std::size_t>(at) / kPieceBytes].written != 0;
  }

  /// bytes: 16, or a part of 16 that does not cross a piece, or several pieces.
  [[nodiscard]] std::string load(const Toucher& who, Time now, void* to, std::int64_t from, std::size_t bytes);
  [[nodiscard]] std::string store(const Toucher& who, Time now, std::int64_t to, const void* from, std::size_t bytes);
  /// From here to land_copy() the piece belongs to the copy. Lanes' writes that the engine does not see are errors.
  [[nodiscard]] std::string begin_copy(const Toucher& who, Time now, std::int64_t to);
  void land_copy(const Toucher& who, Time now, std::int64_t to, const void* from);

 private:
  struct Piece {
    Time written = 0;  ///< 0: never
    std::uint16_t writer = 0;
    bool copying = false;
  };

  [[nodiscard]] std::string locate(std::int64_t at, std::size_t bytes, const char* verb) const;
  [[nodiscard]] bool knows_writer(const Toucher& who, const Piece& piece) const;
  [[nodiscard]] std::string check_write(const Toucher& who, std::int64_t to, std::size_t bytes, const char* verb);
  [[nodiscard]] bool is_lane(std::size_t actor) const { return actor < actors_.lane(actors_.lanes); }
  [[nodiscard]] std::size_t reader_of(const Toucher& who) const;
  void note_read(const Toucher& who, Time now, std::size_t piece);
  void note_write(const Toucher& who, Time now, std::size_t piece, bool copying);
  /// A slot of readers of the piece that `who` does not know to have ended, or none.
  [[nodiscard]] std::size_t unknown_reader(const Toucher& who, std::size_t piece) const;
  [[nodiscard]] std::string name(std::size_t actor) const;

  Actors actors_;
  std::size_t slots_;  ///< of readers: waves, then groups of products and stores of each
  std::vector<std::byte> data_;
  std::vector<Piece> pieces_;
  std::vector<Time> reads_;                 ///< [piece][slot]: when last
  std::vector<std::uint8_t> reading_lane_;  ///< [piece][wave]: kSeveral, or which lane alone
  std::size_t window_bytes_;
  void* window_;
};

}  // namespace tilewise::backends::emulation
