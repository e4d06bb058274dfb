// Products that run beside the lanes of a wave (wgmma): each reads its operands at some moment between its issue and
// the wait for its group, and only then are its sums the lanes' again.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backends/emulation/async_memory.hpp"
#include "backends/emulation/knowledge.hpp"
#include "device/tile/host_entry.h"

namespace tilewise::backends::emulation {

/// One wave's share. Functions return an empty text, or what is wrong.
class WaveProducts {
 public:
  using Lanes = std::array<const device::HostProduct*, Actors::kWaveLanes>;

  WaveProducts(std::size_t wave, AsyncMemory& memory, Knowledge& knowledge)
      : wave_(wave), memory_(memory), knowledge_(knowledge) {}

  void begin_block();
  void fence() { fenced_ = true; }
  [[nodiscard]] std::string begin(const Lanes& lanes);
  void commit();
  /// Until at most `pending` groups are under way.
  [[nodiscard]] std::string wait(std::int32_t pending);
  /// Time passes: the oldest product that is still to be computed is.
  [[nodiscard]] std::string compute_next();
  [[nodiscard]] bool has_uncomputed() const noexcept { return computed_ < queue_.size(); }
  [[nodiscard]] bool is_idle() const noexcept { return queue_.empty(); }

 private:
  static constexpr std::size_t kRows = 16, kMostDepth = 32, kMostColumns = 256, kPieceBytes = 16;

  /// Registers of a fragment while they are the matrix unit's.
  struct Sums {
    std::array<float*, Actors::kWaveLanes> registers;
    std::size_t columns, users;
    std::vector<float> value;  ///< [row][column]
  };
  struct Product {
    std::array<device::HostProduct, Actors::kWaveLanes> lanes;
    std::shared_ptr<Sums> sums;
    std::shared_ptr<const Clock> known;  ///< at its issue
    std::int32_t group;
  };

  [[nodiscard]] std::string take_sums(const Lanes& lanes, std::shared_ptr<Sums>& sums);
  [[nodiscard]] std::string give_back(Sums& sums);
  [[nodiscard]] std::string compute(const Product& product);
  [[nodiscard]] std::string load_left(const Product& product, float (&a)[kRows][kMostDepth]);
  [[nodiscard]] std::string load_right(const Product& product, float (&b)[kMostDepth][kMostColumns]);
  /// 16 bytes of adjacent elements of a tile; `row` counts along K or across it, as the tile's
  /// do.
  [[nodiscard]] std::string load_piece(const Product& product, bool left, std::size_t row, std::size_t piece,
                                       float (&to)[kPieceBytes]);

  std::size_t wave_;
  AsyncMemory& memory_;
  Knowledge& knowledge_;
  std::deque<Product> queue_;
  std::size_t computed_ = 0;  ///< of the queue
  std::int32_t group_ = 0;    ///< that commit() will close
  bool fenced_ = false;
  std::vector<std::shared_ptr<Sums>> held_;
  std::shared_ptr<const Clock> known_;  ///< shared by products of one issue
};

}  // namespace tilewise::backends::emulation
