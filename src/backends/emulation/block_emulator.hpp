// Runs the lanes of one block, each a fiber, on the calling thread: what a kernel compiled against
// device/tile/machine_host.h calls. Lanes advance in an order drawn from a seed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/emulation/fiber.hpp"
#include "backends/emulation/global_memory.hpp"
#include "backends/emulation/matrix_unit.hpp"
#include "backends/emulation/shared_memory.hpp"
#include "device/tile/host_entry.h"

namespace tilewise::backends::emulation {

/// What lanes wait for together.
enum class Collective : std::uint8_t {
  none,
  barrier,
  wave_sync,
  vote,
  shuffle,
  load_matrices,
  load_matrices_transposed,
  multiply,
  store_matrices,
  fence_products,
  begin_product,
  commit_products,
  wait_products,
};

class BlockEmulator : public device::HostBlock {
 public:
  /// Throws Error (runtime) where there is no memory for the lanes' stacks.
  BlockEmulator(const device::HostKernel& kernel, std::int32_t threads, const GlobalMemory& memory)
      : BlockEmulator(kernel, threads, memory, static_cast<std::size_t>(kernel.shared_bytes)) {}
  virtual ~BlockEmulator() = default;
  BlockEmulator(const BlockEmulator&) = delete;
  BlockEmulator& operator=(const BlockEmulator&) = delete;

  /// Runs every lane to its end; `params` are of the kernel's own type. Empty, or what went wrong first: "wave 1, lane
  /// 5: reads ...".
  [[nodiscard]] std::string run(std::int32_t block_index, const void* params, std::uint64_t seed);

  void barrier() override;
  void wave_sync() override;
  bool any(bool value) override;
  std::uint32_t shuffle_xor(std::uint32_t value, std::int32_t mask) override;
  void load_global(void* to, const void* from, std::int32_t bytes) override;
  void store_global(void* to, const void* from, std::int32_t bytes) override;
  void add_global(float* to, float x) override;
  void add_global(float* to, const float (&x)[4]) override;
  void load_shared(void* to, const void* from, std::int32_t bytes) override;
  void store_shared(void* to, const void* from, std::int32_t bytes) override;
  void copy_async(void* to, const void* from, bool valid) override;
  void commit_copies() override;
  void wait_copies(std::int32_t pending) override;
  void load_matrices(std::uint32_t* to, const void* row, bool transposed) override;
  void multiply(device::HostMatrix matrix, std::int32_t element, float* d, const std::uint32_t* a,
                const std::uint32_t* b) override;

 protected:
  /// 16 bytes on their way from global to shared memory.
  struct Copy {
    void* to;
    const void* from;  ///< null: zeros
    std::int32_t group;
    bool landed;
  };
  struct Lane {
    Fiber fiber;
    BlockEmulator* emulator = nullptr;
    std::int32_t thread = 0;
    bool ended = false;
    Collective waits_for = Collective::none;
    void* arguments = nullptr;  ///< of the collective; on the lane's stack
    std::vector<Copy> copies;
    std::int32_t copy_group = 0;  ///< that commit_copies() will close
  };

  struct Wave {
    std::int32_t arrived = 0, at_barrier = 0, ended = 0;  ///< lanes
    Collective open = Collective::none;                   ///< what the arrived ones wait for
  };

  /// `shared_bytes`: of the memory that this class checks; 0 where a derived one has its own.
  BlockEmulator(const device::HostKernel& kernel, std::int32_t threads, const GlobalMemory& memory,
                std::size_t shared_bytes);

  // What machines with more of their own do besides.
  virtual void begin_block() { shared_.begin_block(); }
  /// The block whose lane runs next, of those that run side by side: null where no lane of theirs can.
  [[nodiscard]] virtual BlockEmulator* next_block();
  /// Who began the block, and goes on where its lanes can't.
  [[nodiscard]] virtual Fiber& main() { return main_; }
  [[nodiscard]] virtual void* window() const { return shared_.window(); }
  virtual void perform(Collective collective, std::span<Lane> group);
  /// By a lane that ends.
  virtual void finish_lane() {}
  /// Whether something goes on beside the lanes that none of them can: then it did, and lanes may be able to.
  virtual bool go_on_alone() { return false; }
  /// Why the lanes that have not ended wait, none of them being able to go on.
  [[nodiscard]] virtual std::string stand_still() const { return "its lanes wait for each other"; }

  [[nodiscard]] Lane& self() { return lanes_[static_cast<std::size_t>(thread)]; }
  [[nodiscard]] Accessor accessor(bool whole_wave = false) const { return {thread, thread / wave_lanes_, whole_wave}; }
  [[nodiscard]] GlobalAccessor global_accessor() const {
    return {block, thread, static_cast<std::int32_t>(lanes_.size())};
  }
  [[nodiscard]] std::span<Lane> wave_of(const Lane& lane);

  /// Joins a collective of this lane's wave (or of the block) and returns when it is done.
  void join(Collective collective, void* arguments);
  void exchange(std::span<Lane> wave);
  void vote(std::span<Lane> wave);
  void load_rows(std::span<Lane> wave, bool transposed);
  /// What a lane of a matrix load reads.
  [[nodiscard]] virtual std::string load_row(const Lane& lane, void* to, const void* row, std::size_t bytes);
  /// Fails where a lane comes to a collective (none: to its end) while another one that it would have to
  /// meet waits elsewhere or has ended. So no lane is ever left waiting for good.
  void check_company(const Lane& lane, Collective collective);
  [[noreturn]] void fail_company(const Lane& lane, Collective collective);

  /// Before lanes run: each of them is at the kernel's beginning.
  void start(std::int32_t block_index, const void* params, std::uint64_t seed);
  /// Once they don't: empty, or what went wrong.
  [[nodiscard]] std::string verdict() const;
  [[nodiscard]] std::uint32_t random(std::uint32_t below);
  /// Where to go from the running lane, which waits or has ended: to a random one that can run.
  Fiber& next_fiber();
  /// One of the block's lanes that can run, which from now on does.
  Fiber& draw_lane();
  void yield();
  void end_lane();
  void land(Copy& copy);
  void land_some();
  static void run_lane(void* lane);

  [[nodiscard]] Wave& own_wave() { return waves_[static_cast<std::size_t>(thread / wave_lanes_)]; }
  [[nodiscard]] std::string name(const Lane& lane) const;

  const device::HostKernel& kernel_;
  const GlobalMemory& memory_;
  std::int32_t wave_lanes_;
  FiberStacks stacks_;
  SharedMemory shared_;
  std::vector<Lane> lanes_;
  std::vector<std::int32_t> runnable_;
  std::vector<Wave> waves_;
  std::vector<MultiplyArguments*> multiply_arguments_;
  Fiber main_;
  const void* params_ = nullptr;
  std::int32_t ended_ = 0, at_barrier_ = 0;  ///< lanes of the block
  std::uint64_t random_state_ = 0;
  std::string fault_;
};

}  // namespace tilewise::backends::emulation
