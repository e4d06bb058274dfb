// A call of attention with plain contiguous tensors, and how much work it is: what `tilewise bench` and `tilewise tune`
// measure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/device_memory.hpp"
#include "random_tensors.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::tools {

/// Normalised random inputs; lengths use everything there is, packed sequences are of equal length.
class SampleCall {
 public:
  /// For a backward problem of the CPU this also runs the forward pass, whose results it needs.
  explicit SampleCall(const Problem& problem);

  /// Moves the tensors to a GPU, and runs the forward pass there for a backward problem. Throws Error(runtime) where
  /// its memory does not hold them.
  void move_to(Device device);

  /// Computes once with a plan of the problem that the tensors describe to.
  void run(const Plan& plan) const;

  /// What the tensors describe to: the constructor's problem, less dimensions of a bias that are 1 anyway.
  [[nodiscard]] const Problem& problem() const noexcept { return problem_; }
  /// Floating-point operations of the visible (query, key) pairs: 2 per multiply-add of the matrix
  /// products, two of them forward and five backward. A bool bias counts as all true.
  [[nodiscard]] double flops() const;
  /// Bytes of all inputs and outputs, each once: the least that memory must move.
  [[nodiscard]] double bytes() const noexcept { return tensors_.bytes(); }

 private:
  TensorView add(std::size_t place);
  TensorView add_indices(const std::vector<std::int64_t>& sizes);
  TensorView add_starts(std::int32_t length, std::string_view name);
  TensorView add_lengths(std::int32_t length, std::string_view name);
  /// Of each sequence, as the tensor of this name counts them.
  [[nodiscard]] std::int32_t length_of(std::string_view name) const;
  [[nodiscard]] std::vector<TensorView> add_tables();
  void add_block_mask();

  Problem problem_;
  RandomTensors tensors_;
  std::vector<core::DeviceMemory> on_device_;  ///< where they have been moved
  ForwardArguments forward_;
  BackwardArguments backward_;
};

}  // namespace tilewise::tools
