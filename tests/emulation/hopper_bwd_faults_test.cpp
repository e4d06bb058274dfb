// Hopper's backward kernel on its emulated machine, right and with faults planted in it: each one must be caught, by
// the checks or by the result.
#include "hopper_bwd_call.hpp"

namespace tilewise::test {
namespace {

template <HopperBwdConfig C = kNarrow>
std::string fault_of_run(BwdFault fault) {
  return BwdCall<C>().run(fault);
}

/// The configs that a fault is planted in; hopper_bwd_orders_test.cpp has others.
TEST(EmulatedHopperBwd, IsRightInAnyOrder) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    expect_right<kNarrow, kMiddle, kWide, kDropout, kWideDropout, kSoftcap, kBiased, kOrdered, kOrderedPersistent,
                 kRounding, kFinishing, kBothWays, kCounting, kOwnDq, kOwnDqCounting, kOwnDqOrdered, kOwnDqFinishing,
                 kOrderedDropout, kWideOrdered, kGrouped, kLate, kWideLate>(seed);
  }
}

TEST(EmulatedHopperBwd, SumsThatAreSentBeforeTheirFenceAreCaught) {
  const std::string fault = fault_of_run(BwdFault::sums_sent_unfenced);
  EXPECT_TRUE(contains(fault, "a store reads offset"));
  EXPECT_TRUE(contains(fault, "with no fence_shared_writes() since it was written by wave"));
}

TEST(EmulatedHopperBwd, ScoresThatAreNotFencedAreCaught) {
  EXPECT_TRUE(
      contains(fault_of_run(BwdFault::scores_unfenced), "with no fence_shared_writes() since it was written by"));
}

TEST(EmulatedHopperBwd, AStageThatIsFilledBeforeItIsEmptyIsCaught) {
  EXPECT_NE(fault_of_run(BwdFault::refilled_early), "");
  EXPECT_NE(fault_of_run<kBiased>(BwdFault::refilled_early), "");
}

/// A stage is full without its bias then.
TEST(EmulatedHopperBwd, ABiasThatIsNotExpectedIsCaught) {
  EXPECT_TRUE(contains(fault_of_run<kBiased>(BwdFault::bias_not_expected), "bytes"));
}

TEST(EmulatedHopperBwd, ALostArrivalNamesItsBarrier) {
  EXPECT_TRUE(contains(fault_of_run(BwdFault::lost_arrival), "which lacks 1 of 8 arrivals"));
}

/// A stage of Q and dO that is handed back while products still read it, among others.
TEST(EmulatedHopperBwd, ProductsThatNobodyWaitsForAreCaught) {
  EXPECT_NE(fault_of_run(BwdFault::no_product_wait), "");
  EXPECT_NE(fault_of_run<kSoftcap>(BwdFault::no_product_wait), "");
}

TEST(EmulatedHopperBwd, SumsThatNobodyWaitsForAreCaught) { EXPECT_NE(fault_of_run(BwdFault::sums_left_alone), ""); }

TEST(EmulatedHopperBwd, FaultsOfWideHeadsAreCaught) {
  EXPECT_TRUE(contains(fault_of_run<kWide>(BwdFault::scores_unfenced),
                       "with no fence_shared_writes() since it was written by"));
  EXPECT_NE(fault_of_run<kWide>(BwdFault::refilled_early), "");
  EXPECT_TRUE(contains(fault_of_run<kWide>(BwdFault::lost_arrival), "which lacks 1 of 32 arrivals"));
  EXPECT_NE(fault_of_run<kWide>(BwdFault::no_product_wait), "");
  EXPECT_NE(fault_of_run<kWide>(BwdFault::weights_taken_early), "");
  EXPECT_NE(fault_of_run<kWideDropout>(BwdFault::refilled_early), "");
}

/// Where the warpgroups that compute multiply dQ, each reads what the other has stored, and K, in whose place dk
/// leaves.
TEST(EmulatedHopperBwd, FaultsOfWarpgroupsThatMultiplyDqTooAreCaught) {
  EXPECT_TRUE(contains(fault_of_run<kOwnDq>(BwdFault::scores_unfenced),
                       "with no fence_shared_writes() since it was written by"));
  EXPECT_TRUE(contains(fault_of_run<kOwnDq>(BwdFault::lost_arrival), "which lacks 1 of 8 arrivals"));
  EXPECT_NE(fault_of_run<kOwnDq>(BwdFault::no_product_wait), "");
  EXPECT_TRUE(contains(fault_of_run<kOwnDq>(BwdFault::scores_overwritten), "since it was read by a product of wave"));
  EXPECT_TRUE(
      contains(fault_of_run<kOwnDq>(BwdFault::gradients_staged_early), "since it was read by a product of wave"));
  EXPECT_TRUE(contains(fault_of_run<kOwnDq>(BwdFault::gradients_overwritten), "since it was read by a store"));
  EXPECT_NE(fault_of_run<kOwnDq>(BwdFault::keys_overwritten), "");
  EXPECT_TRUE(contains(fault_of_run<kOwnDqOrdered>(BwdFault::taken_before_staged), "which nobody wrote"));
  EXPECT_TRUE(contains(fault_of_run<kOwnDqOrdered>(BwdFault::staged_before_read), "since it was read by a store"));
  EXPECT_TRUE(contains(fault_of_run<kOwnDqOrdered>(BwdFault::handed_back_unread), "since it was read by a store"));
  EXPECT_TRUE(contains(fault_of_run<kOwnDqCounting>(BwdFault::handed_on_early), "of its stores are under way"));
}

TEST(EmulatedHopperBwd, DrawsThatAreOverwrittenBeforeTheyAreReadAreCaught) {
  EXPECT_NE(fault_of_run<kDropout>(BwdFault::draws_overwritten), "");
  EXPECT_NE(fault_of_run<kWideDropout>(BwdFault::draws_overwritten), "");
}

TEST(EmulatedHopperBwd, ATurnThatIsHandedOnBeforeTheSumsHaveArrivedIsCaught) {
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(BwdFault::handed_on_early), "of its stores are under way"));
  EXPECT_TRUE(contains(fault_of_run<kOrderedDropout>(BwdFault::handed_on_early), "of its stores are under way"));
  EXPECT_TRUE(contains(fault_of_run<kCounting>(BwdFault::handed_on_early), "of its stores are under way"));
}

/// Between those that multiply dQ and those that take its sums to memory.
TEST(EmulatedHopperBwd, FaultsOfCouriersAreCaught) {
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(BwdFault::sums_sent_unfenced), "with no fence_shared_writes() since"));
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(BwdFault::taken_before_staged), "which nobody wrote"));
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(BwdFault::staged_before_read), "since it was read by a store"));
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(BwdFault::handed_back_unread), "since it was read by a store"));
  EXPECT_TRUE(contains(fault_of_run<kOrderedPersistent>(BwdFault::taken_before_staged), "which nobody wrote"));
  EXPECT_TRUE(contains(fault_of_run<kOrderedPersistent>(BwdFault::staged_before_read), "since it was read by a store"));
}

/// What has been added up so far comes to where the last sums are staged.
TEST(EmulatedHopperBwd, FaultsOfSumsThatAreFetchedAreCaught) {
  EXPECT_TRUE(contains(fault_of_run<kFinishing>(BwdFault::fetched_early), "a copy that counts on barrier"));
  EXPECT_NE(fault_of_run<kFinishing>(BwdFault::taken_before_fetched), "");
  EXPECT_NE(fault_of_run<kBothWays>(BwdFault::taken_before_fetched), "");
  EXPECT_TRUE(contains(fault_of_run<kFinishing>(BwdFault::sums_sent_unfenced), "with no fence_shared_writes() since"));
  EXPECT_TRUE(contains(fault_of_run<kFinishing>(BwdFault::handed_back_unread), "since it was read by a store"));
}

/// Likewise of those that multiply dQ beside dk and dv.
TEST(EmulatedHopperBwd, FaultsOfSumsThatTheirOwnWarpsRoundAreCaught) {
  EXPECT_NE(fault_of_run<kOwnDqFinishing>(BwdFault::taken_before_staged), "");
  EXPECT_NE(fault_of_run<kOwnDqFinishing>(BwdFault::taken_before_fetched), "");
  EXPECT_TRUE(contains(fault_of_run<kOwnDqFinishing>(BwdFault::scores_unfenced), "with no fence_shared_writes()"));
  EXPECT_TRUE(contains(fault_of_run<kOwnDqFinishing>(BwdFault::handed_back_unread), "since it was read by a store"));
}

/// No fault: who has looked in vain waits.
TEST(EmulatedHopperBwd, TurnsMayComeLate) {
  BwdCall<kOrderedDropout> call;
  EXPECT_EQ(call.run(BwdFault::turns_come_late), "");
  EXPECT_LT(call.error(), kFine);
  BwdCall<kWideOrdered> wide;
  EXPECT_EQ(wide.run(BwdFault::turns_come_late), "");
  EXPECT_LT(wide.error(), kFine);
}

/// The first tile of keys finds that the one behind has not added yet.
TEST(EmulatedHopperBwd, TurnsAreWaitedFor) {
  EXPECT_TRUE(contains(fault_of_run<kOrdered>(BwdFault::blocks_backwards), "waits for 2 in memory that holds 0"));
  EXPECT_TRUE(
      contains(fault_of_run<kOrderedDropout>(BwdFault::blocks_backwards), "waits for 2 in memory that holds 0"));
  EXPECT_TRUE(contains(fault_of_run<kFinishing>(BwdFault::blocks_backwards), "in memory that holds 0"));
  EXPECT_TRUE(contains(fault_of_run<kBothWays>(BwdFault::blocks_backwards), "in memory that holds 0"));
}

/// Of a group whose heads come in shares: the second one finds that the first has not stored its sums of dk and dv.
TEST(EmulatedHopperBwd, SumsOfSharesHaveTheirTurns) {
  EXPECT_TRUE(contains(fault_of_run<kGrouped>(BwdFault::share_not_handed_on), "waits for 1 in memory that holds 0"));
}

/// By the warp that tells of turns: before the others have added to what it hands on.
TEST(EmulatedHopperBwd, AShareThatIsHandedOnBeforeItIsJoinedIsCaught) {
  static_assert(kGrouped.tells_groups());
  EXPECT_TRUE(contains(fault_of_run<kGrouped>(BwdFault::share_handed_on_early), "no lane can go on"));
}

/// What the next tile of keys loads meets what the one before has left, or still reads.
TEST(EmulatedHopperBwd, FaultsBetweenTwoTilesOfKeysAreCaught) {
  EXPECT_TRUE(contains(fault_of_run(BwdFault::values_overwritten), "copies to offset"));
  EXPECT_TRUE(contains(fault_of_run(BwdFault::keys_overwritten), "since it was read by a product of wave"));
  EXPECT_NE(fault_of_run(BwdFault::gradients_overwritten), "");
  EXPECT_TRUE(contains(fault_of_run<kMiddle>(BwdFault::values_overwritten), "copies to offset"));
  EXPECT_TRUE(contains(fault_of_run<kMiddle>(BwdFault::keys_overwritten), "since it was read by a product of wave"));
  EXPECT_NE(fault_of_run<kMiddle>(BwdFault::gradients_overwritten), "");
  EXPECT_NE(fault_of_run<kWide>(BwdFault::values_overwritten), "");
  EXPECT_TRUE(contains(fault_of_run<kWide>(BwdFault::keys_overwritten), "since it was read by a product of wave"));
  EXPECT_NE(fault_of_run<kWide>(BwdFault::numbers_overwritten), "");
  EXPECT_TRUE(
      contains(fault_of_run<kOrderedPersistent>(BwdFault::values_overwritten), "since it was written by a copy"));
  EXPECT_TRUE(contains(fault_of_run<kOrderedMiddle>(BwdFault::values_overwritten), "copies to offset"));
  EXPECT_TRUE(
      contains(fault_of_run<kOrderedMiddle>(BwdFault::keys_overwritten), "since it was read by a product of wave"));
  EXPECT_NE(fault_of_run<kOrderedPersistent>(BwdFault::gradients_overwritten), "");
  EXPECT_NE(fault_of_run<kOrderedPersistent>(BwdFault::numbers_overwritten), "");
}

/// No fault: who has no tile of keys rounds what others add up.
TEST(EmulatedHopperBwd, ABlockMayHaveNoTileOfKeys) {
  BwdCall<kRounding> call;
  EXPECT_EQ(call.run(BwdFault::first_block_idle), "");
  EXPECT_LT(call.error(), kFine);
}

TEST(EmulatedHopperBwd, SumsThatAreRoundedBeforeTheyAreCompleteAreCaughtByTheResult) {
  BwdCall<kRounding> call;
  EXPECT_EQ(call.run(BwdFault::rounded_early), "");
  EXPECT_GT(call.error(), kWrong);
}

/// By those that load a head's queries.
TEST(EmulatedHopperBwd, LatePreprocessIsWaitedFor) {
  const auto expect_wait = [](auto call) {
    call.forget_last_head();
    EXPECT_TRUE(contains(call.run(), "waits for 1 in memory that holds 0"));
  };
  expect_wait(BwdCall<kLate>());
  expect_wait(BwdCall<kWideLate>());
}

TEST(EmulatedHopperBwd, StatisticsOfOtherQueriesAreCaughtByTheResult) {
  BwdCall<> call;
  const std::string fault = call.run(BwdFault::other_statistics);
  EXPECT_TRUE(!fault.empty() || call.error() > kWrong);
}

}  // namespace
}  // namespace tilewise::test
