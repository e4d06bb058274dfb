# flash_attn.modules.block: a layer of a transformer around a mixer and an MLP, with the residual sum before or after
# the norm.
"""Block and ParallelBlock."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Optional

import torch
from torch import Tensor, nn

from tilewise.compat.flash_attn.modules._stochastic_depth import StochasticDepth
from tilewise.compat.flash_attn.modules.mha import MHA
from tilewise.compat.flash_attn.modules.mlp import Mlp
from tilewise.compat.flash_attn.ops import rms_norm
from tilewise.compat.flash_attn.ops.triton.layer_norm import RMSNorm, layer_norm_fn

__all__ = ["Block", "ParallelBlock"]

_Maker = Optional[Callable[..., Any]]
_RMS_NORMS = (RMSNorm, rms_norm.RMSNorm)


class _Layer(nn.Module):
    """What both blocks share: the parts, marks on the norms' parameters, the check of a fused norm."""

    norm1: Any
    dropout1: Any

    def _make_parts(self, dim: int, mixer_cls: _Maker, mlp_cls: _Maker) -> tuple[Any, Any]:
        mixer_cls = partial(MHA, num_heads=dim // 64) if mixer_cls is None else mixer_cls
        mlp_cls = partial(Mlp, hidden_features=4 * dim) if mlp_cls is None else mlp_cls
        return mixer_cls(dim), mlp_cls(dim)

    def _check_fused(self) -> None:
        for name, part, kinds in (
            ("norm_cls", self.norm1, (nn.LayerNorm, *_RMS_NORMS)),
            ("dropout_cls", self.dropout1, (nn.Dropout,)),
        ):
            names = " or ".join(dict.fromkeys(kind.__name__ for kind in kinds))
            words = f"{name}: must make {names} with fused_dropout_add_ln"
            assert isinstance(part, kinds), f"{words} (got {type(part).__name__})"

    def _mark(self, sequence_parallel: bool, mark_shared_params: bool) -> None:
        """For utils.distributed: which gradients are summed over a group, and which parameters are given to all."""
        norms = [self.norm1, *([self.norm2] if hasattr(self, "norm2") else [])]
        for parameter in (parameter for norm in norms for parameter in norm.parameters()):
            if sequence_parallel:
                parameter._sequence_parallel = True
            if mark_shared_params:
                parameter._shared_params = True

    def allocate_inference_cache(self, batch_size: int, max_seqlen: int, dtype: Any = None, **kwargs: Any) -> Any:
        """The mixer's."""
        mixer: Any = self.mixer
        return mixer.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype, **kwargs)


class Block(_Layer):
    """A layer with a mixer and an MLP one after the other.

    With prenorm it is: dropout, sum with the residual, norm, mixer, dropout, sum, norm, MLP, and returns (MLP's output,
    the sum), so that dropout, sum and norm stand together; without, mixer, dropout, sum, norm, MLP, dropout, sum, norm.

    Args:
        dim: hidden_dim.
        mixer_cls, mlp_cls: Make the parts from dim; None means MHA with heads of 64, and Mlp. nn.Identity: no MLP.
        norm_cls, dropout_cls: Make the norms and dropouts.
        resid_dropout1, resid_dropout2, drop_path1, drop_path2: Probabilities.
        fused_dropout_add_ln: Dropout, sum and norm go by layer_norm_fn, in fp32 up to the end.
        return_residual: Mixer and MLP return their input too, which then is what is summed (without prenorm).
        residual_in_fp32: The sum is kept in fp32 (with prenorm).
        sequence_parallel, mark_shared_params: Mark the norms' parameters for utils.distributed.
    """

    def __init__(
        self,
        dim: int,
        mixer_cls: _Maker = None,
        mlp_cls: _Maker = None,
        norm_cls: Callable[..., Any] = nn.LayerNorm,
        dropout_cls: Callable[..., Any] = nn.Dropout,
        prenorm: bool = True,
        resid_dropout1: float = 0.0,
        resid_dropout2: float = 0.0,
        drop_path1: float = 0.0,
        drop_path2: float = 0.0,
        fused_dropout_add_ln: bool = False,
        return_residual: bool = False,
        residual_in_fp32: bool = False,
        sequence_parallel: bool = False,
        mark_shared_params: bool = False,
    ) -> None:
        super().__init__()
        assert prenorm or not residual_in_fp32, "residual_in_fp32: must come with prenorm=True"
        self.prenorm, self.fused_dropout_add_ln = prenorm, fused_dropout_add_ln
        self.return_residual, self.residual_in_fp32 = return_residual, residual_in_fp32
        self.mixer, mlp = self._make_parts(dim, mixer_cls, mlp_cls)
        self.dropout1 = dropout_cls(resid_dropout1)
        self.drop_path1 = StochasticDepth(drop_path1, mode="row")
        self.norm1 = norm_cls(dim)
        self.mlp = mlp
        if not isinstance(mlp, nn.Identity):
            self.dropout2 = dropout_cls(resid_dropout2)
            self.drop_path2 = StochasticDepth(drop_path2, mode="row")
            self.norm2 = norm_cls(dim)
        if fused_dropout_add_ln:
            self._check_fused()
        self._mark(sequence_parallel, mark_shared_params)

    def _normalized(
        self, x: Tensor, residual: Optional[Tensor], dropout: Any, drop_path: Any, norm: Any
    ) -> tuple[Tensor, Tensor]:
        """(norm of the sum of x, dropped, and the residual; that sum)."""
        if self.fused_dropout_add_ln:
            rowscale = None
            if self.training and drop_path.p > 0.0:
                rowscale = drop_path(torch.ones(x.shape[:-1], device=x.device, dtype=x.dtype))
            out, total = layer_norm_fn(
                x, norm.weight, norm.bias, residual, eps=norm.eps, dropout_p=dropout.p if self.training else 0.0,
                rowscale=rowscale, prenorm=True, residual_in_fp32=self.residual_in_fp32,
                is_rms_norm=isinstance(norm, _RMS_NORMS),
                zero_centered_weight=getattr(norm, "zero_centered_weight", False),
            )  # fmt: skip
            return out, total
        total = drop_path(dropout(x))
        if residual is not None:
            total = total + residual
        out = norm(total.to(norm.weight.dtype))
        return out, total.float() if self.residual_in_fp32 else total

    def forward(
        self,
        hidden_states: Tensor,
        residual: Optional[Tensor] = None,
        mixer_subset: Any = None,
        mixer_kwargs: Optional[dict[str, Any]] = None,
    ) -> Any:
        """One layer.

        Args:
            hidden_states: [batch_size, seqlen, dim].
            residual: The sum so far, with prenorm; None in the first layer.
            mixer_subset: Index of the tokens that go on, with prenorm and a mixer that takes it.
            mixer_kwargs: Further arguments of the mixer.

        Returns:
            (hidden_states, residual) with prenorm, else hidden_states.
        """
        kwargs = {} if mixer_kwargs is None else dict(mixer_kwargs)
        if not self.prenorm:
            assert residual is None, "residual: must be None without prenorm"
            return self._postnorm(hidden_states, kwargs)
        hidden_states, residual = self._normalized(
            hidden_states, residual, self.dropout1, self.drop_path1, self.norm1
        )  # fmt: skip
        if mixer_subset is not None:
            kwargs["mixer_subset"], residual = mixer_subset, residual[:, mixer_subset]
        hidden_states = self.mixer(hidden_states, **kwargs)
        if not isinstance(self.mlp, nn.Identity):
            hidden_states, residual = self._normalized(
                hidden_states, residual, self.dropout2, self.drop_path2, self.norm2
            )  # fmt: skip
            hidden_states = self.mlp(hidden_states)
        return hidden_states, residual

    def _postnorm(self, hidden_states: Tensor, kwargs: dict[str, Any]) -> Tensor:
        steps: list[tuple[Any, ...]] = [(self.mixer, kwargs, self.dropout1, self.drop_path1, self.norm1)]
        if not isinstance(self.mlp, nn.Identity):
            steps.append((self.mlp, {}, self.dropout2, self.drop_path2, self.norm2))
        for part, arguments, dropout, drop_path, norm in steps:
            out = part(hidden_states, **arguments)
            if self.return_residual:
                out, hidden_states = out
            hidden_states, _ = self._normalized(out, hidden_states, dropout, drop_path, norm)
        return hidden_states


class ParallelBlock(_Layer):
    """A layer whose mixer and MLP read the same sum: dropout, sum with the residual, norm (or one each), mixer and MLP
    side by side.

    Args:
        tied_norm: Both read one norm.
        Others: As Block's.
    """

    def __init__(
        self,
        dim: int,
        mixer_cls: _Maker = None,
        mlp_cls: _Maker = None,
        norm_cls: Callable[..., Any] = nn.LayerNorm,
        dropout_cls: Callable[..., Any] = nn.Dropout,
        resid_dropout1: float = 0.0,
        resid_dropout2: float = 0.0,
        tied_norm: bool = False,
        fused_dropout_add_ln: bool = False,
        residual_in_fp32: bool = False,
        sequence_parallel: bool = False,
        mark_shared_params: bool = False,
    ) -> None:
        super().__init__()
        self.tied_norm, self.fused_dropout_add_ln = tied_norm, fused_dropout_add_ln
        self.residual_in_fp32 = residual_in_fp32
        self.mixer, mlp = self._make_parts(dim, mixer_cls, mlp_cls)
        self.dropout1, self.norm1 = dropout_cls(resid_dropout1), norm_cls(dim)
        self.mlp = mlp
        self.dropout2 = dropout_cls(resid_dropout2)
        if not tied_norm:
            self.norm2 = norm_cls(dim)
        if fused_dropout_add_ln:
            self._check_fused()
        self._mark(sequence_parallel, mark_shared_params)

    def _normalized(
        self, hidden_states1: Tensor, hidden_states2: Optional[Tensor], residual: Optional[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(what the mixer reads, what the MLP reads, the sum)."""
        norm1, norm2 = self.norm1, self.norm1 if self.tied_norm else self.norm2
        # One dropout_p for both is all that a fused norm has.
        if self.fused_dropout_add_ln and (hidden_states2 is None or self.dropout1.p == self.dropout2.p):
            first, *second, total = layer_norm_fn(
                hidden_states1, norm1.weight, norm1.bias, residual, x1=hidden_states2,
                weight1=None if self.tied_norm else norm2.weight, bias1=None if self.tied_norm else norm2.bias,
                eps=norm1.eps, dropout_p=self.dropout1.p if self.training else 0.0, prenorm=True,
                residual_in_fp32=self.residual_in_fp32, is_rms_norm=isinstance(norm1, _RMS_NORMS),
                zero_centered_weight=getattr(norm1, "zero_centered_weight", False),
            )  # fmt: skip
            return first, second[0] if second else first, total
        total = self.dropout1(hidden_states1)
        if hidden_states2 is not None:
            total = total + self.dropout2(hidden_states2)
        if residual is not None:
            total = residual + total
        first = norm1(total.to(norm1.weight.dtype))
        other = first if self.tied_norm else norm2(total.to(norm2.weight.dtype))
        return first, other, total.float() if self.residual_in_fp32 else total

    def forward(
        self,
        hidden_states1: Tensor,
        hidden_states2: Optional[Tensor] = None,
        residual: Optional[Tensor] = None,
        mixer_kwargs: Optional[dict[str, Any]] = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One layer.

        Args:
            hidden_states1: [batch_size, seqlen, dim], the last mixer's output or the embedding.
            hidden_states2: The last MLP's output; None in the first layer, as is the residual.
            mixer_kwargs: Further arguments of the mixer.

        Returns:
            (the mixer's output, the MLP's output, the sum).
        """
        hidden_states1, hidden_states2, residual = self._normalized(hidden_states1, hidden_states2, residual)
        return self.mixer(hidden_states1, **(mixer_kwargs or {})), self.mlp(hidden_states2), residual
