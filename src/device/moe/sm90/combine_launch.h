// The last step of a layer as a launch of its own.
#pragma once

#include "device/moe/sm90/combine.h"
#include "device/moe/sm90/config.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeCombineConfig C>
class Sm90MoeCombine {
  using Machine = typename Ops::Machine;

 public:
  using Params = MoeCombineParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const MoeCombineParams& p, Shared&) {
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    combine_parts<Machine, C.type>(p.shape, p.parts, p.out, Machine::block() * C.threads() + Machine::thread(),
                                   Machine::blocks() * C.threads(), place_of_slot<Machine>(p.shape, p.sorted));
  }
};

}  // namespace tilewise::device
