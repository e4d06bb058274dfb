// Every look-up of a call that the reference would do; see reference_backend.hpp.
#include "backends/reference/reference_backend.hpp"
#include "backends/reference/reference_math.hpp"
#include "core/parallel.hpp"

namespace tilewise::backends {

void check_look_ups(const device::AttentionParams& p, const Problem& problem) {
  using reference::Head, reference::HeadContext, reference::Rows;
  const reference::Numbers numbers(problem);
  core::parallel_for(p.batch_size * p.num_heads_q, core::num_threads(), [&](std::int64_t task, int) {
    const std::int64_t b = task / p.num_heads_q, h = task % p.num_heads_q;
    const HeadContext context(p, numbers, b, h);
    const device::Sequence& s = context.sequence;
    const std::int64_t head_k = h / (p.num_heads_q / p.num_heads_k);
    const Rows q = Head(p.q, problem.dtype, b, s.q_row, h, p.head_dim).read_rows(s.seqlen_q);
    const Rows k = Head(p.k, problem.dtype, b, s.k_row, head_k, p.head_dim).read_rows(s.seqlen_k);
    for (std::int64_t i = 0; i < s.seqlen_q && !core::abandoned(); ++i) {
      const device::KeyRange keys = context.keys(i);
      for (std::int64_t j = keys.begin; j < keys.end; ++j) (void)context.score(i, j, q[i], k[j]);
    }
    context.check_look_ups();
  });
}

}  // namespace tilewise::backends
