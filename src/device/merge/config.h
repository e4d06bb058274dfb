// What each kernel of merge is specialised on; see device/attention/config.h for what a config is.
#pragma once

#include "device/common/tensors.h"

namespace tilewise::device {

/// Element types of parts, out and their gradients. Mixed: each part says its own, f32 or that of out.
enum PartType : int32_t { kPartF32 = kNumberF32, kPartBf16 = kNumberBf16, kPartF16 = kNumberF16, kPartMixed = 3 };

/// Columns of a row that a lane takes at a time.
inline constexpr int kMergeCols = kLaneColumns;

/// Of every kernel that touches rows. A wave has a row for each lanes_a_row lanes, of which each takes `passes` times
/// kMergeCols columns.
struct MergeConfig {
  int32_t part_type = kPartBf16, out_type = kPartBf16;  // PartType; out_type of dout too
  int32_t lanes_a_row = 16, passes = 1, waves = 4;
  int32_t vector_rows = 1;  // rows start on 16 bytes and hold a multiple of kMergeCols columns
  int32_t stacked = 0;      // the parts are one tensor: any number of them in one launch
  int32_t sink = 0;         // joins in this launch
  int32_t resumes = 0;      // what launches before have merged is a part too
  int32_t pauses = 0;       // launches follow: the result goes to the workspace

  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("part_type", c.part_type), visit("out_type", c.out_type), visit("lanes_a_row", c.lanes_a_row);
    visit("passes", c.passes), visit("waves", c.waves), visit("vector_rows", c.vector_rows);
    visit("stacked", c.stacked), visit("sink", c.sink), visit("resumes", c.resumes), visit("pauses", c.pauses);
  }
};

struct MergeBwdDsinkConfig {
  int32_t waves = 8;
  template <class Config, class Visit>
  static constexpr void for_each_field(Config& c, const Visit& visit) {
    visit("waves", c.waves);
  }
};

}  // namespace tilewise::device
