// What `tilewise verify --report` checks on each implementation of a GPU: the features of attention and of the KV cache
// step, with a problem for each.
#pragma once

#include <string>
#include <vector>

namespace tilewise::tools {

struct FeatureProblem {
  std::string feature;
  std::string pass;  ///< "forward", "backward", "step" or "append"
  std::string problem;
  bool some_gpus = false;  ///< has instructions of its own, which not every kind of GPU has
};

[[nodiscard]] std::vector<FeatureProblem> feature_table();

}  // namespace tilewise::tools
