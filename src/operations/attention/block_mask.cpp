// Block masks in attention's calls; see block_mask.hpp.
#include "operations/attention/block_mask.hpp"

#include <string>
#include <utility>

#include "core/device.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::operations::attention {
namespace {

constexpr std::size_t kAlignment = 64;

class BlockMaskExpandingKernel final : public Kernel {
 public:
  BlockMaskExpandingKernel(std::unique_ptr<core::Kernel> kernel, const AttentionProblem& problem)
      : kernel_(std::move(kernel)),
        scores_(blocked_scores(problem)),
        tables_(problem.tables.size()),
        own_offset_((kernel_->workspace_size() + kAlignment - 1) / kAlignment * kAlignment) {}

  [[nodiscard]] std::string obstacle() const override { return kernel_->obstacle(); }
  void load() override { kernel_->load(); }
  [[nodiscard]] std::size_t workspace_size() const noexcept override {
    return own_offset_ + static_cast<std::size_t>(block_grid(scores_).blocks());
  }
  [[nodiscard]] std::string schedule() const override { return kernel_->schedule(); }

  void launch(const device::AttentionParams& p, void* workspace, void* stream) const override {
    if (core::checks_requested()) check_block_lists(p.block_mask, scores_);
    auto* const states = static_cast<std::uint8_t*>(workspace) + own_offset_;
    write_block_states(p.block_mask, scores_, states);
    attend_with_block_table(p, tables_, block_table(scores_, states),
                            [&](const auto& with_table) { kernel_->launch_on(&with_table, workspace, stream); });
  }

 private:
  std::unique_ptr<core::Kernel> kernel_;
  BlockedScores scores_;
  std::size_t tables_;
  std::size_t own_offset_;
};

}  // namespace

void check_device_block_mask(const Call& call, const AttentionProblem& problem, void* stream) {
  if (has_block_mask(problem) && core::device_checks_requested(call.one("q").device, stream))
    check_device_block_lists(call.options.block_mask, blocked_scores(problem), stream);
}

std::unique_ptr<core::Kernel> expanding_block_mask(std::unique_ptr<core::Kernel> kernel,
                                                   const AttentionProblem& problem) {
  return std::make_unique<BlockMaskExpandingKernel>(std::move(kernel), problem);
}

}  // namespace tilewise::operations::attention
