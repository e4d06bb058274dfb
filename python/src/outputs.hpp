// What the outputs of a call will look like, before anything is allocated for them.
#pragma once

#include "tilewise/attention.hpp"

namespace tilewise::python {

/// A contiguous view of this shape on no memory of its own: enough for describe(), never run.
[[nodiscard]] TensorView contiguous(DType dtype, Device device, int rank,
                                    const std::array<std::int64_t, kMaxRank>& shape);

/// contiguous(), but in layout bhsd with heads and rows stored in the order in which `like` stores them: out and the
/// gradients of a transposed [batch_size, seqlen, num_heads, head_dim] tensor are such tensors too, as those of torch's
/// own attention are, so that the reshape that follows in models copies nothing.
[[nodiscard]] TensorView in_order_of(const TensorView& like, Layout layout, TensorView view);

/// Whether a view has so many elements that a mistake is likelier than a wish.
[[nodiscard]] bool is_huge(const TensorView& view);

/// q's shape with head_dim_v, contiguous; where q or v has no dimension, whatever describe() will refuse.
[[nodiscard]] TensorView planned_out(const TensorView& q, const TensorView& v);

/// f32, or f64 where q is: [batch_size, num_heads_q, seqlen_q]; packed [num_heads_q, total_q].
[[nodiscard]] TensorView planned_lse(const TensorView& q, Layout layout);

/// Of a call that is described but not run: its `out`, which the caller gave, must not overlap an input. Its
/// softmax_lse, which has no memory, is left out.
void check_given_out(ForwardArguments arguments);

/// After a pass that wrote freshly allocated outputs: gives the packed rows that belong to no
/// sequence the values of unused rows, 0 and -inf, instead of what the memory held. An undefined
/// view is skipped, and so is everything where `cu_seqlens` is undefined or not readable here.
void clear_rest(const TensorView& rows, const TensorView& cu_seqlens);
void clear_rest_of_lse(const TensorView& softmax_lse, const TensorView& cu_seqlens);

/// The same on a GPU, where the host does not know which rows these are: before the pass, on its stream, gives every
/// row of a packed output its unused value. Skips undefined views, calls that are not packed, and the CPU.
void clear_before(const TensorView& rows, const TensorView& cu_seqlens, void* stream);
void clear_lse_before(const TensorView& softmax_lse, const TensorView& cu_seqlens, void* stream);

}  // namespace tilewise::python
