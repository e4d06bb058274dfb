// NaN and infinities among a call's inputs: a few of them, in rows that count, at any kind of position that the problem
// has (seen, masked, dropped, in one sequence of several).
#include <bit>
#include <cmath>
#include <limits>

#include "verify/call_tensors.hpp"

namespace tilewise::verify {

bool draws_special_values(std::uint64_t seed) { return Random(seed + 0x51ECu).chance(0.25); }

bool draws_large_values(std::uint64_t seed) {
  return Random(seed + 0x1A26Eu).chance(0.25) && !draws_special_values(seed);  // a fifth of all
}

void CallTensors::plant_in_rows(const TensorView& view, Side side) {
  if (!view.defined() || problem_.batch_size == 0) return;
  const std::int64_t b = special_rng_.integer(0, problem_.batch_size - 1);
  const device::Sequence s = sequence(b);
  const std::int64_t first = side == Side::query ? s.q_row : s.k_row;
  const std::int64_t count = side == Side::query ? s.seqlen_q : s.seqlen_k;
  if (count == 0) return;
  const std::int64_t row = first + special_rng_.pick({special_rng_.integer(0, count - 1), std::int64_t{0}, count - 1});
  const bool is_lse = view.rank == (packed() ? 2 : 3);
  const std::size_t row_axis = std::size_t{!packed()} + std::size_t{is_lse};
  std::int64_t offset = 0;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
    const bool is_batch = !packed() && axis == 0;
    const std::int64_t index = axis == row_axis ? row : is_batch ? b : special_rng_.integer(0, view.shape[axis] - 1);
    offset += index * view.strides[axis];
  }
  store_at(view, offset, special_value(special_rng_));
}

void CallTensors::plant_in_bias() {
  constexpr int kTries = 20;
  TensorView bias = options.bias;
  if (!bias.defined() || bias.dtype == DType::boolean) return;
  for (int n = 0; n < kTries; ++n) {
    std::vector<std::int64_t> position(4, 0);
    std::int64_t offset = 0;
    for (int axis = 0; axis < bias.rank; ++axis) {  // leading dimensions may have been left out
      const auto a = static_cast<std::size_t>(axis);
      if (bias.shape[a] == 0) return;
      const std::int64_t index = special_rng_.integer(0, bias.shape[a] - 1);
      position[a + 4 - static_cast<std::size_t>(bias.rank)] = index;
      offset += index * bias.strides[a];
    }
    if (bias_used(position)) return store_at(bias, offset, special_value(special_rng_));
  }
}

void CallTensors::plant_special_values() {
  const std::int64_t count = special_rng_.integer(0, 3);  // none: the backward pass may have its own
  for (std::int64_t n = 0; n < count; ++n) {
    switch (special_rng_.integer(0, 7)) {
      case 0:
      case 1:
        plant_in_rows(q_, Side::query);
        break;
      case 2:
      case 3:
        plant_in_rows(k_, Side::key);
        break;
      case 4:
      case 5:
        plant_in_rows(v_, Side::key);
        break;
      case 6:
        plant_in_bias();
        break;
      default:
        if (!options.sink.defined()) break;
        store_at(options.sink, special_rng_.integer(0, problem_.num_heads_q - 1) * options.sink.strides[0],
                 special_value(special_rng_));
    }
  }
}

void CallTensors::plant_special_gradients() {
  const std::int64_t count = special_rng_.integer(0, 2);
  for (std::int64_t n = 0; n < count; ++n) plant_in_rows(special_rng_.chance(0.3) ? dlse_ : dout_, Side::query);
}

}  // namespace tilewise::verify
