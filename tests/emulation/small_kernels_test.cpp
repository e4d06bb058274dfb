// What the emulator promises, on kernels of a few lines: values, orders, and each kind of fault.
#include <atomic>
#include <set>
#include <vector>

#include "core/num_threads.hpp"
#include "emulated.hpp"

namespace tilewise::test {
namespace {

using device::Chunk, device::HostCdnaMachine, device::HostSm80Machine, device::NoShared;
using M = HostSm80Machine;

struct Words {
  alignas(128) std::uint32_t word[64];
};

TEST(Emulator, LanesMeetInCollectives) {
  const std::string fault = fault_of_body<HostCdnaMachine, Words>(128, [](Words& shared) {
    using Machine = HostCdnaMachine;
    const auto mine = static_cast<std::uint32_t>(Machine::thread());
    if (mine < 64) Machine::store_shared(&shared.word[mine], 2 * mine);
    Machine::barrier();
    EXPECT_EQ(Machine::load_shared<std::uint32_t>(&shared.word[63 - mine % 64]), 2 * (63 - mine % 64));
    EXPECT_EQ(Machine::shuffle_xor(static_cast<float>(Machine::lane()), 32), static_cast<float>(Machine::lane() ^ 32));
    EXPECT_TRUE(Machine::any(Machine::lane() == 17));
    EXPECT_FALSE(Machine::any(false));
  });
  EXPECT_EQ(fault, "");
}

/// The order in which the lanes of a block come to its first line.
std::vector<int> order_of(std::uint64_t seed) {
  static thread_local std::vector<int> order;
  order.clear();
  EXPECT_EQ((fault_of_body<M, NoShared>(64, [](NoShared&) { order.push_back(M::thread()); }, seed)), "");
  return order;
}

TEST(Emulator, TheSeedDecidesTheOrder) {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    orders.insert(order_of(seed));
    EXPECT_EQ(order_of(seed), order_of(seed));
  }
  EXPECT_EQ(orders.size(), 8u);
}

TEST(Emulator, EveryBlockRunsOnce) {
  static std::atomic<int> runs[100];
  const device::HostKernel* kernel = kernel_of<M, NoShared>([](NoShared&) { ++runs[M::block()]; });
  EXPECT_EQ(fault_of(kernel, 32, 100), "");
  for (const auto& count : runs) EXPECT_EQ(count, 32);
}

TEST(Emulator, TheFirstFailingBlockIsNamed) {
  const device::HostKernel* kernel = kernel_of<M, Words>([](Words& shared) {
    if (M::block() >= 40 && M::lane() == 3) M::load_shared<std::uint32_t>(&shared.word[0]);
  });
  EXPECT_EQ(fault_of(kernel, 64, 100, 5).substr(0, 15), "test: block 40,");
}

TEST(Emulator, ThreadsAreWholeWaves) {
  EXPECT_TRUE(contains(fault_of_body<M, NoShared>(40, [](NoShared&) {}), "whole waves of 32 (got 40)"));
}

TEST(Collectives, ALaneThatEndsLeavesTheOthersWaiting) {
  const std::string fault = fault_of_body<M, NoShared>(64, [](NoShared&) {
    if (M::thread() != 37) M::barrier();
  });
  EXPECT_TRUE(contains(fault, "barrier()"));
  EXPECT_TRUE(contains(fault, "wave 1, lane 5"));
  EXPECT_TRUE(contains(fault, "end"));
}

TEST(Collectives, LanesOfAWaveAtDifferentOnes) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const std::string fault = fault_of_body<M, NoShared>(
        32, [](NoShared&) { M::lane() == 9 ? M::wave_sync() : static_cast<void>(M::any(true)); }, seed);
    EXPECT_TRUE(contains(fault, "wave_sync()"));
    EXPECT_TRUE(contains(fault, "any()"));
    EXPECT_TRUE(contains(fault, "lane 9"));
  }
}

TEST(Collectives, AWavesNumberIsAskedForByAllOfIt) {
  const std::string fault = fault_of_body<M, NoShared>(64, [](NoShared&) {
    if (M::lane() == 0) M::wave();
    M::barrier();
  });
  EXPECT_TRUE(contains(fault, "barrier()"));
  EXPECT_TRUE(contains(fault, "lane 0"));
}

TEST(Collectives, ABarrierInABranch) {
  const std::string fault = fault_of_body<M, NoShared>(64, [](NoShared&) {
    if (M::lane() < 16) M::barrier();
    M::wave_sync();
  });
  EXPECT_TRUE(contains(fault, "barrier()"));
  EXPECT_TRUE(contains(fault, "wave_sync()"));
}

/// Lane 0 of wave 0 writes; `reader` reads after `between`.
template <int kReader, class Between>
std::string written_then_read(Between) {
  return fault_of_body<M, Words>(64, [](Words& shared) {
    if (M::thread() == 0) M::store_shared(&shared.word[5], 1u);
    Between{}();
    if (M::thread() == kReader) M::load_shared<std::uint32_t>(&shared.word[5]);
  });
}

TEST(Races, AReadNeedsABarrierAfterTheWrite) {
  // Whichever lane comes first: unwritten, or written by another.
  EXPECT_TRUE(contains((written_then_read<40>([] {})), "of shared memory"));
  EXPECT_TRUE(contains((written_then_read<1>([] {})), "of shared memory"));
  EXPECT_EQ((written_then_read<0>([] {})), "");
  EXPECT_EQ((written_then_read<1>([] { M::wave_sync(); })), "");
  EXPECT_NE((written_then_read<40>([] { M::wave_sync(); })), "");
  EXPECT_EQ((written_then_read<40>([] { M::barrier(); })), "");
  // A vote makes lanes meet, and orders no memory.
  EXPECT_TRUE(
      contains((written_then_read<1>([] { M::any(true); })), "no barrier since it was written by lane 0 of wave 0"));
}

TEST(Races, AWriteNeedsABarrierAfterReads) {
  const auto fault = [](auto between) {
    using Between = decltype(between);
    return fault_of_body<M, Words>(64, [](Words& shared) {
      if (M::thread() == 0) M::store_shared(&shared.word[5], 1u);
      M::barrier();
      M::load_shared<std::uint32_t>(&shared.word[5]);
      Between{}();
      if (M::thread() == 0) M::store_shared(&shared.word[5], 2u);
    });
  };
  EXPECT_EQ(fault([] { M::barrier(); }), "");
  EXPECT_TRUE(contains(fault([] { M::wave_sync(); }), "of shared memory, with no barrier since it was "));
  EXPECT_TRUE(contains(fault([] {}), "of shared memory, with no barrier since it was "));
}

TEST(Races, HalvesOfAWordAreApart) {
  const std::string fault = fault_of_body<M, Words>(64, [](Words& shared) {
    auto* halves = reinterpret_cast<std::uint16_t*>(shared.word);
    M::store_shared(halves + M::thread(), static_cast<std::uint16_t>(7));
  });
  EXPECT_EQ(fault, "");
}

TEST(SharedMemory, BoundsAlignmentAndUnwrittenWords) {
  EXPECT_TRUE(contains(fault_of_body<M, Words>(32, [](Words& shared) { M::store_shared(shared.word + 64, 1u); }),
                       "writes 4 bytes at offset 256 of shared memory, which has 256 bytes"));
  EXPECT_TRUE(contains(fault_of_body<M, Words>(32, [](Words& shared) { M::load_shared<Chunk>(shared.word - 4); }),
                       "reads 16 bytes at offset -16"));
  EXPECT_TRUE(contains(
      fault_of_body<M, Words>(32, [](Words& shared) { M::store_shared(shared.word + 2, Chunk{{0, 0, 0, 0}}); }),
      "which is not aligned"));
  EXPECT_TRUE(contains(fault_of_body<M, Words>(32,
                                               [](Words& shared) {
                                                 if (M::thread() == 0) M::store_shared(&shared.word[0], 1u);
                                                 M::barrier();
                                                 M::load_shared<std::uint64_t>(&shared.word[0]);
                                               }),
                       "reads offset 4 of shared memory, which nobody wrote since the block began"));
}

TEST(SharedMemory, ForgetsBetweenBlocks) {
  const device::HostKernel* kernel = kernel_of<M, Words>([](Words& shared) {
    if (M::block() == 0) M::store_shared(&shared.word[M::thread()], 1u);
    if (M::block() == 1) M::load_shared<std::uint32_t>(&shared.word[M::thread()]);
  });
  EXPECT_TRUE(contains(fault_of(kernel, 32, 2), "nobody wrote since the block began"));
}

using gpu::Access;

/// A region of adjacent words.
gpu::Region words(std::string_view name, std::int64_t count, Access access, bool one_writer = true) {
  return {.name = name, .access = access, .element_bytes = 4, .row = count, .one_writer = one_writer};
}

/// A wave copies 32 chunks to shared memory, does `between`, meets at a barrier and reads what another lane copied.
struct Chunks {
  Chunk chunk[32];
};
template <class Between>
std::string copied_then_read(Between, std::uint64_t seed) {
  static Chunk source[32] = {};
  backends::emulation::GlobalMemory memory;
  memory.add(words("source", 128, Access::read), source);
  const device::HostKernel* kernel = kernel_of<M, Chunks>([](Chunks& shared) {
    M::copy_async(&shared.chunk[M::lane()], &source[M::lane()], true);
    Between{}();
    M::barrier();
    M::load_shared<Chunk>(&shared.chunk[31 - M::lane()]);
  });
  return fault_of(kernel, 32, 1, seed, memory);
}

TEST(AsynchronousCopies, AreReadAfterCommitWaitAndBarrier) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ((copied_then_read([] { M::commit_copies(), M::wait_copies<0>(); }, seed)), "");
    const std::string late = "where an asynchronous copy is under way that was not waited for, by lane";
    EXPECT_TRUE(contains((copied_then_read([] { M::commit_copies(); }, seed)), late));
    EXPECT_TRUE(contains((copied_then_read([] { M::commit_copies(), M::wait_copies<1>(); }, seed)), late));
    EXPECT_TRUE(contains((copied_then_read([] { M::wait_copies<0>(); }, seed)), late)) << "never committed";
  }
}

TEST(AsynchronousCopies, LandAtAnyTimeUpToTheWait) {
  // The source changes after the copies' issue: some lanes get the old value, some the new one.
  static Chunk source;
  static thread_local std::set<std::uint32_t> seen;
  backends::emulation::GlobalMemory memory;
  memory.add(words("source", 4, Access::write, false), &source);
  source.word[0] = 1;
  const device::HostKernel* kernel = kernel_of<M, Chunks>([](Chunks& shared) {
    M::copy_async(&shared.chunk[M::lane()], &source, true);
    M::commit_copies();
    M::wave_sync();
    if (M::lane() == 0) M::store_global(&source.word[0], 2u);
    M::wave_sync();
    M::wait_copies<0>();
    seen.insert(M::load_shared<Chunk>(&shared.chunk[M::lane()]).word[0]);
  });
  EXPECT_EQ(fault_of(kernel, 32, 1, 0, memory), "");
  EXPECT_EQ(seen, (std::set<std::uint32_t>{1, 2}));
}

TEST(GlobalMemory, OnlyTensorsAreThere) {
  alignas(16) std::uint16_t whole[100] = {};
  std::uint16_t* const data = whole + 48;
  backends::emulation::GlobalMemory memory;  // 3 rows of 8 elements, 16 apart
  memory.add({.name = "q", .element_bytes = 2, .outer = {{{3, 16}}}, .rank = 1, .row = 8}, data);
  const auto check = [&](int element, std::size_t bytes, bool write = false) {
    return memory.check(data + element, bytes, write);
  };
  EXPECT_EQ(check(0, 2), "");
  EXPECT_EQ(check(16, 16), "");
  EXPECT_EQ(check(39, 2), "");
  EXPECT_TRUE(contains(check(40, 2), "reads 2 bytes at byte 80 of q, which ends at byte 80"));
  EXPECT_TRUE(contains(check(-1, 2), "at byte -2 of q"));
  EXPECT_TRUE(contains(check(8, 2), "between the rows"));
  EXPECT_TRUE(contains(check(24, 16), "between the rows"));
  EXPECT_TRUE(contains(check(0, 2, true), "writes 2 bytes at byte 0 of q, which is an input"));
  EXPECT_TRUE(contains(check(4, 16), "not aligned"));
  EXPECT_TRUE(contains(memory.check(reinterpret_cast<char*>(data) + 1, 2, false), "not aligned"));
}

TEST(GlobalMemory, AWordHasOneWriterInALaunch) {
  static float data[64];
  const core::FrameworkThreads one_thread(1);  // block 0 comes first
  const auto fault = [](auto body) {
    backends::emulation::GlobalMemory memory;
    memory.add(words("out", 64, Access::write), data);
    const device::HostKernel* kernel = kernel_of<M, NoShared>(body);
    return fault_of(kernel, 32, 2, 0, memory);
  };
  using N = NoShared;
  EXPECT_EQ(fault([](N&) {
              float* own = data + 32 * M::block() + M::lane();
              M::store_global(own, 1.0f);
              M::store_global(own, M::load_global(own) + 1.0f);
              M::barrier();
              M::load_global(data + 32 * M::block() + 31 - M::lane());
            }),
            "");
  EXPECT_TRUE(contains(fault([](N&) { M::store_global(data + M::lane(), 1.0f); }), "wrote in the same launch"));
  EXPECT_TRUE(contains(fault([](N&) { M::store_global(data + 32 * M::block() + M::lane() / 2, 1.0f); }),
                       "of out, which thread"));
  EXPECT_TRUE(contains(fault([](N&) {
                         if (M::block() == 0) M::store_global(data + M::lane(), 1.0f);
                         if (M::block() == 1) M::store_global(data + 32 + M::lane(), M::load_global(data + M::lane()));
                       }),
                       "of block 0 wrote in the same launch"));
}

TEST(GlobalMemory, LanesOfAnyBlockAddToAWord) {
  alignas(16) static float data[8];
  const auto fault = [](auto body) {
    std::fill(std::begin(data), std::end(data), 0.0f);
    backends::emulation::GlobalMemory memory;
    memory.add(words("dq_accum", 8, Access::add), data);
    const device::HostKernel* kernel = kernel_of<M, NoShared>(body);
    return fault_of(kernel, 32, 2, 0, memory);
  };
  using N = NoShared;
  EXPECT_EQ(fault([](N&) { M::add_global(data, {1.0f, 2.0f, 3.0f, 4.0f}); }), "");
  EXPECT_EQ(data[0], 64.0f);
  EXPECT_EQ(data[3], 256.0f);
  EXPECT_TRUE(contains(fault([](N&) {
                         M::add_global(data, {1.0f, 2.0f, 3.0f, 4.0f});
                         M::load_global(data + 1);
                       }),
                       "reads byte 4 of dq_accum, to which lanes add in the same launch"));
  EXPECT_TRUE(contains(fault([](N&) {
                         if (M::thread() == 3) M::store_global(data, 1.0f);
                         M::add_global(data, {1.0f, 2.0f, 3.0f, 4.0f});
                       }),
                       "of dq_accum"));
  EXPECT_TRUE(contains(fault([](N&) { M::add_global(data + 1, {1.0f, 2.0f, 3.0f, 4.0f}); }), "not aligned"));
}

TEST(GlobalMemory, StridesOfEitherSignAndBroadcasts) {
  std::vector<float> data(24);
  backends::emulation::GlobalMemory memory;
  memory.add({.name = "bias", .element_bytes = 4, .outer = {{{5, 0}, {6, -4}}}, .rank = 2}, data.data() + 23);
  EXPECT_EQ(memory.check(data.data() + 23, 4, false), "");
  EXPECT_EQ(memory.check(data.data() + 3, 4, false), "");
  EXPECT_NE(memory.check(data.data() + 4, 4, false), "");
  EXPECT_NE(memory.check(data.data(), 4, false), "");
}

}  // namespace
}  // namespace tilewise::test
