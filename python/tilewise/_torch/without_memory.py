# Tensors without memory, those of the meta device and torch's fake ones, as the core sees tensors: explain() needs no
# more than shapes, strides and where they would lie.
"""explain() of tensors that have no memory, or for another device than theirs."""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from tilewise import _core
from tilewise._options import ARRAY_NAMES, Options
from tilewise._torch.dtypes import CORE_DTYPES
from tilewise._torch.private import has_values

_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "leftpad_k")
_APART = 2**44  # bytes between the addresses of two tensors, which so never overlap


def place_of(q: Tensor, device: Any) -> torch.device:
    """Where a call on q would run: `device` where given, else where a fake tensor says it is, else torch's GPU, or the
    CPU where it has none."""
    if device is not None:
        try:
            place = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ValueError(
                f"device: must be a device of torch, such as 'cpu' or 'cuda:0' (got {device!r})"
            ) from error
        if place.type not in ("cpu", "cuda", "hip"):
            raise ValueError(f"device: must be cpu or cuda (got {place.type})")
        return place
    if q.device.type != "meta":
        return q.device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class _Placing:
    def __init__(self, place: torch.device) -> None:
        self.on_cpu = place.type == "cpu"
        self.kind = "hip" if torch.version.hip is not None and place.type == "cuda" else place.type
        self.index = 0 if place.index is None else place.index
        self.count = 0

    def array(self, name: str, tensor: Any) -> Any:
        """The tensor as the core would see it there; whatever is no tensor stays for the core to judge."""
        if not isinstance(tensor, Tensor):
            return tensor
        if self.on_cpu and name in (*_LENGTHS, "seed"):  # the core reads them on the CPU
            return tensor if has_values(tensor) and tensor.device.type == "cpu" else _stand_in(tensor)
        self.count += 1
        address = self.count * _APART + int(tensor.storage_offset()) * tensor.element_size()
        dtype = CORE_DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        index = 0 if self.on_cpu else self.index
        return _core.Array.without_memory(
            list(tensor.shape), list(tensor.stride()), dtype, self.kind, index, address, name
        )


def _stand_in(tensor: Tensor) -> Tensor:
    """Lengths of 0, which fit every call, for those that have no values: no verdict depends on them."""
    return torch.zeros(tensor.shape, dtype=tensor.dtype)


def placed(given: dict[str, Any], call: Options, device: Optional[Any]) -> tuple[dict[str, Any], Options]:
    """attention()'s arguments by name, and Options, of a call on `device`."""
    place = place_of(given["q"], device)
    placing = _Placing(place)
    for side in "qk":
        offsets, longest = getattr(call, f"cu_seqlens_{side}"), getattr(call, f"max_seqlen_{side}")
        if isinstance(offsets, Tensor) and longest is None and not (has_values(offsets) and placing.on_cpu):
            raise ValueError(
                f"max_seqlen_{side}: must be given, since cu_seqlens_{side} has no values to read (got None)"
            )
    arrays: dict[str, Any] = {name: placing.array(name, given[name]) for name in ("q", "k", "v", "out")}
    options = {name: placing.array(name, getattr(call, name)) for name in ARRAY_NAMES}
    seed = call.seed_and_offset
    if seed is None and call.dropout_p != 0.0 and not placing.on_cpu and given["seed"] is None:
        seed = torch.empty(2, dtype=torch.int64, device="meta")  # torch's operators get a drawn one there
    return {**given, **arrays}, call._replace(**options, seed_and_offset=placing.array("seed", seed))
