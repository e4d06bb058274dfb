# What to say to a keyword argument that a function does not have: users bring those of torch,
# flash_attn, xformers, flashinfer, JAX and transformers, and mistype ours.
"""Unknown keyword arguments."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn, TypeVar, get_type_hints

from tilewise import _core

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_ARRAY_MASK = "use bias=, bool (true = visible) or numbers added to the scores"
_CAUSAL = 'use mask="causal", aligned bottom right, or mask="causal_top_left"'
_DROPOUT = "use dropout_p="
_IMPLEMENTATION = "use implementation="
_LAYOUT = 'use layout="bshd", "sbhd", "bhsd" or "thd"'
_LSE = "there are no attention probabilities to return; return_lse=True returns softmax_lse"
_NORMALISE = 'use normalise="sum_plus_epsilon"; weigh="softmax_of_chosen" is softmax after the choice'
_PAGES = "kv_cache_attention() attends over pages, which its block_table names"
_SCALE = "use softmax_scale="
_SCORE = 'use score="softmax", "sigmoid", "sqrt_softplus" or "identity"'
_SEED = "use seed="
_SINK = "use sink="
_SOFTCAP = "use softcap="
_WINDOW = "use window=(left, right), -1 for unbounded"

# spelling: what to do instead. The names before a "=" are the arguments to use.
ADVICE: dict[str, str] = {
    "attention_dropout": _DROPOUT,
    "attention_mask": _ARRAY_MASK,
    "attention_sink": _SINK,
    "attn_bias": _ARRAY_MASK + '; mask="causal" for a causal one, cu_seqlens_q= and cu_seqlens_k= for blocks',
    "attn_mask": _ARRAY_MASK,
    "attn_mask_type": _CAUSAL + "; lengths of padding are seqused_q= and seqused_k=",
    "backend": _IMPLEMENTATION,
    "block_table": _PAGES,
    "bottom_right_diagonal": 'use alignment="bottom_right" or "top_left"',
    "causal": _CAUSAL,
    "core_attention_bias": "use bias=",
    "cu_seqlens": "use cu_seqlens_q= and cu_seqlens_k=",
    "cu_seqlens_kv": "use cu_seqlens_k=",
    "custom_mask": _ARRAY_MASK,
    "dropout": _DROPOUT,
    "dropout_rate": _DROPOUT,
    "e_score_correction_bias": "use bias=",
    "enable_gqa": "leave it out: num_heads_k may be any divisor of num_heads_q",
    "generator": _SEED,
    "is_causal": 'use mask="causal"; torch aligns top left, mask="causal_top_left", where lengths differ',
    "is_training": "leave it out: dropout_p=0.0 turns dropout off",
    "k_descale": "use k_scale=",
    "key_padding_mask": "use seqused_k=, leftpad_k= for padding in front, or a bool bias= (true = visible)",
    "key_value_seq_lengths": "use seqused_k=",
    "kv_layout": _LAYOUT,
    "learnable_sink": _SINK,
    "local_window_size": _WINDOW,
    "logits_soft_cap": _SOFTCAP,
    "max_length_k": "use max_seqlen_k=",
    "max_length_q": "use max_seqlen_q=",
    "max_seqlen": "use max_seqlen_q= and max_seqlen_k=",
    "max_seqlen_kv": "use max_seqlen_k=",
    "need_weights": _LSE,
    "norm_topk_prob": _NORMALISE,
    "num_expert_group": "use n_group=",
    "num_splits": "leave it out: keys are split by estimated cost",
    "op": _IMPLEMENTATION,
    "p": _DROPOUT,
    "page_table": _PAGES,
    "q_descale": "use q_scale=",
    "qkv_format": _LAYOUT,
    "query_seq_lengths": "use seqused_q=",
    "renormalize": _NORMALISE,
    "return_attn_probs": _LSE,
    "return_softmax_lse": "use return_lse=",
    "s_aux": _SINK,
    "scale": _SCALE,
    "scaling": _SCALE,
    "score_func": _SCORE,
    "scoring_func": _SCORE,
    "sinks": _SINK,
    "slot_mapping": "use slots=",
    "sliding_window": "use window=(sliding_window - 1, 0)",
    "sm_scale": _SCALE,
    "softmax_offset": _SINK,
    "softmax_type": "use sink=, zeros for off-by-one",
    "topk": "use top_k=",
    "training": "leave it out: dropout_p=0.0 turns dropout off",
    "v_descale": "use v_scale=",
    "window_left": _WINDOW,
    "window_right": _WINDOW,
    "window_size": _WINDOW,
}


def advised_arguments(advice: str) -> set[str]:
    """The arguments that an advice names."""
    return set(re.findall(r"\b([a-z]\w*)=", advice))


def keywords_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names that `function` takes as keywords."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.items()
    return tuple(name for name, parameter in parameters if parameter.kind in kinds and name != "self")


def nearest_word(word: str, known: Iterable[str]) -> str:
    """The one of `known` that a mistyped word was probably meant to be, or ""."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        return ""  # a compiler that looks on can't follow the core, and would speak of that in place of the word
    return _core.nearest_word(word, list(known))


_NONE: Mapping[str, str] = {}


def check_keywords(
    function: str, given: Iterable[str], known: Collection[str], instead: Mapping[str, str] = _NONE
) -> None:
    """TypeError for the first name of `given` that is not `known`.

    instead: What to do in place of arguments that attention() has and this function has not.
    """
    for name in given:
        if name not in known:
            _refuse(function, name, known, instead)


def _refuse(function: str, name: str, known: Collection[str], instead: Mapping[str, str]) -> NoReturn:
    advice = instead.get(name) or _advice(name, known, instead)
    raise TypeError(f"{function}() got an unexpected keyword argument {name!r}; {advice}")  # Python's words, and advice


def _advice(name: str, known: Collection[str], instead: Mapping[str, str]) -> str:
    advice = ADVICE.get(name, "")
    advised = advised_arguments(advice)
    if advice and advised <= set(known):
        return advice
    if advised and advised <= {*known, *instead}:
        return "; ".join(instead[argument] for argument in sorted(advised) if argument in instead)
    near = nearest_word(name, [*known, *instead])
    return instead.get(near) or (f"did you mean {near}=?" if near else f"it takes {', '.join(known)}")


def with_known_keywords(function: FunctionT, instead: Mapping[str, str] = _NONE) -> FunctionT:
    """`function`, which answers unknown keywords as all of them do."""
    known = keywords_of(function)

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Any:
        check_keywords(function.__qualname__, options, known, instead)
        return function(*args, **options)

    return checked  # type: ignore[return-value]


def with_options_of(model: Callable[..., Any], without: Collection[str]) -> Callable[[FunctionT], FunctionT]:
    """For a function whose **options are what `model` takes by keyword, some apart: it gets all of them, as `model`
    has them by default, shows them in its signature, and answers unknown ones."""

    def decorate(function: FunctionT) -> FunctionT:
        own = inspect.signature(function)
        named = [each for each in own.parameters.values() if each.kind is not each.VAR_KEYWORD]
        others = {*without, *own.parameters}
        models = [each for each in inspect.signature(model).parameters.values() if each.name not in others]
        taken = [each for each in models if each.kind is each.KEYWORD_ONLY]
        defaults = {each.name: each.default for each in taken}
        known = tuple(each.name for each in (*named, *taken))

        @functools.wraps(function)
        def checked(*args: Any, **options: Any) -> Any:
            check_keywords(function.__qualname__, options, known)
            return function(*args, **{**defaults, **options})

        hints = get_type_hints(model)  # as they read where `model` stands
        annotations = {**function.__annotations__, **{name: hints[name] for name in defaults}}
        checked.__annotations__ = {name: hint for name, hint in annotations.items() if name in (*known, "return")}
        checked.__signature__ = own.replace(parameters=[*named, *taken])  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate
