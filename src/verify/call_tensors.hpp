// The tensors of one attention call, drawn from a seed for a Problem: random strides and placement, poison
// wherever nothing may look, guarded outputs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/common/mask.h"
#include "tilewise/attention.hpp"
#include "verify/drawn_call.hpp"

namespace tilewise::verify {

/// Everything a call reads, a pure function of (problem, seed, values). For a backward pass, out and
/// softmax_lse come from the reference's forward pass, rounded to their dtypes. An output's view has the dimensions
/// [batch_size, seqlen, num_heads, dim] (packed: [total, num_heads, dim]) whatever the layout; softmax_lse, dbias and
/// dsink their own.
class CallTensors final : public DrawnCall {
 public:
  CallTensors(const Problem& problem, std::uint64_t seed, Values values = Values::ordinary);

  /// What describe() makes of the tensors: `problem` in canonical form.
  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] Values values() const { return values_; }
  /// May be changed by tests, within what the tensors allow.
  AttentionOptions options;

  [[nodiscard]] AnyProblem any_problem() const override { return problem_; }
  [[nodiscard]] std::vector<Output> make_outputs(std::uint64_t seed) const override;
  /// Arguments that write into `outputs`, which must outlive them.
  [[nodiscard]] ForwardArguments forward_arguments(const std::vector<Output>& outputs) const;
  [[nodiscard]] BackwardArguments backward_arguments(const std::vector<Output>& outputs) const;

  using DrawnCall::plan;
  [[nodiscard]] Plan plan(std::string_view implementation, const std::vector<Output>& outputs,
                          const Change& change) const override;
  void launch(const Plan& plan, const std::vector<Output>& outputs, void* workspace,
              const Change& change) const override;
  void for_each_tensor(const std::vector<Output>& outputs, const Change& change,
                       const TensorVisitor& visit) const override;
  [[nodiscard]] std::vector<ErrorBounds> bounds(const std::vector<Output>& expected, double tanh_error) const override;
  /// The part of sequence b that counts.
  [[nodiscard]] device::Sequence sequence(std::int64_t b) const;

 private:
  enum class Side : std::uint8_t { query, key };
  [[nodiscard]] bool forward() const { return problem_.operation == Operation::attention_forward; }
  [[nodiscard]] bool packed() const { return problem_.layout == Layout::thd; }
  [[nodiscard]] std::vector<std::int64_t> data_shape(Side side, std::int64_t heads, std::int64_t dim) const;
  [[nodiscard]] std::vector<std::int64_t> lse_shape() const;
  [[nodiscard]] std::vector<int> data_order() const;
  [[nodiscard]] Placement data_placement(Random& rng) const;
  [[nodiscard]] std::vector<std::int64_t> bias_shape() const;
  [[nodiscard]] TensorView in_layout(const TensorView& view) const;
  [[nodiscard]] TensorView output_view(const std::vector<Output>& outputs, std::string_view name) const;
  [[nodiscard]] std::int64_t rows_of_sequences(Side side) const;
  [[nodiscard]] std::vector<Output> make_forward_outputs(Random& rng, bool softmax_lse) const;
  [[nodiscard]] std::vector<Output> make_gradients(Random& rng) const;
  [[nodiscard]] Output data_output(std::string name, Side side, std::int64_t heads, std::int64_t dim, Random& rng,
                                   DType dtype) const;

  TensorView add_input(std::string name, DType dtype, std::vector<std::int64_t> shape, const Placement& placement);
  TensorView add_lengths(std::string name, const std::vector<std::int64_t>& values);
  enum class Part : std::uint8_t { used, unused };
  /// Stores draw(row within the part's sequence, its rows) in the rows of sequences that count (or don't).
  template <typename Draw>
  void fill_rows(const TensorView& view, Side side, Part part, Draw&& draw);
  TensorView add_rows(std::string name, Side side, std::int64_t heads, std::int64_t dim);
  TensorView add_shared_rows(std::string name, Side side, std::int64_t heads, std::int64_t dim);
  std::vector<std::int64_t> draw_cu_seqlens(std::int64_t longest, std::int64_t total);
  void draw_lengths();
  void draw_qkv();
  void place_qkv();
  void draw_bias();
  [[nodiscard]] bool bias_used(std::span<const std::int64_t> position) const;
  void draw_head_options();
  void draw_tables();
  void draw_block_mask();
  /// Checks that a block mask which is made of mask_mod says what that does.
  void check_made_block_mask() const;
  void draw_scales();
  void draw_seed();
  void draw_indices(std::uint64_t seed);
  void draw_gradients();
  /// Puts up to three special values into tensors that are defined, of those that the passes have in common or of the
  /// backward pass's own.
  void plant_special_values();
  void plant_special_gradients();
  void plant_in_rows(const TensorView& view, Side side);
  void plant_in_bias();
  /// Makes scores, the bias's numbers or sinks large, or several of them.
  void draw_large_values();
  void draw_large_scores();
  void draw_large_bias();

  Problem problem_;
  Values values_;
  Random rng_;
  Random special_rng_;  ///< of its own, so that all else is as with ordinary values
  bool aligned_;        ///< rows of q, k, v and what is like them start on 16 bytes, where packing lets them
  device::AttentionParams lengths_{};                       ///< what sequence() needs
  TensorView q_, k_, v_, out_, softmax_lse_, dout_, dlse_;  ///< dimensions as in Output
};

}  // namespace tilewise::verify
