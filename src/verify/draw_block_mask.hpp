// Block masks of drawn calls, for random problems of every operation that has scores.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "operations/block_mask.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"
#include "verify/random.hpp"

namespace tilewise::verify {

/// Makes an input, of int32, that any strides and poison lie between.
using AddList = std::function<TensorView(std::string name, std::vector<std::int64_t> shape)>;

/// The tensors of a problem's mask, with lists in any order and poison behind them. Empty where it has none.
[[nodiscard]] std::vector<TensorView> drawn_block_mask(const operations::BlockedScores& scores, const AddList& add,
                                                       Random& rng);

[[nodiscard]] inline BlockMaskShape drawn_block_mask_shape(Random& rng) {
  const auto size = [&rng] { return rng.pick<std::int64_t>({16, 16, 32, 48, 64, 128, 256}); };
  return {size(), size(), rng.chance(0.5), rng.chance(0.5), rng.chance(0.7)};
}

}  // namespace tilewise::verify
