// The machines of the emulation and their operations keep contract.h, and the contract sees what is missing.
#include "device/tile/contract.h"

#include <gtest/gtest.h>

#include "device/sm90/contract.h"
#include "device/sm90/machine_host.h"
#include "device/tile/machine_host.h"
#include "device/tile/ops_cdna.h"
#include "device/tile/ops_rdna.h"
#include "device/tile/ops_rdna4.h"
#include "device/tile/ops_sm80.h"

namespace tilewise::test {
namespace {

using namespace device;

static_assert(TileOps<Sm80Ops<HostSm80Machine>>);
static_assert(TileOps<CdnaOps<HostCdnaMachine>>);
static_assert(TileOps<RdnaOps<HostRdnaMachine>>);
static_assert(TileOps<Rdna4Ops<HostRdna4Machine>>);
static_assert(TileOps<Rdna4Ops<HostGfx1250Machine>>);
static_assert(Sm90TileOps<Sm90Ops<HostSm90Machine>>);

template <class Machine>
struct WithoutVote : Machine {
  static bool any(bool) = delete;
};
struct WithoutCopies : HostSm80Machine {
  static void copy_async(void*, const void*, bool) = delete;
};
struct WithoutProducts : HostSm80Machine {
  static void mma() = delete;
};
struct WithoutPhases : HostSm90Machine {
  static void wait(uint64_t*, uint32_t) = delete;
};
struct WithoutProxies : HostSm90Machine {
  static void fence_shared_writes() = delete;
};
struct WithoutWindows : HostCdnaMachine {
  static void window() = delete;
};
struct WithoutExchange : HostRdnaMachine {
  static void swap_halves() = delete;
};

TEST(Contract, SeesWhatAMachineLacks) {
  EXPECT_FALSE(TileOps<Sm80Ops<WithoutVote<HostSm80Machine>>>);
  EXPECT_FALSE(TileOps<CdnaOps<WithoutVote<HostCdnaMachine>>>);
  EXPECT_FALSE(TileOps<Sm80Ops<WithoutCopies>>);
  EXPECT_FALSE(Sm90TileOps<Sm90Ops<WithoutPhases>>);
  EXPECT_FALSE(Sm90TileOps<Sm90Ops<WithoutProxies>>);
  EXPECT_FALSE(TileOps<Sm80Ops<WithoutProducts>>);
  EXPECT_FALSE(TileOps<CdnaOps<WithoutWindows>>);
  EXPECT_FALSE(TileOps<RdnaOps<WithoutExchange>>);
}

// Operations for lanes that the machine has not.
TEST(Contract, SeesThatMachineAndOperationsDiffer) {
  EXPECT_FALSE(TileOps<CdnaOps<HostRdnaMachine>>);
  EXPECT_FALSE(TileOps<Sm80Ops<HostCdnaMachine>>);
}

}  // namespace
}  // namespace tilewise::test
