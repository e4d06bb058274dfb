# tilewise.nn.FlashAttention, which is tilewise.attention with some of its arguments kept, and the example that trains
# a model with it.
"""The torch module."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from cases import CASES, draw, to_layout  # noqa: E402
from torch_support import gradients  # noqa: E402

import tilewise  # noqa: E402
import tilewise.nn  # noqa: E402

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_bert.py"
GPT = EXAMPLE.with_name("train_gpt.py")


@pytest.mark.parametrize("name", [name for name in CASES if "dropout" not in name and name != "everything"])
def test_it_is_attention(name):
    tensors, options = draw(name)
    expected = tilewise.attention(*tensors, return_lse=True, **options)
    module = tilewise.nn.FlashAttention(softmax_scale=options.pop("softmax_scale", None))
    mask = options.pop("mask", None)
    if mask == "causal_top_left":
        options["alignment"] = "top_left"
    got = module(*tensors, mask is not None, return_lse=True, **options)
    assert all(map(torch.equal, got, expected))


@pytest.mark.parametrize("layout", ["sbhd", "bhsd"])
def test_layouts_and_gradients(layout):
    tensors, _ = draw("plain")
    module = tilewise.nn.FlashAttention(0.3, layout=layout, deterministic=True)
    out, got = gradients(lambda *t: module(*t, causal=True), *(to_layout(tensor, layout) for tensor in tensors))
    expected_out, expected = gradients(
        lambda *t: tilewise.attention(*t, mask="causal", softmax_scale=0.3, layout=layout, deterministic=True),
        *(to_layout(tensor, layout) for tensor in tensors),
    )
    assert torch.equal(out[0], expected_out[0])
    assert all(map(torch.equal, got, expected))


def test_dropout_while_training():
    tensors, _ = draw("plain")
    module = tilewise.nn.FlashAttention(attention_dropout=0.4)
    torch.manual_seed(3)
    first, second = module(*tensors), module(*tensors)
    torch.manual_seed(3)
    assert torch.equal(first, tilewise.attention(*tensors, dropout_p=0.4))
    assert not torch.equal(first, second)
    assert torch.equal(module(*tensors, seed=5), tilewise.attention(*tensors, dropout_p=0.4, seed=5))
    assert torch.equal(module.eval()(*tensors), tilewise.attention(*tensors))


def test_it_shows_what_it_was_made_with():
    assert repr(tilewise.nn.FlashAttention()) == "FlashAttention()"
    module = tilewise.nn.FlashAttention(0.5, 0.1, layout="thd", deterministic=True)
    assert repr(module) == "FlashAttention(softmax_scale=0.5, attention_dropout=0.1, layout='thd', deterministic=True)"
    assert not module.state_dict()


def test_compiled():
    torch._dynamo.reset()
    tensors, _ = draw("plain")
    module = tilewise.nn.FlashAttention(attention_dropout=0.0)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors, causal=True), module(*tensors, causal=True))


REFUSED = {
    "scale": ({"softmax_scale": "1"}, {}, TypeError, r"softmax_scale: must be a number \(got str\)"),
    "dropout": ({"attention_dropout": 1.0}, {}, ValueError, r"attention_dropout: must be in \[0, 1\) \(got 1.0\)"),
    "layout": ({"layout": "hbsd"}, {}, ValueError, "layout: must be one of"),
    "deterministic": ({"deterministic": 1}, {}, TypeError, "deterministic: must be True or False"),
    "causal": ({}, {"causal": "yes"}, TypeError, r"causal: must be True or False \(got str\)"),
    "mask": ({}, {"mask": "causal"}, TypeError, "mask: must not be given to a call; use causal="),
    "scale of a call": ({}, {"softmax_scale": 1.0}, TypeError, "softmax_scale: must not be given to a call"),
    "dropout of a call": ({}, {"dropout_p": 0.1}, TypeError, "dropout_p: must not be given to a call; the module's"),
    "unknown": ({}, {"windows": (1, 1)}, TypeError, r"unexpected keyword argument 'windows'; did you mean window="),
}  # fmt: skip
# Words of other libraries, in a call of the module and in making it: what they are told.
CALLS = {
    "is_causal": "use causal=$",
    "attention_mask": r"use bias=, bool \(true = visible\) or numbers added to the scores$",
    "window_size": r"use window=\(left, right\), -1 for unbounded$",
    "scale": r"the module has it, FlashAttention\(softmax_scale=\)$",
    "sinks": "use sink=$",
    "dropout": "the module's attention_dropout is applied while it trains$",
    "qkv_format": r"the module has it, FlashAttention\(layout=\)$",
    "casual": "did you mean causal=",
    "softmax_sclae": r"the module has it, FlashAttention\(softmax_scale=\)$",
    "return_softmax_lse": "use return_lse=$",
    "no_such_option": "it takes causal, q, k, v, alignment, window",
}
MAKINGS = {
    "scale": "use softmax_scale=$",
    "softmax_sclae": "did you mean softmax_scale=",
    "dropout": "use attention_dropout=$",
    "dropout_p": "use attention_dropout=$",
    "causal": "calls of the module take causal=$",
    "window_size": "calls of the module take window=$",
    "sink": "calls of the module take sink=$",
    "qkv_format": 'use layout="bshd", "sbhd", "bhsd" or "thd"$',
    "no_such_option": "it takes softmax_scale, attention_dropout, layout, deterministic$",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    made, options, kind, message = REFUSED[name]
    tensors, _ = draw("plain")
    with pytest.raises(kind, match=message):
        tilewise.nn.FlashAttention(**made)(*tensors, **options)


@pytest.mark.parametrize("name", CALLS)
def test_keywords_of_others_in_a_call(name):
    tensors, _ = draw("plain")
    with pytest.raises(TypeError, match=rf"^FlashAttention\.forward\(\) got .* '{name}'; {CALLS[name]}"):
        tilewise.nn.FlashAttention()(*tensors, **{name: None})


@pytest.mark.parametrize("name", MAKINGS)
def test_keywords_of_others_in_making_it(name):
    with pytest.raises(TypeError, match=rf"^FlashAttention\.__init__\(\) got .* '{name}'; {MAKINGS[name]}"):
        tilewise.nn.FlashAttention(**{name: None})


# --- the example ---

TINY = ["--device", "cpu", "--layers", "2", "--width", "32", "--heads", "4", "--seqlen", "24", "--batch-size", "3"]


def _example(*arguments, example=EXAMPLE):
    command = [sys.executable, str(example), *TINY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_example_trains_alike_with_both(dtype):
    done = _example("--steps", "3", "--dtype", dtype)
    assert done.returncode == 0, done.stderr
    pattern = r"^(tilewise|sdpa) +([\d.]+) samples/s +(\d+) MiB at most +loss ([\d.]+) to ([\d.]+)$"
    rows = re.findall(pattern, done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["tilewise", "sdpa"]
    assert all(float(row[1]) > 0 and float(row[2]) > 0 for row in rows)
    (first, last), (torchs_first, torchs_last) = ((float(row[3]), float(row[4])) for row in rows)
    tolerance = 1e-3 if dtype == "f32" else 2e-2
    assert abs(first - torchs_first) < tolerance
    assert abs(last - torchs_last) < tolerance
    assert last < first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--heads", "5"], r"--heads: must divide --width = 32 \(got 5\)"), (["--steps", "0"], r"--steps: .* \(got 0\)")],
)
def test_the_example_refuses(arguments, message):
    done = _example(*arguments)
    assert done.returncode == 2
    assert re.search(message, done.stderr)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_gpt_trains_alike_with_both(dtype):
    rate = ["--learning-rate", "3e-4"]
    done = _example("--vocabulary", "40", "--steps", "4", "--dtype", dtype, *rate, example=GPT)
    assert done.returncode == 0, done.stderr
    pattern = (
        r"^(tilewise|sdpa) +(\d+) tokens/s +\d+ MiB at most +loss ([\d.]+) to ([\d.]+), at most ([\d.]+)% from sdpa's$"
    )
    rows = re.findall(pattern, done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["sdpa", "tilewise"]
    assert rows[0][4] == "0.000"
    assert float(rows[1][4]) < (0.01 if dtype == "f32" else 1.0)  # percent, of every step
    assert all(float(row[3]) < float(row[2]) for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--heads", "5"], r"--heads: must divide --width = 32 \(got 5\)"),
        (["--attention", "sdpa,none"], r"--attention: must be some of .* \(got 'none'\)"),
        (["--json"], r"--json: must come with one --attention \(got 2\)"),
        (["--learning-rate", "0"], r"--learning-rate: must be positive \(got 0.0\)"),
        (["--vocabulary", "0"], r"--vocabulary: must be at least 1 \(got 0\)"),
    ],
)
def test_the_gpt_refuses(arguments, message):
    done = _example(*arguments, example=GPT)
    assert done.returncode == 2
    assert re.search(message, done.stderr)
