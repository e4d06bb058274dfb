// Which calls describe to the same problem.
#include "operations/merge/last_call.hpp"

#include "core/recent_plan.hpp"
#include "operations/merge/tensors.hpp"

namespace tilewise::operations::merge {

bool LastCall::is_like(const Call& call) const {
  if (call.layout != layout_ || call.outs.size() != outs_ || call.lses.size() != lses_ || call.douts.size() != douts_ ||
      call.dlses.size() != dlses_) {
    return false;
  }
  std::size_t next = 0;
  bool like = true;
  for_each_tensor(call, [&](const core::ArgumentName&, const TensorView& view, core::Access) {
    like = like && core::same_kind(view, tensors_[next]);
    ++next;
  });
  return like;
}

bool LastCall::remember(const Call& call) {
  tensors_.clear();
  for_each_tensor(call,
                  [&](const core::ArgumentName&, const TensorView& view, core::Access) { tensors_.push_back(view); });
  outs_ = call.outs.size();
  lses_ = call.lses.size();
  douts_ = call.douts.size();
  dlses_ = call.dlses.size();
  layout_ = call.layout;
  return true;
}

}  // namespace tilewise::operations::merge
