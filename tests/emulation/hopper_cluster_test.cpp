// What Hopper's emulated machine promises of clusters, on kernels of a few lines: arrivals at the barriers of another
// block, copies to several, and blocks that must not end before what others do to them.
#include <algorithm>
#include <cstring>

#include "device/common/float16.h"
#include "device/sm90/machine_host.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"

namespace tilewise::test {
namespace {

using M = device::HostSm90Machine;
using device::Chunk, device::TensorMap;

struct Shared {
  alignas(1024) std::uint8_t tile[64 * 128];
  std::uint64_t barrier[2];
};
constexpr int kThreads = 32, kBlocks = 2, kRows = 8;
constexpr std::int32_t kBoxBytes = kRows * 128;

void meet() {
  M::arrive_at_cluster();
  M::wait_for_cluster();
}

/// Each block of a cluster of two initialises two barriers; `body` begins once both have.
template <class Body>
std::string fault_of_pair(Body, std::uint64_t seed = 0) {
  const auto whole = [](Shared& shared) {
    if (M::thread() == 0) {
      for (std::uint64_t& barrier : shared.barrier) M::init_barrier(&barrier, 1);
      M::publish_barriers();
    }
    meet();
    Body{}(shared);
  };
  return fault_of(kernel_of<M, Shared>(whole), kThreads, kBlocks, seed, {}, &kNoParams, kBlocks);
}

/// bf16 [kRows, 64], element i is i % 97.
struct Source {
  alignas(16) std::uint16_t element[kRows * 64];
  TensorMap map{};

  Source() {
    for (int i = 0; i < kRows * 64; ++i) element[i] = device::float_to_bf16(static_cast<float>(i % 97));
    gpu::TensorMap described;
    described.address = element;
    described.rank = 4;
    described.dims = {64, kRows, 1, 1};
    described.strides = {128, 16, 16};
    described.box = {64, kRows, 1, 1};
    map = encoded_map(described);
  }
};
const TensorMap& source() {
  static const Source only;
  return only.map;
}
std::uint16_t element(const Shared& shared, int row, int col) {
  const auto chunk = M::load_shared<Chunk>(&shared.tile[128 * row + 16 * (col / 8 ^ row)]);
  std::uint16_t all[8];
  std::memcpy(all, &chunk, sizeof all);
  return all[col % 8];
}

TEST(HopperClusters, RunSideBySideAndNumberTheirBlocks) {
  static std::int32_t ranks[6];
  const auto body = [](Shared&) {
    meet();
    if (M::thread() == 0) ranks[M::block()] = M::rank_in_cluster();
    meet();
  };
  EXPECT_EQ(fault_of(kernel_of<M, Shared>(body), kThreads, 6, 0, {}, &kNoParams, 3), "");
  for (int block = 0; block < 6; ++block) EXPECT_EQ(ranks[block], block % 3);
  EXPECT_TRUE(contains(fault_of(kernel_of<M, Shared>(body), kThreads, 4, 0, {}, &kNoParams, 3),
                       "4 blocks must be whole clusters of 3"));
}

/// Words in memory that blocks of no cluster tell each other by: each waits for the one behind it, the first one twice.
alignas(4) std::uint32_t words[3];
std::string fault_of_waits(int blocks, int at_once) {
  std::ranges::fill(words, 0u);
  backends::emulation::GlobalMemory memory;
  gpu::Region region = gpu::float_workspace("words", gpu::Access::add, 3);
  region.one_writer = false;
  memory.add(region, words);
  const auto body = [](Shared&) {
    if (M::thread() != 0) return;
    const int own = M::block();
    if (own + 1 < M::blocks()) M::await_global(words + own + 1, 1);
    M::release_global(words + own, 1);
    if (own == 0) M::await_global(words + 2, 2);
    if (own == 2) M::await_global(words, 1), M::release_global(words + 2, 2);
  };
  return fault_of(kernel_of<M, Shared>(body), kThreads, blocks, 0, memory, &kNoParams, 1, at_once);
}

TEST(HopperBlocks, WaitForThoseThatBeginLaterWhereAllHaveRoom) {
  EXPECT_EQ(fault_of_waits(3, 3), "");
  EXPECT_EQ(words[2], 2U);
  EXPECT_TRUE(contains(fault_of_waits(3, 2), "block 0, no lane can go on; wave 0, lane 0 waits for 1 in memory"));
  EXPECT_TRUE(contains(fault_of_waits(2, 2),
                       "block 0, no lane can go on; wave 0, lane 0 waits for 2 in memory that "
                       "holds 0"));
}

/// In turn, and at their own by the same call.
TEST(HopperClusters, ArriveAtEachOthersBarriers) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ(fault_of_pair(
                  [](Shared& shared) {
                    const std::int32_t own = M::rank_in_cluster();
                    for (std::uint32_t phase = 0; phase < 4 && M::thread() == 0; ++phase) {
                      if (own == 0) M::arrive_at(&shared.barrier[0], 1);
                      M::wait(&shared.barrier[0], phase % 2);
                      if (own == 1) M::arrive_at(&shared.barrier[0], 0);
                      M::arrive_at(&shared.barrier[1], own);
                      M::wait(&shared.barrier[1], phase % 2);
                    }
                    meet();
                  },
                  seed),
              "");
  }
}

TEST(HopperClusters, LoadACopyForEachBlockOfTheMask) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ(fault_of_pair(
                  [](Shared& shared) {
                    // Bytes may land at the other block before that has said that it expects them.
                    if (M::thread() == 0) M::arrive_and_expect(&shared.barrier[0], kBoxBytes);
                    if (M::thread() == 0 && M::rank_in_cluster() == 0) {
                      M::copy_box_to_blocks(3, shared.tile, source(), &shared.barrier[0], 0, 0, 0, 0);
                    }
                    M::wait(&shared.barrier[0], 0);
                    for (int row = 0; row < kRows; ++row) {
                      const int col = M::lane() * 2 + 1;
                      EXPECT_EQ(device::bf16_to_float(element(shared, row, col)),
                                static_cast<float>((64 * row + col) % 97));
                    }
                    meet();
                  },
                  seed),
              "");
  }
}

TEST(HopperClusters, NameWhatAnotherBlocksMemoryIsUsedFor) {
  // Once the other block has written what the copy takes the place of, and told nobody.
  EXPECT_TRUE(contains(fault_of_pair([](Shared& shared) {
                         if (M::thread() == 0 && M::rank_in_cluster() == 1) {
                           M::store_shared(shared.tile, Chunk{});
                           M::arrive_at(&shared.barrier[1], 0);
                         }
                         if (M::thread() == 0 && M::rank_in_cluster() == 0) {
                           M::wait(&shared.barrier[1], 0);
                           M::copy_box_to_blocks(2, shared.tile, source(), &shared.barrier[0], 0, 0, 0, 0);
                         }
                         meet();
                       }),
                       "in block 1 of its cluster copies to offset 0 of shared memory, with no fence and barrier since "
                       "it was written by wave 0, lane 0"));
  EXPECT_TRUE(contains(fault_of_pair([](Shared& shared) {
                         if (M::thread() == 0) M::arrive_at(&shared.barrier[0], 2);
                         meet();
                       }),
                       "arrives at a barrier of block 2 of its cluster, which has 2"));
  EXPECT_TRUE(contains(fault_of_pair([](Shared& shared) {
                         if (M::thread() == 0) M::arrive_at(&shared.barrier[0] + 2, 1 - M::rank_in_cluster());
                         meet();
                       }),
                       "of its cluster, where none was initialised"));
  EXPECT_TRUE(contains(fault_of_pair([](Shared& shared) {
                         if (M::thread() == 0) {
                           M::copy_box_to_blocks(5, shared.tile, source(), &shared.barrier[0], 0, 0, 0, 0);
                         }
                         meet();
                       }),
                       "copies a box to block 2 of its cluster, which has 2"));
  EXPECT_TRUE(contains(fault_of_pair([](Shared& shared) {
                         if (M::thread() == 0) {
                           M::arrive_and_expect(&shared.barrier[0], kBoxBytes / 2);
                           if (M::rank_in_cluster() == 0) {
                             M::copy_box_to_blocks(3, shared.tile, source(), &shared.barrier[0], 0, 0, 0, 0);
                           }
                         }
                         M::wait(&shared.barrier[0], 0);
                         meet();
                       }),
                       "512 bytes more than it was told to expect land on barrier 0"));
}

/// Whether the other block has ended by then or not.
TEST(HopperClusters, EndOnlyOnceOthersAreDoneWithThem) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const std::string arrival = fault_of_pair(
        [](Shared& shared) {
          if (M::thread() == 0 && M::rank_in_cluster() == 0) M::arrive_at(&shared.barrier[0], 1);
        },
        seed);
    EXPECT_TRUE(contains(arrival, "arrives at a barrier of block 1 of its cluster, which has ended") ||
                contains(arrival, "ends the block, none of whose lanes knows that block 0 of the cluster has arrived"));
    const std::string copy = fault_of_pair(
        [](Shared& shared) {
          if (M::thread() == 0 && M::rank_in_cluster() == 0) {
            M::copy_box_to_blocks(2, shared.tile, source(), &shared.barrier[0], 0, 0, 0, 0);
          }
        },
        seed);
    EXPECT_TRUE(contains(copy, "copies a box to block 1 of its cluster, which has ended") ||
                contains(copy, "none of whose lanes has waited for a copy by another block") ||
                contains(copy, "ends the block while a copy is under way"));
  }
}

TEST(HopperClusters, MeetAtABarrierOfAllTheirLanes) {
  EXPECT_TRUE(contains(fault_of_pair([](Shared&) {
                         if (M::rank_in_cluster() == 0) meet();
                       }),
                       "wave 0, lane 0 and 31 more wait at the cluster's barrier, which lacks 32 of 64 lanes"));
  EXPECT_TRUE(contains(fault_of_pair([](Shared&) {
                         M::arrive_at_cluster();
                         M::arrive_at_cluster();
                       }),
                       "arrives at the cluster's barrier twice without a wait"));
  EXPECT_TRUE(contains(fault_of_pair([](Shared&) { M::wait_for_cluster(); }),
                       "waits at the cluster's barrier before it arrives"));
}

}  // namespace
}  // namespace tilewise::test
