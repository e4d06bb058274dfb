# Types of the public functions' arguments and results.
"""Arguments as type checkers see them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Optional, Protocol, TypedDict, TypeVar, Union

Mask = Optional[Literal["causal", "causal_top_left"]]
CacheMask = Optional[Literal["causal"]]
Alignment = Literal["bottom_right", "top_left"]
Layout = Literal["bshd", "sbhd", "bhsd", "thd"]
Activation = Literal["identity", "silu", "gelu", "gelu_tanh", "relu", "relu_squared"]
BlockFormat = Literal[
    "none",
    "fp8_tensor",
    "fp8_row",
    "fp8_1x128",
    "fp8_128x128",
    "fp8_1x128_e8m0",
    "fp8_128x128_e8m0",
    "mxfp8",
    "mxfp4",
    "nvfp4",
]
Score = Literal["softmax", "sigmoid", "sqrt_softplus", "identity"]
ChosenBy = Literal["score", "logits"]
GroupValue = Literal["max", "sum_of_two"]
OutsideGroups = Literal["minus_infinity", "zero"]
Weigh = Literal["score", "softmax_of_chosen", "sigmoid_of_chosen"]
Normalise = Literal["no", "sum_plus_epsilon", "at_least_epsilon"]
Gradient = Literal["dq", "dk", "dv", "dbias", "dsink"]


class Array(Protocol):
    """A torch tensor, a NumPy array, or whatever else speaks DLPack."""

    def __dlpack_device__(self) -> tuple[object, object]:
        """(device type, device number)"""


ArrayT = TypeVar("ArrayT", bound=Array)
# A function of a score's place, an expression's text, or what tilewise.expression.trace made of a function.
ScoreFunction = Union[str, tuple[str, str, tuple[object, ...]], Callable[..., object]]


class KvCacheOptions(TypedDict, total=False):
    """Everything that kv_cache_attention() takes by keyword, return_lse apart."""

    rotary_cos: Optional[Array]
    rotary_sin: Optional[Array]
    rotary_interleaved: bool
    rotary_seqlens: Optional[Array]
    rotary_offset: int
    cache_seqlens: Optional[Union[int, Array]]
    cache_batch_idx: Optional[Array]
    cache_leftpad: Optional[Array]
    block_table: Optional[Array]
    cu_seqlens_q: Optional[Array]
    max_seqlen_q: Optional[int]
    cu_seqlens_k_new: Optional[Array]
    head_dim_v: Optional[int]
    mask: CacheMask
    window: tuple[int, int]
    softmax_scale: Optional[float]
    softcap: float
    alibi_slopes: Optional[Array]
    score_mod: Optional[ScoreFunction]
    mask_mod: Optional[ScoreFunction]
    block_mask: Optional[object]
    sink: Optional[Array]
    key_indices: Optional[Array]
    k_scale: Optional[Union[float, Array]]
    v_scale: Optional[Union[float, Array]]
    num_splits: int
    batch_invariant: bool
    out: Optional[Array]
    implementation: Optional[str]
