# flash_attn.layers.patch_embed.
"""PatchEmbed."""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from torch import Tensor, nn

from tilewise.compat.flash_attn.ops.fused_dense import FusedDense

__all__ = ["PatchEmbed"]

_Size = Union[int, tuple[int, int]]


def _pair(size: _Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


class PatchEmbed(nn.Module):
    """An image as a sequence of embedded patches, by one linear layer.

    Args:
        img_size, patch_size: A number, or (height, width).
        norm_layer: Makes a norm of the embeddings from embed_dim; None: no norm.
        flatten: Patches are one dimension rather than two.
        fused_bias_fc: Without effect.
    """

    def __init__(
        self,
        img_size: _Size = 224,
        patch_size: _Size = 16,
        in_chans: int = 3,
        embed_dim: int = 768,
        norm_layer: Optional[Callable[[int], nn.Module]] = None,
        flatten: bool = True,
        bias: bool = True,
        fused_bias_fc: bool = False,
    ) -> None:
        super().__init__()
        self.img_size, self.patch_size, self.flatten = _pair(img_size), _pair(patch_size), flatten
        (height, width), (rows, columns) = self.img_size, self.patch_size
        self.grid_size = height // rows, width // columns
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        linear: Any = FusedDense if fused_bias_fc and bias else nn.Linear
        self.proj = linear(in_chans * rows * columns, embed_dim, bias=bias)
        self.norm = nn.Identity() if norm_layer is None else norm_layer(embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        """[batch_size, num_patches, embed_dim] of x [batch_size, in_chans, height, width]; without `flatten` patches
        are [rows, columns]."""
        size = tuple(x.shape[-2:])
        assert size == self.img_size, f"x: must be an image of {self.img_size} (got {size})"
        (rows, columns), (grid_rows, grid_columns) = self.patch_size, self.grid_size
        patches = x.unflatten(-1, (grid_columns, columns)).unflatten(-3, (grid_rows, rows))
        embedded: Tensor = self.proj(patches.permute(0, 2, 4, 1, 3, 5).flatten(3))
        result: Tensor = self.norm(embedded.flatten(1, 2) if self.flatten else embedded)
        return result
