// O(seqlen) memory: what a plan asks for grows with the rows it is given, never with their square.
#include "implementation_test.hpp"

namespace tilewise::test {
namespace {

class WorkspaceSize : public ImplementationTest {
 protected:
  [[nodiscard]] double workspace(const std::string& text) const {
    Problem problem = parse_problem(text);
    problem.dtype = dtypes().front();
    return static_cast<double>(plan(problem, {GetParam()}).workspace_size());
  }
  /// Bytes of the rows of q, k, v and out in fp32.
  static double rows_of(double rows, double heads_and_dim) { return 16.0 * rows * heads_and_dim; }
};

TEST_P(WorkspaceSize, IsLinearInTheSequenceLength) {
  for (const std::string operation : {"attention_forward", "attention_backward"}) {
    for (const char* options : {"", " batch_invariant=1", " sink=1 alibi_slopes=[h] dropout_p=0.1 mask=causal"}) {
      const auto at = [&](std::int64_t seqlen) {
        return workspace(operation + " seqlen_q=" + std::to_string(seqlen) + " num_heads_q=8 head_dim=64" + options);
      };
      EXPECT_LE(at(32768), rows_of(32768, 8 * 64) * 8) << operation << options;
      EXPECT_LE(at(65536), 2.1 * at(32768) + 1e6) << operation << options;
    }
  }
}

TEST_P(WorkspaceSize, OfDecodingIsFarBelowTheCache) {
  EXPECT_LE(workspace("attention_forward batch_size=4 seqlen_q=1 seqlen_k=131072 num_heads_q=32 num_heads_k=8 "
                      "head_dim=128"),
            0.1 * rows_of(4 * 131072, 8 * 128));
}

TEST_P(WorkspaceSize, OfPackedInputFollowsItsTotal) {
  for (const std::string operation : {"attention_forward", "attention_backward"}) {
    for (const char* options : {"", " batch_invariant=1", " deterministic=1"}) {
      if (operation == "attention_forward" && std::string(options) == " deterministic=1") continue;
      const std::string text = operation +
                               " layout=thd batch_size=1000 max_seqlen_q=8192 max_seqlen_k=8192 total_q=20000 "
                               "total_k=20000 num_heads_q=8 head_dim=64" +
                               options;
      EXPECT_LE(workspace(text), rows_of(20000, 8 * 64) * 8) << text;
    }
  }
}

TILEWISE_FOR_EVERY_IMPLEMENTATION(WorkspaceSize);

}  // namespace
}  // namespace tilewise::test
