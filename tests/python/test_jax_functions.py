# score_mod, mask_mod and block masks in tilewise.jax, against tilewise.attention on the same arrays.
"""Functions of scores and block masks under JAX's transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewise
from tilewise import BlockMask, block_mask
from tilewise.expression import Traced

jax = pytest.importorskip("jax")
tilewise_jax = pytest.importorskip("tilewise.jax")
jnp = jax.numpy

TABLE = np.linspace(-1.0, 1.0, 4, dtype=np.float32)
SLOPED = "score - table0[h] * abs(q_idx - kv_idx)"


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return kv_idx <= q_idx + 10


MASK = block_mask(causal, 40, 50, block_size=16)
CASES: dict[str, dict[str, Any]] = {
    "score_mod": {"score_mod": "score * 0.5 + 0.1 * (kv_idx % 3)"},
    "mask_mod": {"mask_mod": causal},
    "tables": {"score_mod": Traced("score_mod", SLOPED, (TABLE,)), "mask_mod": causal},
    "block_mask": {"block_mask": MASK},
    "lists alone": {"block_mask": BlockMask(None, np.ones((1, 1, 1), np.int32), np.zeros((1, 1, 1, 1), np.int32))},
    "all": {"score_mod": Traced("score_mod", SLOPED, (TABLE,)), "block_mask": MASK, "mask": "causal"},
}


def drawn(batch: int = 2) -> tuple[Any, ...]:
    rng = np.random.default_rng(3)
    shapes = (batch, 40, 4, 16), (batch, 50, 2, 16), (batch, 50, 2, 16)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in shapes)


@pytest.mark.parametrize("case", CASES)
def test_forward_and_gradients(case: str) -> None:
    q, k, v = drawn()
    options = CASES[case]
    out, lse = tilewise.attention(q, k, v, return_lse=True, **options)
    np.testing.assert_allclose(tilewise_jax.attention(q, k, v, **options), out, atol=2e-6)

    def loss(*arrays: Any) -> Any:
        return (tilewise_jax.attention(*arrays, **options) ** 2).sum()

    made = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    wanted = tilewise.attention_backward(2 * out, q, k, v, out, lse, **options)
    for own, other in zip(made, wanted):
        np.testing.assert_allclose(own, other, atol=2e-5)


def test_arrays_of_functions_may_be_traced() -> None:
    q, k, v = drawn()

    @jax.jit
    def attend(table: Any, lists: Any) -> Any:
        mask = BlockMask(MASK.mask_mod, *lists, MASK.block_size)
        return tilewise_jax.attention(q, k, v, score_mod=Traced("score_mod", SLOPED, (table,)), block_mask=mask)

    for table in (TABLE, 2 * TABLE):
        options = {"score_mod": Traced("score_mod", SLOPED, (table,)), "block_mask": MASK}
        np.testing.assert_allclose(attend(table, MASK.arrays()), tilewise.attention(q, k, v, **options), atol=2e-6)


def test_vmap_computes_one_after_another() -> None:
    q, k, v = drawn(6)
    options = {"mask_mod": "(kv_idx + b) % 3 < 2"}
    mapped = jax.vmap(lambda *arrays: tilewise_jax.attention(*arrays, **options))
    out = mapped(*(array.reshape(3, 2, *array.shape[1:]) for array in (q, k, v)))
    for n in range(3):
        part = slice(2 * n, 2 * n + 2)
        np.testing.assert_allclose(out[n], tilewise.attention(q[part], k[part], v[part], **options), atol=2e-6)


def test_refused() -> None:
    q, k, v = drawn()

    def loss(table: Any) -> Any:
        return tilewise_jax.attention(q, k, v, score_mod=Traced("score_mod", SLOPED, (table,))).sum()

    with pytest.raises(NotImplementedError, match=r"^table0: has no gradient in tilewise.jax"):
        jax.grad(loss)(TABLE)
    jax.grad(lambda table: loss(jax.lax.stop_gradient(table)))(TABLE)
    with pytest.raises(NotImplementedError, match=r'^implementation: "jax" takes no score_mod'):
        tilewise_jax.attention(q, k, v, mask_mod=causal, implementation="jax")
    with pytest.raises(ValueError, match=r"^block_counts: .*ceil\(seqlen_q / block_rows\)"):
        tilewise_jax.attention(q, k, v, block_mask=block_mask(causal, 80, 50, block_size=16))
