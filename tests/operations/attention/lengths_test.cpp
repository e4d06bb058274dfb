// Values of cu_seqlens, seqused and leftpad that a sequence can't have.
#include "../../core/support.hpp"

namespace tilewise {
namespace {

using test::expect_invalid;
using test::SmallCall;

struct BadLengths {
  const char* sentence;
  void (*change)(SmallCall&);
};

class PackedLengths : public testing::TestWithParam<BadLengths> {};

TEST_P(PackedLengths, NameTheElement) {
  SmallCall call = SmallCall::packed();
  GetParam().change(call);
  expect_invalid(GetParam().sentence, [&] { (void)describe(call.forward); });
}

INSTANTIATE_TEST_SUITE_P(
    All, PackedLengths,
    testing::Values(BadLengths{"cu_seqlens_q[0]: must be 0 (got 1)",
                               [](SmallCall& c) { c.forward.options.cu_seqlens_q = c.lengths({1, 2, 3}); }},
                    BadLengths{"cu_seqlens_k[2]: must be >= cu_seqlens_k[1] = 4 (got 3)",
                               [](SmallCall& c) { c.forward.options.cu_seqlens_k = c.lengths({0, 4, 3}); }},
                    BadLengths{
                        "cu_seqlens_q[1]: must be >= cu_seqlens_q[0] = 0 (got -2147483648)",
                        [](SmallCall& c) { c.forward.options.cu_seqlens_q = c.lengths({0, -2147483647 - 1, 3}); }},
                    BadLengths{"cu_seqlens_k[2]: must be <= 5, the rows of its tensor (got 6)",
                               [](SmallCall& c) { c.forward.options.cu_seqlens_k = c.lengths({0, 1, 6}); }},
                    BadLengths{"max_seqlen_k: must be >= every sequence's length (got 3, but sequence 1 has 4 rows)",
                               [](SmallCall& c) { c.forward.options.max_seqlen_k = 3; }},
                    BadLengths{"seqused_q[0]: must be 0 to 2, the sequence's query rows (got 3)",
                               [](SmallCall& c) { c.forward.options.seqused_q = c.lengths({3, 1}); }},
                    BadLengths{"seqused_k[1]: must be 0 to 4, the sequence's key rows (got -1)",
                               [](SmallCall& c) { c.forward.options.seqused_k = c.lengths({1, -1}); }},
                    BadLengths{"leftpad_k[0]: must be 0 to 1, the sequence's key rows (got 2)",
                               [](SmallCall& c) { c.forward.options.leftpad_k = c.lengths({2, 0}); }}));

class DenseLengths : public testing::TestWithParam<BadLengths> {};

TEST_P(DenseLengths, NameTheElement) {
  SmallCall call;
  GetParam().change(call);
  expect_invalid(GetParam().sentence, [&] { (void)describe(call.forward); });
}

INSTANTIATE_TEST_SUITE_P(
    All, DenseLengths,
    testing::Values(BadLengths{"seqused_q[1]: must be 0 to 3, the sequence's query rows (got 4)",
                               [](SmallCall& c) { c.forward.options.seqused_q = c.lengths({3, 4}); }},
                    BadLengths{"leftpad_k[0]: must be 0 to 5, the sequence's key rows (got -1)",
                               [](SmallCall& c) { c.forward.options.leftpad_k = c.lengths({-1, 0}); }},
                    BadLengths{"seqused_k[1]: leftpad_k + seqused_k must be <= 5, the sequence's key rows (got 3 + 3)",
                               [](SmallCall& c) {
                                 c.forward.options.leftpad_k = c.lengths({5, 3});
                                 c.forward.options.seqused_k = c.lengths({0, 3});
                               }}));

TEST(Lengths, RowsMayBelongToNoSequence) {
  SmallCall call = SmallCall::packed();
  call.forward.options.cu_seqlens_q = call.lengths({0, 0, 1});
  call.forward.options.cu_seqlens_k = call.lengths({0, 2, 2});
  const Problem problem = describe(call.forward);
  EXPECT_EQ(problem.seqlen_q, 1);
  EXPECT_EQ(problem.seqlen_k, 2);
  EXPECT_EQ(problem.total_q, 3);
}

}  // namespace
}  // namespace tilewise
