// Heads whose first columns lie behind the others in shared memory, on the emulated machine: every way in and out, of
// heads that are turned beside such that are not.
#include "hopper_paths.hpp"

namespace tilewise::test {
namespace {

const std::string kTwoHeads = "dtype=bf16 num_heads_q=2 ", kLong = " batch_size=2 seqlen_q=200 seqlen_k=330";

TEST(HopperColumns, AreTurnedInEveryTileByNight) {
  const std::string turned = "stages, columns turned";
  for (const std::string dims : {"head_dim=72", "head_dim=72 mask=causal", "head_dim=136 mask=causal", "head_dim=200",
                                 "head_dim=72 window_left=60 window_right=9"}) {
    check(turned, kTwoHeads + dims + kLong);
  }
  check(turned, "dtype=f16 head_dim=136" + kGroups + kLengths);
  check(turned, "dtype=bf16 head_dim=72 mask=causal" + kGroups + kLengths, true);
  // Few queries, the heads of a group in one tile.
  check("columns turned, heads packed", "dtype=bf16 head_dim=72 batch_size=60 seqlen_q=9 seqlen_k=70" + kGroups);
}

/// From registers, and by columns of V that end in another chunk than those of K.
TEST(HopperColumns, LeaveInTheirOrder) {
  check("columns turned", kTwoHeads + "head_dim=72 head_dim_v=136" + kLong);
  check("columns turned", kTwoHeads + "head_dim=200 head_dim_v=72 mask=causal" + kLong);
}

TEST(HopperColumns, AreTurnedBesideOptions) {
  const std::string bf16 = kTwoHeads + "head_dim=72" + kLong;
  check("columns turned", bf16 + " alibi_slopes=[h] sink=query");
  check("columns turned", bf16 + " softcap=20 mask=causal");
  check("columns turned", bf16 + " dropout_p=0.25");
  check("bias in boxes, columns turned", bf16 + " bias=query[1,h,q,k]");
  check("bias in boxes, columns turned", "dtype=f16 num_heads_q=2 head_dim=136" + kLong + " bias=bool[b,1,1,k]");
}

/// The last rows of a sequence leave by threads, which are to find the columns.
TEST(HopperColumns, AreTurnedOfLengths) {
  const std::string packed =
      " layout=thd batch_size=3 max_seqlen_q=230 max_seqlen_k=240 total_q=400 total_k=420 num_heads_q=4 num_heads_k=2";
  check("columns turned", "dtype=bf16 head_dim=72" + packed);
  check("columns turned", "dtype=f16 head_dim=136 mask=causal" + packed);
  check("columns turned", kTwoHeads + "head_dim=72 seqused_q=1 seqused_k=1 leftpad_k=1 mask=causal" + kLong);
  // Of rows that begin between sectors every other time none is.
  check("columns turned", "dtype=bf16 head_dim=72 num_heads_q=3" + kLong);
  check("columns turned", kTwoHeads + "head_dim=72 layout=bhsd" + kLong);
}

}  // namespace
}  // namespace tilewise::test
