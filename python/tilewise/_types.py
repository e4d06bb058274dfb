# Types of the public functions' keyword arguments, for type checkers alone.
"""Keyword arguments of attention() and explain(), as type checkers see them."""

from __future__ import annotations

from typing import Any, Literal, Optional, TypedDict, Union

Mask = Optional[Literal["causal", "causal_top_left"]]
Alignment = Literal["bottom_right", "top_left"]
Layout = Literal["bshd", "sbhd", "bhsd", "thd"]
Gradient = Literal["dq", "dk", "dv", "dbias", "dsink"]


class AttentionOptions(TypedDict, total=False):
    """Everything but q, k, v and return_lse. Arrays are of q's kind; see attention() for the meaning."""

    mask: Mask
    alignment: Alignment
    window: tuple[int, int]
    softmax_scale: Optional[float]
    softcap: float
    bias: Optional[Any]
    alibi_slopes: Optional[Any]
    sink: Optional[Any]
    dropout_p: float
    seed: Optional[Union[int, Any]]
    cu_seqlens_q: Optional[Any]
    cu_seqlens_k: Optional[Any]
    max_seqlen_q: Optional[int]
    max_seqlen_k: Optional[int]
    seqused_q: Optional[Any]
    seqused_k: Optional[Any]
    leftpad_k: Optional[Any]
    q_scale: Optional[Union[float, Any]]
    k_scale: Optional[Union[float, Any]]
    v_scale: Optional[Union[float, Any]]
    layout: Layout
    deterministic: bool
    batch_invariant: bool
    out: Optional[Any]
    implementation: Optional[str]
