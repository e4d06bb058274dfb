// Hopper's room (device/sm90) on kernels of a few lines: orders of tiles, schedulers, gathered rows and stores.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "device/common/float16.h"
#include "device/sm90/contract.h"
#include "device/sm90/epilogue.h"
#include "device/sm90/grid_counters.h"
#include "device/sm90/load.h"
#include "device/sm90/machine_host.h"
#include "device/sm90/mma.h"
#include "device/sm90/pipeline.h"
#include "device/sm90/roles.h"
#include "device/sm90/scheduler.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"

namespace tilewise::test {
namespace {

using namespace device;
using M = HostSm90Machine;

TEST(HopperTiles, OrderHasEachTileOnceInPanels) {
  for (const TileMatrix grid :
       {TileMatrix{5, 7, 2, 0}, TileMatrix{4, 3, 8, 0}, TileMatrix{1, 9, 1, 0}, TileMatrix{6, 4, 3, 0}}) {
    std::vector<std::array<std::int32_t, 3>> places;
    for (std::int32_t i = 0; i < grid.count(); ++i) {
      const TilePlace place = grid.place(i);
      EXPECT_TRUE(place.row >= 0 && place.row < grid.rows && place.col >= 0 && place.col < grid.cols);
      places.push_back({place.row / grid.panel, place.col, place.row});
    }
    EXPECT_TRUE(std::ranges::is_sorted(places));  // panel by panel, column by column
    EXPECT_EQ(std::ranges::adjacent_find(places), places.end());
  }
}

constexpr std::int32_t kTiles = 23, kBlocks = 4, kConsumerWarps = 4;
alignas(16) std::uint32_t counter_words[kCounterWords];
std::int32_t produced[kBlocks * kTiles], consumed[kConsumerWarps][kBlocks * kTiles];

struct QueueShared {
  TileQueue<M> queue;
};

/// Every tile is one block's, whose warps all hear of it, whatever the counter held.
TEST(HopperSchedulers, CountTilesOverAllBlocks) {
  backends::emulation::GlobalMemory memory;
  gpu::Region words{.name = "counter", .access = gpu::Access::add, .element_bytes = 4};
  words.row = kCounterWords, words.one_writer = false;
  memory.add(words, counter_words);
  const auto body = [](QueueShared& shared) {
    if (M::thread() == 0) {
      shared.queue.init(kConsumerWarps);
      M::publish_barriers();
    }
    meet_cluster<M, 1>();
    run_roles<M, 1>(
        [&](int) {
          if (M::thread() != 0) return;
          for (CountingScheduler<M> tiles(shared.queue, counter_words, kTiles); tiles.has_tile(); tiles.advance()) {
            ++produced[M::block() * kTiles + tiles.number()];
          }
        },
        [&](std::int32_t) {
          const int warp = M::wave() - 4;
          for (ToldScheduler<M> tiles(shared.queue, kTiles); tiles.has_tile(); tiles.advance()) {
            if (M::lane() == 0) ++consumed[warp][M::block() * kTiles + tiles.number()];
          }
        });
  };
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    std::ranges::fill(produced, 0);
    for (auto& warp : consumed) std::ranges::fill(warp, 0);
    if (seed == 0) std::ranges::fill(counter_words, 0xDEADBEEFu);
    EXPECT_EQ(fault_of(kernel_of<M, QueueShared>(body), 256, kBlocks, seed, memory), "");
    for (std::int32_t tile = 0; tile < kTiles; ++tile) {
      std::int32_t times = 0;
      for (std::int32_t block = 0; block < kBlocks; ++block) times += produced[block * kTiles + tile];
      EXPECT_EQ(times, 1) << tile;
    }
    for (const auto& warp : consumed) EXPECT_TRUE(std::ranges::equal(warp, produced));
  }
}

alignas(16) std::uint32_t grid_words[GridCounters<M>::words(kBlocks + 1)];
std::int32_t turns, turn_of[kBlocks];

/// Whatever the memory held, and as launches before have left it.
TEST(HopperGridCounters, CountOverAllBlocks) {
  backends::emulation::GlobalMemory memory;
  gpu::Region words{.name = "counters", .access = gpu::Access::add, .element_bytes = 4};
  words.row = GridCounters<M>::words(kBlocks + 1), words.one_writer = false;
  memory.add(words, grid_words);
  const auto body = [](NoShared&) {
    const GridCounters<M> counters(grid_words);
    if (M::lane() == 0) counters.open(kBlocks + 1);
    M::wave_sync();
    if (M::block() > 0) counters.wait(M::block() - 1, 1);  // a block after the other
    if (M::lane() == 0) {
      turn_of[M::block()] = turns++;
      counters.arrive(M::block()), counters.arrive(kBlocks);
    }
    counters.wait(kBlocks, M::blocks());
    if (M::lane() == 0) counters.meet(M::blocks());
  };
  std::ranges::fill(grid_words, 0xDEADBEEFu);
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    turns = 0;
    EXPECT_EQ(fault_of(kernel_of<M, NoShared>(body), 32, kBlocks, seed, memory, &kNoParams, 1, kBlocks), "");
    for (std::int32_t block = 0; block < kBlocks; ++block) EXPECT_EQ(turn_of[block], block);
  }
}

TEST(HopperSchedulers, ScheduleTilesOfClusters) {
  std::ranges::fill(produced, 0);
  const auto body = [](QueueShared&) {
    if (M::thread() != 0) return;
    for (StaticScheduler<M, 2> tiles(kTiles); tiles.has_tile(); tiles.advance()) {
      produced[M::block() * kTiles + tiles.number()] = 1;
    }
  };
  EXPECT_EQ(fault_of(kernel_of<M, QueueShared>(body), 32, kBlocks, 0, {}, &kNoParams, 2, kBlocks), "");
  for (std::int32_t block = 0; block < kBlocks; ++block) {
    for (std::int32_t tile = 0; tile < kTiles; ++tile) {
      EXPECT_EQ(produced[block * kTiles + tile], tile % 2 == block / 2);
    }
  }
}

/// Groups of 5, 0, 16 and 3 rows, in tiles of 8 rows; two columns.
constexpr std::int32_t kOffsets[] = {0, 5, 5, 21, 24};
TEST(HopperTiles, GroupsHaveTilesOfTheirOwn) {
  backends::emulation::GlobalMemory memory;
  gpu::Region offsets{.name = "offsets", .element_bytes = 4};
  offsets.row = 5;
  memory.add(offsets, kOffsets);
  const auto fault = fault_of(kernel_of<M, QueueShared>([](QueueShared&) {
                                if (M::thread() != 0) return;
                                GroupedTiles<M> grid(kOffsets, 4, 8, 2);
                                constexpr std::int32_t kExpected[][4] = {
                                    {0, 0, 5, 0},   {0, 0, 5, 1},   {2, 5, 21, 0},  {2, 13, 21, 0}, {2, 5, 21, 1},
                                    {2, 13, 21, 1}, {3, 21, 24, 0}, {3, 21, 24, 1}, {4, 24, 24, 0}, {4, 24, 24, 0}};
                                for (std::int32_t i = 0; i < 10; ++i) {
                                  const auto place = grid.place(i);
                                  const std::int32_t found[] = {place.group, place.row, place.end, place.col};
                                  EXPECT_TRUE(std::ranges::equal(found, kExpected[i])) << i;
                                }
                              }),
                              32, 1, 0, memory);
  EXPECT_EQ(fault, "");
}

// ------------------------------------------------------------------ rows from anywhere, and products on their way out

constexpr std::int32_t kRows = 40, kCols = 128;
/// bf16 [kRows, kCols], element (row, col) is row + col / 128; boxes of one row of a chunk.
struct Source {
  alignas(16) std::array<std::uint16_t, kRows * kCols> element;
  TensorMap row_map{};

  Source() {
    for (std::int32_t i = 0; i < kRows * kCols; ++i) element[static_cast<std::size_t>(i)] = value(i / kCols, i % kCols);
    gpu::TensorMap described;
    described.address = element.data();
    described.rank = 2;
    described.dims = {kCols, kRows};
    described.strides = {kCols * 2};
    described.box = {64, 1};
    row_map = encoded_map(described);
  }
  static std::uint16_t value(std::int32_t row, std::int32_t col) {
    return float_to_bf16(static_cast<float>(row % 16) + static_cast<float>(col % 16) / 16.0f);
  }
};
const Source& source() {
  static const Source only;
  return only;
}

using Tile = SwizzledTile<64, kCols>;
struct ProductShared {
  Tile x, w;
  StoreStaging<1> staging[4];
  Barrier<M> landed;
};
constexpr std::int32_t row_of(std::int32_t i) { return i < 60 ? (i * 7 + 3) % kRows : -1; }

TEST(HopperLoads, GatherRows) {
  const auto body = [](ProductShared& shared) {
    if (M::thread() == 0) {
      shared.landed.init(1);
      M::publish_barriers();
      shared.landed.arrive_and_expect(Tile::kBytes);
    }
    M::barrier();
    if (M::thread() < 32) load_gathered(shared.x, source().row_map, shared.landed, 0, row_of);
    shared.landed.wait(0);
    for (std::int32_t unit = M::thread(); unit < 64 * 16; unit += 128) {
      const auto chunk = M::load_shared<Chunk>(shared.x.piece(unit / 16, unit % 16));
      for (int i = 0; i < 8; ++i) {
        const std::int32_t row = row_of(unit / 16);
        EXPECT_EQ(chunk.element(i), row < 0 ? 0 : Source::value(row, unit % 16 * 8 + i));
      }
    }
  };
  EXPECT_EQ((fault_of_body<M, ProductShared>(128, body)), "");
}

/// What a product of gathered rows with themselves is stored to, as NaN before.
struct Stored {
  alignas(16) std::uint16_t rounded[64 * 64], transposed[64 * 64], boxed[64 * 64];
  alignas(16) float sums[64 * 64];
  TensorMap box_map{};

  Stored() {
    gpu::TensorMap described;
    described.address = boxed;
    described.rank = 2;
    described.dims = {56, 50};
    described.strides = {64 * 2};
    described.box = {64, 16};
    box_map = encoded_map(described);
    for (auto* const matrix : {rounded, transposed, boxed}) std::fill_n(matrix, 64 * 64, std::uint16_t{0x7FFF});
    std::ranges::fill(sums, -1.0f);
  }
};
Stored stored;

/// Operands in registers; rows from 50 on and some columns are left out.
void multiply_and_store(ProductShared& shared) {
  if (M::thread() == 0) {
    shared.landed.init(1);
    M::publish_barriers();
    shared.landed.arrive_and_expect(2 * Tile::kBytes);
  }
  M::barrier();
  if (M::thread() < 32) {
    load_gathered(shared.x, source().row_map, shared.landed, 0, row_of);
    load_gathered(shared.w, source().row_map, shared.landed, 0, row_of);
  }
  shared.landed.wait(0);
  WgmmaRegisters left[kCols / 16];
  for (int k = 0; k < kCols / 16; ++k) {
    const int row = warp_row<M>() + M::lane() % 16;
    M::load_matrices(left[k].word, shared.x.piece(row, 2 * k + M::lane() / 16));
  }
  Fragment<Sm90Ops<M>, 16, 64> sums[1];
  M::wgmma_fence();
  mma_ABt<M, kBf16>(sums[0].tile[0], left, shared.w, false);
  M::wgmma_commit();
  M::wgmma_wait<0>();
  const auto rows_of = [](auto* matrix) {
    return [matrix](int slot) {
      const std::int32_t row = warp_row<M>() + M::lane() / 4 + 8 * slot;
      return row < 50 ? matrix + row * 64 : nullptr;
    };
  };
  store_rounded_rows<M, kBf16>(sums[0], 56, rows_of(stored.rounded));
  store_float_rows<M>(sums[0], 62, rows_of(stored.sums));
  store_transposed<M, kBf16>(sums[0], 50,
                             [](std::int32_t col) { return col < 61 ? stored.transposed + col * 64 : nullptr; });
  const BoxStore<M, kBf16, 1> out(shared.staging[M::wave()]);
  out.store(sums, [](float x) { return x > 100.0f ? x : 0.0f; }, stored.box_map, 0, warp_row<M>());
  out.finish();
}

TEST(HopperEpilogues, StoreRowsOfAllKinds) {
  backends::emulation::GlobalMemory memory;
  gpu::Region written{.name = "stored", .access = gpu::Access::write, .element_bytes = 2};
  written.row = 64 * 64;
  for (auto* const matrix : {stored.rounded, stored.transposed, stored.boxed}) memory.add(written, matrix);
  memory.add(gpu::float_workspace("sums", gpu::Access::write, 64 * 64), stored.sums);
  EXPECT_EQ(fault_of(kernel_of<M, ProductShared>([](ProductShared& shared) { multiply_and_store(shared); }), 128, 1, 0,
                     memory),
            "");
  for (std::int32_t row = 0; row < 64; ++row) {
    for (std::int32_t col = 0; col < 64; ++col) {
      const auto at = static_cast<std::size_t>(row * 64 + col);
      float sum = 0.0f;
      for (std::int32_t k = 0; k < kCols && row_of(row) >= 0 && row_of(col) >= 0; ++k) {
        sum += bf16_to_float(Source::value(row_of(row), k)) * bf16_to_float(Source::value(row_of(col), k));
      }
      const auto rounded = float_to_bf16(sum);
      EXPECT_EQ(stored.sums[at], row < 50 && col < 62 ? sum : -1.0f);
      EXPECT_EQ(stored.rounded[at], row < 50 && col < 56 ? rounded : 0x7FFF);
      EXPECT_EQ(stored.transposed[static_cast<std::size_t>(col * 64 + row)], row < 50 && col < 61 ? rounded : 0x7FFF);
      EXPECT_EQ(stored.boxed[at], row < 50 && col < 56 ? (sum > 100.0f ? rounded : 0) : 0x7FFF);
    }
  }
}

}  // namespace
}  // namespace tilewise::test
