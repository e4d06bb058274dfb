# The public function: its arguments are brought to one form, checked while JAX traces, and handed to the differentiable
# function of such calls.
"""attention for JAX."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, Optional, Union

import jax
import jax.numpy as jnp
import numpy as np

from tilewise._arguments import flag, seed_value
from tilewise._attention import attention as tilewise_attention
from tilewise._keywords import with_options_of
from tilewise._kinds import type_name
from tilewise._options import ARRAY_NAMES, DEFAULT_TAIL, NO_ARRAYS, Options, option_parts
from tilewise.jax._calls import NO_DERIVATIVE, Call, alike, check_implementation, forward_results
from tilewise.jax._derivatives import differentiable
from tilewise.jax._formula import formula, refuse
from tilewise.jax._functions import Functions, taken

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from tilewise._options import JaxOptions

_OF_FUNCTIONS = ("score_mod", "mask_mod", "block_mask")
_SEED = "seed: must be an integer, a key of jax.random, or an int64 array [2] or uint32 array [4] of seed and offset"


@with_options_of(tilewise_attention, without=("out",))
def attention(
    q: Any, k: Any, v: Any, *, return_lse: bool = False, **options: Unpack[JaxOptions]
) -> Union[jax.Array, tuple[jax.Array, jax.Array]]:
    """tilewise.attention for JAX: the same options, under jit, grad, vmap, scan, checkpoint and shard_map.

    Numbers, names and flags are compiled into the call, so they must be known while JAX traces; arrays may be traced.
    Gradients are those of q, k, v, bias and sink, in reverse mode and once; implementation="jax" has all others.

    Args:
        q: [batch_size, seqlen_q, num_heads_q, head_dim], f32, bf16, f16 or, without gradients, float8_e4m3fn; on the
            CPU f64 too.
        k: [batch_size, seqlen_k, num_heads_k, head_dim], dtype of q. num_heads_k divides num_heads_q.
        v: [batch_size, seqlen_k, num_heads_k, head_dim_v], dtype of q.
        score_mod, mask_mod: As tilewise.attention takes them: text, a function that captures no arrays, or with arrays
            that it looks up a tilewise.expression.Traced. The arrays may be traced; they have no gradients.
        block_mask: A tilewise.BlockMask, as tilewise.attention takes it, whose arrays may be traced.
        seed: With dropout an integer, or a traced array of one; a key of jax.random, whose words are the seed; an
            int64 array [2] of seed and offset, or the same as four uint32, low words first.
        cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k, leftpad_k: int32. Wrong contents are an error when the call
            runs, a ValueError or jax.errors.JaxRuntimeError with the same sentence.
        max_seqlen_q, max_seqlen_k: Longest sequence of layout "thd", needed beside a bias; None: on the CPU computed,
            on a GPU as many as there are rows.
        return_lse: Also return softmax_lse, f32 (f64 where q is) [batch_size, num_heads_q, seqlen_q], packed
            [num_heads_q, total_q].
        implementation: Name of the implementation to use (see tilewise.explain); None chooses by estimated cost.
            "jax": jax.numpy's operations, with every derivative, for dense layouts without dropout.
        All others: As tilewise.attention takes them.

    Returns:
        out, shaped like q with head_dim_v as the last dimension and in q's dtype, bf16 where that is fp8; or
        (out, softmax_lse).

    Raises:
        ValueError, TypeError: An argument is wrong; the message names it, what was expected and what came.
        NotImplementedError: JAX asks for a derivative that there is not; the message says what to do.
    """
    for name, value in (*options.items(), ("return_lse", return_lse)):
        if name not in (*ARRAY_NAMES, *_OF_FUNCTIONS, "seed"):
            _refuse_traced(name, value)
    return_lse = flag("return_lse", return_lse)
    head, optional, tail = option_parts(options)
    call = Options._make((*head, *NO_ARRAYS, None, *(tail or DEFAULT_TAIL)))
    given = {"q": q, "k": k, "v": v, **{n: a for n, a in zip(ARRAY_NAMES, optional) if a is not None}}
    arrays = {name: _array(name, array) for name, array in given.items()}
    if call.dropout_p != 0.0:
        arrays["seed_and_offset"] = _seed_words(options["seed"])
    functions, of_functions = taken(*(options.get(name) for name in _OF_FUNCTIONS))
    arrays |= {name: _array(name, array) for name, array in of_functions.items()}
    return _call(call, arrays, functions, return_lse)


def _call(options: Options, arrays: dict[str, Any], functions: Optional[Functions], return_lse: bool) -> Any:
    if "cu_seqlens_q" in arrays and "bias" in arrays:
        for name in ("max_seqlen_q", "max_seqlen_k"):
            if getattr(options, name) is None:
                raise ValueError(f"{name}: must be given beside a bias of packed sequences, which has it (got None)")
    by_formula = options.implementation == "jax"
    call = Call(options._replace(implementation=None) if by_formula else options, tuple(arrays), functions)
    operands = alike(list(arrays.values()))
    forward_results(call, operands)  # its checks, before JAX's own words
    if by_formula:
        refuse(call, arrays["q"])
        return formula(call, return_lse)(*operands)
    check_implementation(call, operands, return_lse)
    try:
        return differentiable(call, return_lse)(*operands)
    except TypeError as error:
        if "forward-mode" not in str(error):
            raise
        raise NotImplementedError(NO_DERIVATIVE) from error


def _refuse_traced(name: str, value: Any) -> None:
    for part in value if isinstance(value, (tuple, list)) else (value,):
        if isinstance(part, jax.core.Tracer):
            raise TypeError(
                f"{name}: must be known while JAX traces, since it is compiled into the call: name it in jax.jit's "
                f"static_argnames or close over it (got a traced {jax.typeof(part).str_short()})"
            )


def _array(name: str, array: Any) -> Any:
    if isinstance(array, (jax.Array, np.ndarray)):
        return jnp.asarray(array)
    if name.endswith("_scale") or isinstance(array, (np.generic, numbers.Number)):
        return jnp.asarray(array)
    raise TypeError(f"{name}: must be an array of JAX or NumPy (got {type_name(array)})")


def _seed_words(seed: Any) -> Any:
    """Seed and offset as four 32-bit words, low ones first: without jax_enable_x64 there is no int64."""
    if seed is None:
        raise ValueError("seed: must be given with dropout, since JAX keeps no generator (got None)")
    if not isinstance(seed, (jax.Array, np.ndarray)):
        return jnp.asarray(np.array([seed_value(seed), 0], np.int64).view(np.uint32))
    seed = jnp.asarray(seed)
    if jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    integral, bits = jnp.issubdtype(seed.dtype, jnp.integer), 8 * seed.dtype.itemsize
    if integral and seed.shape == () and bits <= 32:
        seed = seed.astype(jnp.uint32 if jnp.issubdtype(seed.dtype, jnp.unsignedinteger) else jnp.int32)
        high = jnp.where(seed < 0, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
        return jnp.concatenate([jnp.stack([seed.astype(jnp.uint32), high]), jnp.zeros(2, jnp.uint32)])
    if integral and seed.shape in ((), (2,)) and bits == 64:
        words = jax.lax.bitcast_convert_type(seed, jnp.uint32).reshape(-1)
    elif seed.dtype == jnp.uint32 and seed.shape in ((2,), (4,)):  # a key of jax.random, or all words
        words = seed
    else:
        raise TypeError(f"{_SEED} (got {seed.dtype.name}{list(seed.shape)})")
    return jnp.concatenate([words, jnp.zeros(4 - words.shape[0], jnp.uint32)])
