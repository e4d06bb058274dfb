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
  auto params = operations::schema::contiguous_params<Op>(
      problem,
      [&call](TensorView& view, const core::ArgumentName& name) { call.tensors.add(view, core::concat(name)); });
  call.params = std::make_shared<const typename Op::Params>(std::move(params));
  return call;
}

}  // namespace tilewise::backends
