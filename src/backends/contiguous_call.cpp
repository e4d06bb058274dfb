// See contiguous_call.hpp.
#include "backends/contiguous_call.hpp"

#include <memory>

#include "core/message.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "operations/linear/linear.hpp"
#include "operations/merge/merge.hpp"
#include "operations/moe/moe.hpp"
#include "operations/quantize/quantize.hpp"
#include "operations/route/route.hpp"

namespace tilewise::backends {

template <typename Op>
gpu::DescribedCall contiguous_call(const typename Op::Problem& problem) {
  gpu::DescribedCall call;
  const auto locate = [&call](TensorView& view, const core::ArgumentName& name) {
    call.tensors.add(view, core::concat(name));
  };
  Op::Schema::with_arguments(problem, [&]<typename Arguments> {
    // Parameters may point into the arguments.
    struct Kept {
      Arguments arguments;
      typename Op::Params params;
    };
    const auto kept =
        std::make_shared<Kept>(Kept{operations::schema::contiguous_arguments<Op, Arguments>(problem, locate), {}});
    kept->params = Op::make_params(typename Op::Call(kept->arguments), problem);
    call.params = std::shared_ptr<const void>(kept, &kept->params);
  });
  return call;
}

template gpu::DescribedCall contiguous_call<operations::KvCache>(const KvCacheProblem& problem);
template gpu::DescribedCall contiguous_call<operations::Linear>(const LinearProblem& problem);
template gpu::DescribedCall contiguous_call<operations::Merge>(const MergeProblem& problem);
template gpu::DescribedCall contiguous_call<operations::Moe>(const MoeProblem& problem);
template gpu::DescribedCall contiguous_call<operations::Quantize>(const QuantizeProblem& problem);
template gpu::DescribedCall contiguous_call<operations::Route>(const RouteProblem& problem);

}  // namespace tilewise::backends
