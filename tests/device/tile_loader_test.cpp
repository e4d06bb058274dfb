// The tile loader of machines without asynchronous copies, on a machine that records what lanes store:
// every element arrives where the products read it, none outside the tensor is read, and the banks of
// shared memory are met evenly.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <set>
#include <vector>

#include "device/attention/config.h"
#include "device/tile/loader.h"
#include "device/tile/ops_cdna.h"
#include "device/tile/ops_rdna.h"

namespace tilewise::test {
namespace {

using namespace device;

/// A tensor that only addresses know: element (row, col) is row * 1024 + col.
struct VirtualTensor {
  static constexpr std::uintptr_t kStart = std::uintptr_t{1} << 40;
  static inline std::int64_t stride = 0;
  static inline int rows = 0, cols = 0;

  static std::uint16_t at(std::uintptr_t address) {
    const auto element = static_cast<std::int64_t>(address - kStart) / 2;
    const std::int64_t row = element / stride, col = element % stride;
    EXPECT_TRUE(address >= kStart && row < rows && col < cols) << "reads outside: row " << row << ", column " << col;
    return expected(static_cast<int>(row), static_cast<int>(col));
  }
  static std::uint16_t expected(int row, int col) {
    return row < rows ? static_cast<std::uint16_t>(row * 1024 + col) : std::uint16_t{0};
  }
};

struct Store {
  int thread, order;  // the lane's how-manieth
  const unsigned char* to;
  int bytes;
};

/// Lanes run one after the other; stores are written down.
template <int kWaveLanes>
struct RecordingMachine {
  static constexpr int kLanes = kWaveLanes;
  struct Window {
    std::uintptr_t start;
    std::uint32_t bytes;
  };
  static inline int current_thread = 0;
  static inline std::vector<Store> stores;

  static int thread() { return current_thread; }
  static int lane() { return current_thread % kLanes; }
  static int not_hoisted(int value) { return value; }
  static Window window(const void* start, std::uint32_t bytes) {
    return {reinterpret_cast<std::uintptr_t>(start), bytes};
  }
  template <class T>
  static T load_window(const Window& from, std::uint32_t offset, std::uint32_t further) {
    std::array<std::uint16_t, sizeof(T) / 2> elements{};
    if (std::uint64_t{offset} + sizeof(T) <= from.bytes) {
      const std::uintptr_t start = from.start + further + offset;
      for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = VirtualTensor::at(start + 2 * i);
    }
    return std::bit_cast<T>(elements);
  }
  template <class T>
  static void store_shared(void* to, T value) {
    const auto order = static_cast<int>(
        std::count_if(stores.begin(), stores.end(), [](const Store& s) { return s.thread == current_thread; }));
    stores.push_back({current_thread, order, static_cast<const unsigned char*>(to), sizeof(T)});
    std::memcpy(to, &value, sizeof(T));
  }
  static std::uint32_t low_halves(std::uint32_t a, std::uint32_t b) { return (a & 0xFFFFu) | b << 16; }
  static std::uint32_t high_halves(std::uint32_t a, std::uint32_t b) { return a >> 16 | (b & 0xFFFF0000u); }
};

struct Cdna : CdnaOps<RecordingMachine<64>> {};
struct Rdna : RdnaOps<RecordingMachine<32>> {};

/// Every lane loads from `first_row` on.
template <class Ops, RowConfig C, class Tile>
void load(Tile& tile, int rows, int first_row, std::int64_t stride) {
  using Machine = typename Ops::Machine;
  VirtualTensor::stride = stride;
  VirtualTensor::rows = rows;
  VirtualTensor::cols = Tile::kDepth;
  Machine::stores.clear();
  std::memset(static_cast<void*>(&tile), 0xEE, sizeof tile);
  const RowSource<kBf16> source{reinterpret_cast<const std::uint16_t*>(VirtualTensor::kStart), stride, rows,
                                Tile::kDepth};
  for (int thread = 0; thread < C.waves * Machine::kLanes; ++thread) {
    Machine::current_thread = thread;
    TileLoader<Ops, C, Tile, has_few_registers<Ops>(C)> loader;
    loader.start(tile, source, first_row);
    loader.finish(tile);
  }
}

/// Cycles of the slowest store of a wave's transposed tile, a store of all lanes over 32 banks of 4 bytes.
template <class Machine>
int slowest_store(const std::vector<Store>& stores) {
  std::map<std::pair<int, int>, std::array<std::set<std::uintptr_t>, 32>> banks;  // of (wave, order)
  for (const Store& store : stores) {
    if (store.bytes != sizeof(HalfChunk)) continue;
    for (int word = 0; word < store.bytes / 4; ++word) {
      const auto address = reinterpret_cast<std::uintptr_t>(store.to) / 4 + static_cast<std::uintptr_t>(word);
      banks[{store.thread / Machine::kLanes, store.order}][address % 32].insert(address);
    }
  }
  std::size_t slowest = 0;
  for (const auto& [key, of_store] : banks) {
    for (const auto& addresses : of_store) slowest = std::max(slowest, addresses.size());
  }
  return static_cast<int>(slowest);
}

template <class Ops, int kWaves, int kKeys, int kDepth>
struct Case {
  static constexpr RowConfig config() {
    RowConfig c;
    c.exact_dims = 1;
    c.head_dim = c.head_dim_v = kDepth;
    c.waves = kWaves;
    return c;
  }
  using Tile = StreamTile<kBf16, kKeys, kDepth, kBothWays, true>;

  static void holds_every_element(int rows, int first_row, std::int64_t stride) {
    static Tile tile;
    load<Ops, config()>(tile, rows, first_row, stride);
    for (int key = 0; key < kKeys; ++key) {
      for (int depth = 0; depth < kDepth; ++depth) {
        const std::uint16_t wanted = VirtualTensor::expected(first_row + key, depth);
        ASSERT_EQ(tile.rows.chunk(key, depth / kChunk)[depth % kChunk], wanted) << "key " << key << " depth " << depth;
        ASSERT_EQ(Ops::transposed_place(tile.columns, depth, key / 4 * 4)[key % 4], wanted)
            << "transposed key " << key << " depth " << depth;
      }
    }
  }

  static void stores_each_once() {
    static Tile tile;
    load<Ops, config()>(tile, 100, 0, kDepth);
    std::size_t bytes = 0;
    for (const Store& store : Ops::Machine::stores) bytes += static_cast<std::size_t>(store.bytes);
    EXPECT_EQ(bytes, sizeof tile.rows.data + sizeof tile.columns.data);
  }
};

template <class T>
struct Loader : testing::Test {};
using Cases =
    testing::Types<Case<Cdna, 8, 64, 128>, Case<Cdna, 4, 64, 128>, Case<Cdna, 4, 64, 64>, Case<Cdna, 8, 32, 256>,
                   Case<Cdna, 1, 32, 96>, Case<Cdna, 8, 64, 192>, Case<Rdna, 4, 32, 64>, Case<Rdna, 8, 32, 128>,
                   Case<Rdna, 2, 16, 256>, Case<Rdna, 1, 32, 160>>;
TYPED_TEST_SUITE(Loader, Cases);

TYPED_TEST(Loader, LoadsEveryElement) { TypeParam::holds_every_element(100, 3, 300); }

TYPED_TEST(Loader, StoresEachOnce) { TypeParam::stores_each_once(); }

TYPED_TEST(Loader, FillsRowsPastTheEndWithZeros) { TypeParam::holds_every_element(20, 10, 264); }

// Tiles of nearly 2 GB have 32-bit offsets, larger ones a window a row.
TYPED_TEST(Loader, LoadsRowsThatLieFarApart) {
  for (const std::int64_t stride : {(std::int64_t{1} << 30) / 64 - 8, std::int64_t{1} << 26, std::int64_t{1} << 31}) {
    TypeParam::holds_every_element(100, 9, stride);
    TypeParam::holds_every_element(20, 10, stride);
  }
}

template <class C>
int slowest() {
  static typename C::Tile tile;
  using Ops = typename C::LoaderOps;
  load<Ops, C::config()>(tile, 64, 0, C::Tile::kDepth);
  return slowest_store<typename Ops::Machine>(Ops::Machine::stores);
}

template <class Ops, int kWaves, int kKeys, int kDepth>
struct Banks : Case<Ops, kWaves, kKeys, kDepth> {
  using LoaderOps = Ops;
};

// 64 lanes of 8 bytes take 4 cycles at best, 32 take 2.
TEST(LoaderBanks, TransposingStoresOfCdnaMeetNoBankTooOften) {
  EXPECT_EQ((slowest<Banks<Cdna, 8, 64, 128>>()), 4);
  EXPECT_EQ((slowest<Banks<Cdna, 4, 64, 128>>()), 4);
  EXPECT_EQ((slowest<Banks<Cdna, 4, 64, 64>>()), 4);
}

/// Lanes read 16 bytes at a time; eight of them are served together, each from banks of its own.
template <class Ops, int kRows, int kCols, bool kSpread>
void expect_even_reads() {
  using Tile = SharedTile<kBf16, kRows, kCols, kSpread>;
  for (int first = 0; first + 8 <= kRows; first += 8) {
    for (int chunk = 0; chunk < kCols / kChunk; ++chunk) {
      std::map<int, int> used;  // of the eight groups of 4 banks
      for (int row = first; row < first + 8; ++row) ++used[Tile::offset(row, chunk) / kChunk % 8];
      EXPECT_EQ(used.size(), 8u) << "rows from " << first << ", chunk " << chunk;
    }
  }
}

TEST(SharedTileBanks, EightRowsOfAChunkColumnUseAllBanks) {
  expect_even_reads<Cdna, 64, 64, false>();
  expect_even_reads<Cdna, 64, 128, false>();
  expect_even_reads<Cdna, 32, 256, false>();
  expect_even_reads<Cdna, 128, 64, true>();
  expect_even_reads<Cdna, 256, 32, true>();
  expect_even_reads<Rdna, 256, 16, true>();
}

// The form with compile-time bases, which products use, says the same as the plain one.
TEST(SharedTile, OffsetsOfBothFormsAgree) {
  using Tile = SharedTile<kBf16, 128, 64, true>;
  for (int base = 0; base < 128; base += 32) {
    for (int row = 0; row < 32; ++row) {
      for (int chunk = 0; chunk < 8; chunk += 2) {
        for (int half = 0; half < 2; ++half) {
          EXPECT_EQ(Tile::offset(base, row, chunk, half), Tile::offset(base + row, chunk + half));
        }
      }
    }
  }
}

}  // namespace
}  // namespace tilewise::test
