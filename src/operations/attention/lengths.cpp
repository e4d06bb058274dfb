// Reading and checking the length tensors of a call: those the host can read always, those of a GPU on request.
#include "operations/attention/lengths.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include "core/device.hpp"
#include "core/message.hpp"
#include "device/common/mask.h"
#include "operations/host_copies.hpp"
#include "operations/selected_keys.hpp"

namespace tilewise::operations::attention {
namespace {

using namespace core;  // checks of tensors, and the errors they throw

const std::int32_t* int32_data(const TensorView& view) { return static_cast<const std::int32_t*>(view.data); }

/// Rows of sequence b: from cu_seqlens where packed, else the tensor's own.
class Rows {
 public:
  Rows(const TensorView& cu_seqlens, std::int64_t seqlen)
      : cu_seqlens_(cu_seqlens.defined() ? int32_data(cu_seqlens) : nullptr), seqlen_(seqlen) {}
  [[nodiscard]] std::int64_t operator[](std::int64_t b) const {
    return cu_seqlens_ ? std::int64_t{cu_seqlens_[b + 1]} - cu_seqlens_[b] : seqlen_;
  }

 private:
  const std::int32_t* cu_seqlens_;
  std::int64_t seqlen_;
};

void check_within(const TensorView& lengths, std::string_view name, const Rows& rows, std::int64_t batch_size,
                  std::string_view rows_name) {
  if (!lengths.defined()) return;
  const std::int32_t* values = int32_data(lengths);
  for (std::int64_t b = 0; b < batch_size; ++b) {
    if (values[b] < 0 || values[b] > rows[b]) {
      invalid_argument(name, "[", b, "]: must be 0 to ", rows[b], ", the sequence's ", rows_name, " (got ", values[b],
                       ")");
    }
  }
}

}  // namespace

std::int64_t check_cu_seqlens(const TensorView& cu_seqlens, std::string_view name, std::int64_t total,
                              std::optional<std::int64_t> max_seqlen, std::string_view max_name) {
  const std::int32_t* values = int32_data(cu_seqlens);
  const std::int64_t batch_size = cu_seqlens.shape[0] - 1;
  if (values[0] != 0) invalid_argument(name, "[0]: must be 0 (got ", values[0], ")");
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < batch_size; ++b) {
    const std::int64_t rows = std::int64_t{values[b + 1]} - values[b];
    if (rows < 0) {
      invalid_argument(name, "[", b + 1, "]: must be >= ", name, "[", b, "] = ", values[b], " (got ", values[b + 1],
                       ")");
    }
    if (max_seqlen && rows > *max_seqlen) {
      invalid_argument(max_name, ": must be >= every sequence's length (got ", *max_seqlen, ", but sequence ", b,
                       " has ", rows, " rows)");
    }
    longest = std::max(longest, rows);
  }
  if (values[batch_size] > total) {
    invalid_argument(name, "[", batch_size, "]: must be <= ", total, ", the rows of its tensor (got ",
                     values[batch_size], ")");
  }
  return longest;
}

void check_used_lengths(const AttentionOptions& o, const AttentionProblem& problem) {
  const Rows rows_q(o.cu_seqlens_q, problem.seqlen_q), rows_k(o.cu_seqlens_k, problem.seqlen_k);
  check_within(o.seqused_q, "seqused_q", rows_q, problem.batch_size, "query rows");
  check_within(o.seqused_k, "seqused_k", rows_k, problem.batch_size, "key rows");
  check_within(o.leftpad_k, "leftpad_k", rows_k, problem.batch_size, "key rows");
  if (!o.seqused_k.defined() || !o.leftpad_k.defined()) return;
  for (std::int64_t b = 0; b < problem.batch_size; ++b) {
    const std::int64_t end = std::int64_t{int32_data(o.leftpad_k)[b]} + int32_data(o.seqused_k)[b];
    if (end > rows_k[b]) {
      invalid_argument("seqused_k[", b, "]: leftpad_k + seqused_k must be <= ", rows_k[b],
                       ", the sequence's key rows (got ", int32_data(o.leftpad_k)[b], " + ", int32_data(o.seqused_k)[b],
                       ")");
    }
  }
}

namespace {

/// A copy of a call's length tensors that the host can read.
class HostLengths {
 public:
  HostLengths(const AttentionOptions& options, void* stream) : options_(options), stream_(stream) {
    for (TensorView* view : {&options_.cu_seqlens_q, &options_.cu_seqlens_k, &options_.seqused_q, &options_.seqused_k,
                             &options_.leftpad_k}) {
      if (view->defined() && view->numel() > 0) fetch(*view);
    }
  }
  [[nodiscard]] const AttentionOptions& options() const { return options_; }

 private:
  void fetch(TensorView& view) {
    std::vector<std::int32_t>& copy = copies_[used_++];
    copy.resize(static_cast<std::size_t>(view.numel()));
    device_system(view.device.type)
        ->copy_to_host(view.device.index, copy.data(), view.data, copy.size() * sizeof(std::int32_t), stream_);
    view.data = copy.data();
    view.device = {};
  }

  AttentionOptions options_;
  void* stream_;
  std::array<std::vector<std::int32_t>, 5> copies_;
  std::size_t used_ = 0;
};

}  // namespace

void check_selected_keys(const device::AttentionParams& params, const AttentionProblem& problem) {
  for (std::int64_t b = 0; b < problem.batch_size; ++b) {
    const device::Sequence s = device::sequence_of(params, b);
    check_key_indices(params.key_indices, index_heads(problem), b, s.q_row, s.seqlen_q, s.seqlen_k);
  }
}

void check_device_lengths(const Call& call, const AttentionProblem& problem, void* stream) {
  const bool any =
      problem.layout == Layout::thd || problem.seqused_q || problem.seqused_k || problem.leftpad_k || problem.top_k > 0;
  if (!any || !device_checks_requested(call.one("q").device, stream)) return;
  const HostLengths host(call.options, stream);
  const AttentionOptions& o = host.options();
  if (problem.layout == Layout::thd) {
    (void)check_cu_seqlens(o.cu_seqlens_q, "cu_seqlens_q", problem.total_q, problem.seqlen_q, "max_seqlen_q");
    (void)check_cu_seqlens(o.cu_seqlens_k, "cu_seqlens_k", problem.total_k, problem.seqlen_k, "max_seqlen_k");
  }
  check_used_lengths(o, problem);
  if (problem.top_k == 0) return;
  device::AttentionParams params = make_params(call, problem);
  params.cu_seqlens_q = int32_data(o.cu_seqlens_q);
  params.cu_seqlens_k = int32_data(o.cu_seqlens_k);
  params.seqused_q = int32_data(o.seqused_q);
  params.seqused_k = int32_data(o.seqused_k);
  params.leftpad_k = int32_data(o.leftpad_k);
  HostCopies copies(problem.device, call.one("q").device.index, stream);
  copies.fetch(params.key_indices.data, o.key_indices);
  check_selected_keys(params, problem);
}

}  // namespace tilewise::operations::attention
