// What Hopper's emulated machine promises, on kernels of a few lines: values that TMA and the matrix unit
// load, and the barriers that its errors name.
#include <array>
#include <cstring>

#include "backends/emulation/host_tensor_map.hpp"
#include "device/common/float16.h"
#include "device/sm90/machine_host.h"
#include "device/sm90/warpgroup.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"

namespace tilewise::test {
namespace {

using M = device::HostSm90Machine;
using device::Chunk, device::TensorMap;

struct Shared {
  alignas(1024) std::uint8_t tile[2][64 * 128];
  std::uint64_t barrier[2];
};

/// Initialises two barriers, and runs `body` on one warpgroup.
template <class Body>
std::string fault_of_body_with_barriers(Body, int arrivals = 1, std::uint64_t seed = 0) {
  static thread_local int expected;
  expected = arrivals;
  return fault_of_body<M, Shared>(
      128,
      [](Shared& shared) {
        if (M::thread() == 0) {
          for (std::uint64_t& barrier : shared.barrier) M::init_barrier(&barrier, expected);
          M::publish_barriers();
        }
        M::barrier();
        Body{}(shared);
      },
      seed);
}

TEST(HopperBarriers, AreInitialisedOnceBeforeTheirUse) {
  const auto fault = [](auto body) { return fault_of_body<M, Shared>(32, body); };
  EXPECT_TRUE(contains(fault([](Shared& shared) { M::arrive(&shared.barrier[1]); }), "where none was initialised"));
  EXPECT_TRUE(contains(fault([](Shared& shared) { M::init_barrier(&shared.barrier[0], 1); }),
                       "initialises barrier 0 (offset 16384 of shared memory) twice"));
  EXPECT_TRUE(contains(fault([](Shared& shared) {
                         if (M::lane() == 0) M::init_barrier(&shared.barrier[0], 31);
                         M::any(true);
                         M::arrive(&shared.barrier[0]);
                       }),
                       "uses barrier 0 (offset 16384 of shared memory) with no barrier since it was initialised"));
}

TEST(HopperBarriers, CountArrivalsAndPhases) {
  EXPECT_EQ(fault_of_body_with_barriers(
                [](Shared& shared) {
                  M::wait(&shared.barrier[0], 1);  // the phase before the first one
                  for (std::uint32_t phase = 0; phase < 3; ++phase) {
                    M::arrive(&shared.barrier[0]);
                    M::wait(&shared.barrier[0], phase % 2);
                  }
                },
                128),
            "");
  EXPECT_TRUE(
      contains(fault_of_body_with_barriers(
                   [](Shared& shared) {
                     if (M::thread() == 0) M::wait(&shared.barrier[1], 0);
                   },
                   5),
               "wave 0, lane 0 waits for phase 0 of barrier 1 (offset 16392 of shared memory), which lacks 5 of 5 "
               "arrivals and 0 bytes"));
  EXPECT_TRUE(contains(fault_of_body_with_barriers([](Shared& shared) {
                         if (M::thread() == 0) M::arrive_and_expect(&shared.barrier[0], 16);
                         if (M::thread() == 0) M::arrive(&shared.barrier[0]);
                       }),
                       "whose 1 arrivals have come in phase 0"));
}

TEST(HopperBarriers, OrderWhatCameBefore) {
  const auto fault = [](auto wait) {
    return fault_of_body_with_barriers([](Shared& shared) {
      if (M::thread() == 0) {
        M::store_shared(shared.tile[0], 7u);
        M::arrive(&shared.barrier[0]);
      }
      if (M::thread() == 40) {
        M::wait(&shared.barrier[0], decltype(wait)::value);
        EXPECT_EQ(M::load_shared<std::uint32_t>(shared.tile[0]), 7u);
      }
    });
  };
  EXPECT_EQ(fault(device::Index<0>{}), "");
  EXPECT_NE(fault(device::Index<1>{}), "");  // the phase before the first one, or the second one, which never ends
}

TEST(HopperBarriers, NamedOnesNameThemselves) {
  EXPECT_EQ(fault_of_body_with_barriers([](Shared& shared) {
              if (M::thread() < 32) M::store_shared(&shared.tile[0][16 * M::thread()], Chunk{});
              if (M::thread() < 32) M::named_barrier_arrive(3, 64);
              if (M::thread() >= 96) M::named_barrier_sync(3, 64);
              if (M::thread() >= 96) M::load_shared<Chunk>(&shared.tile[0][16 * (M::thread() - 96)]);
            }),
            "");
  EXPECT_TRUE(contains(fault_of_body_with_barriers([](Shared&) {
                         if (M::thread() < 32) M::named_barrier_sync(3, 64);
                       }),
                       "wave 0, lane 0 and 31 more wait at named barrier 3, which lacks 32 of 64 threads"));
  EXPECT_TRUE(
      contains(fault_of_body_with_barriers([](Shared&) { M::named_barrier_arrive(3, M::thread() < 32 ? 96 : 128); }),
               "where others said"));
}

/// bf16 [3, 70] with rows of 80: boxes of 64 x 8 reach past both ends.
struct Source {
  alignas(16) std::array<std::uint16_t, 3 * 80> element;
  TensorMap map{};

  Source() {
    for (std::size_t i = 0; i < element.size(); ++i) element[i] = device::float_to_bf16(static_cast<float>(i % 97));
    gpu::TensorMap described;
    described.address = element.data();
    described.rank = 4;
    described.dims = {70, 3, 1, 1};
    described.strides = {160, 16, 16};
    described.box = {64, 8, 1, 1};
    map = encoded_map(described);
  }
};
const Source& source() {
  static const Source only;
  return only;
}

TEST(HopperCopies, LoadZerosFromOutsideAndSwizzle) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const std::string fault = fault_of_body_with_barriers(
        [](Shared& shared) {
          if (M::thread() == 0) {
            M::arrive_and_expect(&shared.barrier[0], 64 * 8 * 2);
            M::copy_box(shared.tile[0], source().map, &shared.barrier[0], 8, -1, 0, 0);
          }
          M::wait(&shared.barrier[0], 0);
          const int row = M::thread() / 8 % 8, piece = M::thread() % 8;
          const Chunk chunk = M::load_shared<Chunk>(&shared.tile[0][128 * row + 16 * (piece ^ row)]);
          std::uint16_t element[8];
          std::memcpy(element, &chunk, sizeof element);
          for (int i = 0; i < 8; ++i) {
            const int col = 8 + 8 * piece + i, from = row - 1;
            const bool inside = col < 70 && from >= 0 && from < 3;
            EXPECT_EQ(element[i], inside ? source().element[static_cast<std::size_t>(80 * from + col)] : 0);
          }
        },
        1, seed);
    EXPECT_EQ(fault, "");
  }
}

TEST(HopperCopies, BelongToTheEngineUntilTheyAreWaitedFor) {
  const std::string fault = fault_of_body_with_barriers([](Shared& shared) {
    if (M::thread() != 0) return;
    M::arrive_and_expect(&shared.barrier[0], 64 * 8 * 2);
    M::copy_box(shared.tile[0], source().map, &shared.barrier[0], 0, 0, 0, 0);
    M::load_shared<Chunk>(shared.tile[0]);
  });
  EXPECT_TRUE(contains(fault, "a copy that counts on barrier 0"));
  EXPECT_TRUE(contains(fault_of_body_with_barriers([](Shared& shared) {
                         if (M::thread() != 0) return;
                         M::arrive_and_expect(&shared.barrier[0], 64 * 8 * 2);
                         M::copy_box(&shared.tile[0][64], source().map, &shared.barrier[0], 0, 0, 0, 0);
                       }),
                       "not on 128 bytes"));
  EXPECT_TRUE(contains(fault_of_body_with_barriers([](Shared& shared) {
                         if (M::thread() != 0) return;
                         M::arrive_and_expect(&shared.barrier[0], 64 * 8 * 2);
                         M::copy_box(shared.tile[0], source().map, &shared.barrier[0], 4, 0, 0, 0);
                       }),
                       "begins at byte 8 of a row, not on 16 bytes"));
}

/// fp32 [2, 1, 1, 1, 32] of which a box is all.
struct Target {
  alignas(16) std::array<float, 64> element{};
  TensorMap map{};

  Target() {
    gpu::TensorMap described;
    described.address = element.data();
    described.dtype = DType::f32;
    described.rank = 5;
    described.dims = {32, 1, 1, 1, 2};
    described.strides = {128, 128, 128, 128};
    described.box = {32, 1, 1, 1, 2};
    map = encoded_map(described);
  }
};
const Target& target() {
  static const Target only;
  return only;
}

/// As on an H200, which loads boxes from there.
/// 16 bytes for each lane, which say whose they are.
constexpr auto kCopied = [] {
  std::array<Chunk, 128> chunks{};
  for (std::uint32_t i = 0; i < 128; ++i) chunks[i].word[0] = i;
  return chunks;
}();
template <class Body>
std::string fault_of_lane_copies(Body, std::uint64_t seed = 0) {
  backends::emulation::GlobalMemory memory;
  gpu::Region region{.name = "copied", .element_bytes = sizeof(Chunk)};
  region.row = 128;
  memory.add(region, kCopied.data());
  const auto body = [](Shared& shared) {
    if (M::thread() == 0) M::init_barrier(&shared.barrier[0], 128), M::publish_barriers();
    M::barrier();
    auto* const chunks = reinterpret_cast<Chunk*>(shared.tile[0]);
    M::copy_async(chunks + M::thread(), &kCopied[static_cast<std::size_t>(M::thread())], M::thread() != 5);
    Body{}(shared, chunks);
  };
  return fault_of(kernel_of<M, Shared>(body), 128, 1, seed, memory);
}
void expect_others_chunk(const Chunk* chunks) {
  const int other = 127 - M::thread();
  EXPECT_EQ(M::load_shared<Chunk>(chunks + other).word[0], other == 5 ? 0u : static_cast<std::uint32_t>(other));
}

TEST(HopperCopies, OfLanesAreTheirOwnWrites) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ(fault_of_lane_copies(
                  [](Shared&, Chunk* chunks) {
                    M::commit_copies(), M::wait_copies<0>();
                    M::barrier();
                    expect_others_chunk(chunks);
                  },
                  seed),
              "");
    EXPECT_EQ(fault_of_lane_copies(
                  [](Shared& shared, Chunk* chunks) {
                    M::arrive_after_copies(&shared.barrier[0]);
                    M::wait(&shared.barrier[0], 0);
                    expect_others_chunk(chunks);
                  },
                  seed),
              "");
  }
  EXPECT_TRUE(contains(fault_of_lane_copies([](Shared&, Chunk* chunks) {
                         M::commit_copies();
                         M::load_shared<Chunk>(chunks + M::thread());
                         M::wait_copies<0>();
                       }),
                       "where a copy is under way"));
  EXPECT_TRUE(contains(fault_of_lane_copies([](Shared&, Chunk* chunks) {
                         M::commit_copies(), M::wait_copies<0>();
                         M::load_shared<Chunk>(chunks + 127 - M::thread());
                       }),
                       "reads offset"));
  EXPECT_TRUE(contains(fault_of_lane_copies([](Shared&, Chunk*) {}), "ends while copies of its own are under way"));
}

TEST(HopperCopies, StoreNoBoxInFrontOfItsTensor) {
  EXPECT_TRUE(contains(fault_of_body_with_barriers([](Shared& shared) {
                         if (M::thread() == 0) M::store_box(target().map, shared.tile[0], -8, 0, 0, 0, 0);
                       }),
                       "stores a box that begins at -8 in dimension 0, in front of its tensor"));
  EXPECT_TRUE(contains(fault_of_body_with_barriers([](Shared& shared) {
                         if (M::thread() == 0) M::store_box(target().map, shared.tile[0], 0, 0, 0, 0, -1);
                       }),
                       "-1 in dimension 4"));
}

/// Of kernels that move runs, which capture nothing.
alignas(16) float numbers[64], sums[64];  // 0, 1, 2, ...; 100 each
backends::emulation::GlobalMemory memory_of_runs(gpu::Access of_sums) {
  for (int i = 0; i < 64; ++i) numbers[i] = static_cast<float>(i), sums[i] = 100.0f;
  backends::emulation::GlobalMemory memory;
  memory.add(gpu::float_workspace("numbers", gpu::Access::read, 64), numbers);
  memory.add(gpu::float_workspace("sums", of_sums, 64), sums);
  return memory;
}

TEST(HopperCopies, LoadRunsAndAddThem) {
  const auto memory = memory_of_runs(gpu::Access::add);
  const auto body = [](Shared& shared) {
    if (M::thread() == 0) {
      M::init_barrier(&shared.barrier[0], 1);
      M::publish_barriers();
      M::arrive_and_expect(&shared.barrier[0], sizeof numbers);
      M::copy_run(shared.tile[0], numbers, sizeof numbers, &shared.barrier[0]);
      while (!M::test(&shared.barrier[0], 0)) {
      }
      for (int half = 0; half < 2; ++half) {
        M::add_run(sums + 32 * half, shared.tile[0] + 128 * half, 128);
        M::commit_stores();
        M::wait_stores_read<1>();
      }
      M::wait_stores();
    }
  };
  EXPECT_EQ(fault_of(kernel_of<M, Shared>(body), 32, 1, 0, memory), "");
  for (int i = 0; i < 64; ++i) EXPECT_EQ(sums[i], 100.0f + static_cast<float>(i));
}

TEST(HopperCopies, StoreRunsAndCallNoneThatIsNotThere) {
  const auto memory = memory_of_runs(gpu::Access::write);
  const auto fault = [&](auto body) { return fault_of(kernel_of<M, Shared>(body), 32, 1, 0, memory); };
  EXPECT_EQ(fault([](Shared& shared) {
              M::prefetch_run(numbers + 4, 240);
              if (M::thread() == 0) {
                M::store_shared(shared.tile[0], Chunk{{1, 2, 3, 4}});
                M::fence_shared_writes();
                M::store_run(sums + 8, shared.tile[0], 16);
                M::commit_stores();
                M::wait_stores();
              }
            }),
            "");
  const std::uint32_t stored[4] = {1, 2, 3, 4};
  EXPECT_EQ(std::memcmp(sums + 8, stored, sizeof stored), 0);
  EXPECT_EQ(sums[7], 100.0f);
  EXPECT_EQ(sums[12], 100.0f);
  EXPECT_TRUE(contains(fault([](Shared&) { M::prefetch_run(numbers + 4, 256); }), "numbers"));
  EXPECT_TRUE(
      contains(fault([](Shared&) { M::prefetch_run(numbers, 24); }), "a run of 24 bytes, not a multiple of 16"));
}

TEST(HopperBarriers, ATestThatSaysYesIsTheWait) {
  EXPECT_TRUE(contains(fault_of_body_with_barriers([](Shared& shared) {
                         if (M::thread() != 0) return;
                         EXPECT_FALSE(M::test(&shared.barrier[0], 0));
                         M::arrive(&shared.barrier[0]);
                         while (!M::test(&shared.barrier[0], 0)) {
                         }
                         M::wait(&shared.barrier[0], 0);
                       }),
                       "waits for phase 0 of barrier 0 (offset 16384 of shared memory) twice"));
}

/// A product of two tiles: A[m][k] = m + k, B[n][k] = n - 2k, written by the lanes.
template <class Body>
std::string product(Body) {
  return fault_of_body_with_barriers([](Shared& shared) {
    for (int unit = M::thread(); unit < 2 * 64 * 8; unit += 128) {
      const int tile = unit / 512, row = unit / 8 % 64, piece = unit % 8;
      std::uint16_t element[8];
      for (int i = 0; i < 8; ++i) {
        const int k = 8 * piece + i;
        element[i] = device::float_to_bf16(static_cast<float>(tile == 0 ? row + k : row - 2 * k));
      }
      Chunk chunk;
      std::memcpy(&chunk, element, sizeof chunk);
      M::store_shared(&shared.tile[tile][128 * row + 16 * (piece ^ row % 8)], chunk);
    }
    device::Sm80Accumulator d[8] = {};
    Body{}(shared, d);
  });
}
void multiply(Shared& shared, device::Sm80Accumulator (&d)[8], bool accumulate) {
  const auto A = device::MatrixDescriptor::of<M>(shared.tile[0], 16),
             B = device::MatrixDescriptor::of<M>(shared.tile[1], 16);
  M::wgmma<device::kBf16, device::kKMajor, device::kKMajor>(d, A, B, accumulate);
}

TEST(HopperProducts, MultiplyByTheManualsLayout) {
  EXPECT_EQ(product([](Shared& shared, device::Sm80Accumulator(&d)[8]) {
              M::fence_shared_writes();
              M::barrier();
              M::wgmma_fence();
              multiply(shared, d, false);
              multiply(shared, d, true);
              M::wgmma_commit();
              M::wgmma_wait<0>();
              for (int i = 0; i < 32; ++i) {
                const int m = M::thread() / 32 * 16 + M::lane() / 4 + 8 * (i % 4 / 2);
                const int n = i / 4 * 8 + 2 * (M::lane() % 4) + i % 2;
                float sum = 0.0f;
                for (int k = 0; k < 16; ++k) sum += static_cast<float>((m + k) * (n - 2 * k));
                EXPECT_EQ(d[i / 4][i % 4], 2.0f * sum);
              }
            }),
            "");
}

/// An MN-major left tile: A[m][k] = k + m.
TEST(HopperProducts, MultiplyLeftTilesAcrossTheirRows) {
  EXPECT_EQ(product([](Shared& shared, device::Sm80Accumulator(&d)[8]) {
              M::fence_shared_writes();
              M::barrier();
              M::wgmma_fence();
              const auto A = device::MatrixDescriptor::of<M>(shared.tile[0], 64 * 128),
                         B = device::MatrixDescriptor::of<M>(shared.tile[1], 16);
              M::wgmma<device::kBf16, device::kMnMajor, device::kKMajor>(d, A.advanced(16 * 128), B, false);
              M::wgmma_commit();
              M::wgmma_wait<0>();
              for (int i = 0; i < 32; ++i) {
                const int m = M::thread() / 32 * 16 + M::lane() / 4 + 8 * (i % 4 / 2);
                const int n = i / 4 * 8 + 2 * (M::lane() % 4) + i % 2;
                float sum = 0.0f;
                for (int k = 0; k < 16; ++k) sum += static_cast<float>((16 + k + m) * (n - 2 * k));
                EXPECT_EQ(d[i / 4][i % 4], sum);
              }
            }),
            "");
}

TEST(HopperProducts, WantFencesAndWaits) {
  EXPECT_TRUE(contains(product([](Shared& shared, device::Sm80Accumulator(&d)[8]) {
                         M::barrier();
                         M::wgmma_fence();
                         multiply(shared, d, false);
                         M::wgmma_commit();
                         M::wgmma_wait<0>();
                       }),
                       "with no fence_shared_writes() since it was written by wave"));
  EXPECT_TRUE(contains(product([](Shared& shared, device::Sm80Accumulator(&d)[8]) {
                         M::fence_shared_writes();
                         M::barrier();
                         M::wgmma_fence();
                         multiply(shared, d, false);
                         M::wgmma_commit();
                         d[1][2] += 1.0f;
                         M::wgmma_wait<0>();
                       }),
                       "register 6 of lane 0 was written while it was the matrix unit's"));
  EXPECT_TRUE(contains(product([](Shared& shared, device::Sm80Accumulator(&d)[8]) {
                         M::fence_shared_writes();
                         M::barrier();
                         multiply(shared, d, false);
                       }),
                       "on registers that no wgmma_fence() was for"));
}

TEST(HopperMaps, AreRefusedWhereTheDriverRefuses) {
  alignas(16) std::byte memory[64];
  gpu::TensorMap map;
  map.address = memory;
  map.rank = 2;
  map.dims = {64, 1};
  map.strides = {128};
  map.box = {64, 1};
  EXPECT_NO_THROW((void)backends::emulation::encode_host_map(map));
  const auto refused = [](gpu::TensorMap wrong) {
    EXPECT_THROW((void)backends::emulation::encode_host_map(wrong), Error);
  };
  refused((map.box[0] = 128, map));
  map.box[0] = 64;
  refused((map.strides[0] = 8, map));
  map.strides[0] = 128;
  refused((map.address = memory + 8, map));
}

}  // namespace
}  // namespace tilewise::test
