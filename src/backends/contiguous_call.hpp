// A contiguous call of an operation with a schema, on stand-ins; see gpu/ahead_of_time.hpp.
#pragma once

#include <memory>

#include "core/message.hpp"
#include "gpu/stand_ins.hpp"
#include "operations/derived/shapes.hpp"

namespace tilewise::backends {

template <typename Op>
[[nodiscard]] gpu::DescribedCall contiguous_call(const typename Op::Problem& problem) {
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

}  // namespace tilewise::backends
