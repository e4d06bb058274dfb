// Runs the lanes of a block of a Hopper machine: barriers in shared memory, TMA and products that go on
// beside the lanes. What device/sm90/machine_host.h calls.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "backends/emulation/async_memory.hpp"
#include "backends/emulation/barriers.hpp"
#include "backends/emulation/block_emulator.hpp"
#include "backends/emulation/cluster.hpp"
#include "backends/emulation/host_tensor_map.hpp"
#include "backends/emulation/knowledge.hpp"
#include "backends/emulation/wave_products.hpp"

namespace tilewise::backends::emulation {

class WarpgroupEmulator final : public BlockEmulator, public device::HostWarpgroups {
 public:
  WarpgroupEmulator(const device::HostKernel& kernel, const Actors& actors, std::int32_t grid_blocks,
                    const GlobalMemory& memory, Cluster& cluster);

  void load_shared(void* to, const void* from, std::int32_t bytes) override;
  void store_shared(void* to, const void* from, std::int32_t bytes) override;
  void copy_async(void* to, const void* from, bool valid) override;
  void commit_copies() override;
  void wait_copies(std::int32_t pending) override;

  std::uint32_t shared_address(const void* pointer) override;
  std::uint32_t count_global(std::uint32_t* counter) override;
  std::uint64_t exchange_global_if(std::uint64_t* to, std::uint64_t expected, std::uint64_t desired) override;
  std::uint32_t peek_global(const std::uint32_t* word) override;
  void await_global(const std::uint32_t* word, std::uint32_t value) override;
  void release_global(std::uint32_t* word, std::uint32_t value) override;
  void release_count(std::uint32_t* counter) override;
  void store_matrices(void* row, const std::uint32_t* from, bool transposed) override;
  void set_registers(std::int32_t count) override;

  void init_barrier(void* barrier, std::int32_t arrivals) override;
  void publish_barriers() override;
  void arrive(void* barrier, std::int32_t bytes) override;
  void arrive_after_copies(void* barrier) override;
  void wait(void* barrier, std::uint32_t parity) override;
  bool test(void* barrier, std::uint32_t parity) override;
  void meet_at(std::int32_t number, std::int32_t threads, bool waits) override;
  void arrive_at(void* barrier, std::int32_t rank) override;
  void arrive_at_cluster() override;
  void wait_for_cluster() override;

  void copy_box(void* to, const void* map, void* landed, const std::int32_t* at, std::int32_t rank,
                std::uint32_t blocks) override;
  void copy_run(void* to, const void* from, std::int32_t bytes, void* landed) override;
  void prefetch_run(const void* from, std::int32_t bytes) override;
  void store_box(const void* map, const void* from, const std::int32_t* at, std::int32_t rank) override;
  void store_run(float* to, const void* from, std::int32_t bytes) override;
  void add_run(float* to, const void* from, std::int32_t bytes) override;
  void commit_stores() override;
  void wait_stores(bool written, std::int32_t pending) override;
  void fence_shared_writes() override;

  void fence_products() override;
  void begin_product(const device::HostProduct& product) override;
  void commit_products() override;
  void wait_products(std::int32_t pending) override;

 private:
  friend class Cluster;

  static constexpr std::uint32_t kQuick = 8, kSlow = 4096;  ///< odds of a copy
  /// A box on its way to this block's shared memory.
  struct BoxCopy {
    HostTensorMap map;
    std::array<std::int32_t, 5> at;
    std::int64_t to;
    MemoryBarrier* barrier;
    const WarpgroupEmulator* sender;  ///< this block or another of its cluster
    std::size_t lane;                 ///< of the sender
    std::uint32_t odds;               ///< lands at one moment of so many: some copies are overtaken by later ones
  };
  /// What an actor of the cluster has done at a barrier of this block, last.
  struct PeerEvent {
    std::size_t actor = 0;
    Time when = 0;
    const MemoryBarrier* barrier = nullptr;  ///< null: nothing
  };
  /// A lane that waits until a word of global memory has a value.
  struct WordWait {
    std::int32_t lane;
    const std::uint32_t* word;
    std::uint32_t value;
  };
  /// A box on its way to global memory, which it overwrites or, being floats, adds to.
  struct BoxStore {
    static constexpr std::int32_t kUncommitted = -1;
    HostTensorMap map;
    std::array<std::int32_t, 5> at;
    std::int64_t from;
    std::size_t lane;
    bool adds;
    Clock known;                        ///< at its issue
    std::int32_t group = kUncommitted;  ///< of its lane
    bool read = false;
    std::vector<std::byte> bytes{};
  };

  /// A lane's own copy of 16 bytes, which lands when the lane waits for it; from null: zeros.
  struct LaneCopy {
    std::int64_t to;
    const void* from;
    std::int32_t group;  ///< of its lane
  };

  /// Copies of a lane that arrive at a barrier by themselves.
  struct LaneArrival {
    std::size_t lane;
    MemoryBarrier* barrier;
    std::deque<LaneCopy> copies;
  };

  void begin_block() override;
  [[nodiscard]] void* window() const override { return memory_of_block_.window(); }
  void perform(Collective collective, std::span<Lane> group) override;
  void finish_lane() override;
  bool go_on_alone() override;
  [[nodiscard]] std::string stand_still() const override;
  [[nodiscard]] BlockEmulator* next_block() override { return cluster_.next_block(); }
  [[nodiscard]] Fiber& main() override { return cluster_.main(); }
  [[nodiscard]] std::string load_row(const Lane& lane, void* to, const void* row, std::size_t bytes) override;

  [[nodiscard]] std::size_t own_lane() const { return static_cast<std::size_t>(thread); }
  [[nodiscard]] std::size_t wave_index() const { return own_lane() / Actors::kWaveLanes; }
  /// Of all lanes of the cluster.
  [[nodiscard]] std::size_t lane_of_cluster() const {
    return static_cast<std::size_t>(rank_in_cluster) * lanes_.size() + own_lane();
  }
  [[nodiscard]] Toucher toucher(std::size_t lane) {
    const std::size_t actor = knowledge_.actors().lane(lane);
    return {actor, actor, &knowledge_.of(lane), false};
  }
  [[nodiscard]] MemoryBarrier& barrier_at(const void* address) {
    return barrier_at(memory_of_block_.offset_of(address), *this);
  }
  /// For the lane that runs, which is one of `user`.
  [[nodiscard]] MemoryBarrier& barrier_at(std::int64_t offset, WarpgroupEmulator& user);
  /// Another block of the cluster, or this one; it has not ended.
  [[nodiscard]] WarpgroupEmulator& peer(std::int32_t rank, const char* does);
  /// That this block knows, as it ends, of all that others have done to it.
  void check_peers();
  [[nodiscard]] HostTensorMap map_at(const void* map, std::int32_t rank);
  /// A box that begins off 16 bytes of its innermost dimension is an illegal instruction on an H200.
  void check_first(const HostTensorMap& map, const std::array<std::int32_t, 5>& at);
  /// Ends the phase if it has its arrivals and bytes, and wakes those that wait for it.
  void advance(MemoryBarrier& barrier);
  void wake(std::vector<std::int32_t>& waiting);
  /// Those whose words have come; whether there were any.
  bool wake_for_words();
  void store_rows(std::span<Lane> wave);
  void begin_copy(const HostTensorMap& map, const std::array<std::int32_t, 5>& at, void* to, std::int64_t alignment,
                  void* landed, std::uint32_t blocks);
  /// Such a copy to this block's memory, by the lane that runs, which is one of `sender`.
  void receive(const HostTensorMap& map, const std::array<std::int32_t, 5>& at, std::int64_t to, std::int64_t landed,
               WarpgroupEmulator& sender);
  void begin_run(float* to, const void* from, std::int32_t bytes, bool adds);
  void begin_store(const HostTensorMap& map, const std::array<std::int32_t, 5>& at, const void* from,
                   std::int64_t alignment, bool adds);
  void land(std::size_t copy);
  void land(std::size_t lane, const LaneCopy& copy);
  void land_arrival(std::size_t arrival);
  void read_store(BoxStore& store);
  void write_store(const BoxStore& store);
  /// Time passes beside the lanes: of what is under way some is done.
  void let_time_pass();

  Cluster& cluster_;
  Knowledge knowledge_;
  AsyncMemory memory_of_block_;
  const GlobalMemory& global_;
  std::vector<std::unique_ptr<MemoryBarrier>> barriers_;
  std::array<NamedBarrier, kNamedBarriers> named_;
  std::vector<WaveProducts> products_;
  std::deque<BoxCopy> copies_;
  std::deque<BoxStore> stores_;
  std::vector<std::deque<LaneCopy>> lane_copies_;  ///< of each lane
  std::deque<LaneArrival> lane_arrivals_;
  /// Of each lane: how many groups it has committed.
  std::vector<std::int32_t> store_groups_, copy_groups_;
  std::vector<std::int32_t> registers_, wants_registers_;  ///< of each lane; wants: 0 where it does not wait
  std::int64_t free_registers_ = 0;
  std::vector<std::int32_t> wait_for_cluster_;  ///< lanes
  std::vector<WordWait> wait_for_words_;
  std::vector<PeerEvent> peers_arrivals_;  ///< by each lane of the cluster
  std::vector<PeerEvent> peers_copies_;    ///< landed, on each barrier
};

}  // namespace tilewise::backends::emulation
