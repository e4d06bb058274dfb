"""The cases of attention_gpu.py: arithmetic against values counted by hand, the reference against dense formulas."""

import importlib
from dataclasses import replace

import pytest
from bench_support import cells

import tilewise
from tilewise.bench.contenders import Tilewise, Unsupported
from tilewise.bench.expected import few_heads
from tilewise.bench.gpu_contenders import FlashAttn, FlashInfer, TorchFlash
from tilewise.bench.inputs import make_inputs
from tilewise.bench.shapes import Case, Shape

pytest.importorskip("torch")


# --- arithmetic against values counted by hand ---


def test_grid_is_the_headline_tables(bench_module):
    cases = list(bench_module("gpu_cases").grid_cases())
    assert len(cases) == 3 * 2 * 6
    for case in cases:
        assert case.shape.num_heads_q * case.shape.head_dim == 2048
        assert case.shape.batch_size * case.shape.seqlen_q == 16384


def test_flops_and_bytes(bench_module):
    cases = bench_module("gpu_cases")
    full = cases.GpuCase("grid", Case(Shape(2, 8, 8, 4, 4, 16), "bf16"), ("forward", "backward"))
    assert cases.flops(full, "forward") == 4 * 2 * 4 * 64 * 16
    assert cases.flops(full, "backward") == 2.5 * cases.flops(full, "forward")
    causal = cases.GpuCase("grid", Case(full.shape, "bf16", "causal"), full.passes)
    assert cases.flops(causal, "forward") == cases.flops(full, "forward") / 2
    # q, k, v and out are 2 * 8 * 4 * 16 elements of two bytes, the LSE 2 * 8 * 4 of four.
    assert full.on("cuda", "forward").traffic_bytes() == 4 * 1024 * 2 + 64 * 4
    assert full.on("cuda", "backward").traffic_bytes() == 8 * 1024 * 2 + 64 * 4
    decode = cases.GpuCase("decode", Case(Shape(3, 1, 10, 8, 2, 16), "bf16"), ("forward",))
    assert cases.pairs(decode) == 3 * 10
    assert decode.case.traffic_bytes() == 2 * (2 * 3 * 8 * 16 + 2 * 3 * 10 * 2 * 16) + 4 * 3 * 8
    # Of five pairs and three heads: S and dP with 4 and 6 columns and so on, three products of keys and two of values.
    unfolded = Case(Shape(1, 1, 5, 3, 3, 4, 6), "bf16")
    assert unfolded.flops() == 2 * 3 * 5 * (4 + 6)
    assert replace(unfolded, operation="backward").flops() == 2 * 3 * 5 * (3 * 4 + 2 * 6)
    assert unfolded.traffic_bytes() == 2 * 3 * (4 + 6) + 2 * 3 * 5 * (4 + 6) + 4 * 3
    assert cases.num_copies(full, "cpu") == 1
    assert cases.num_copies(decode, "cpu") == 2


@pytest.mark.parametrize(("errors", "header"), [(["-", "1e-3"], "head_dim error"), (["-", "-"], "head_dim")])
def test_errors_that_were_not_measured_have_no_column(bench_module, errors, header):
    lines = bench_module("gpu_report").table_of_measured(["head_dim", "error"], [["64", value] for value in errors])
    assert " ".join(cells(lines.splitlines()[0])) == header


@pytest.mark.parametrize(("window_left", "seen"), [(0, 5), (1, 9), (2, 12), (4, 15), (9, 15)])
def test_pairs_of_a_window(bench_module, window_left, seen):
    cases = bench_module("gpu_cases")
    case = Case(Shape(2, 5, 5, 1, 1, 8), "bf16", "causal", window_left=window_left)
    # Five queries see 1, 2, 3 ... keys, at most window_left + 1.
    assert cases.pairs(cases.GpuCase("window", case, ("forward",))) == 2 * seen
    assert case.flops() == 4 * 2 * seen * 8


def test_packed_lengths(bench_module):
    cases = bench_module("gpu_cases")
    for num_tokens, longest in ((16384, 4096), (64, 64), (10, 3)):
        lengths = cases.packed_lengths(num_tokens, longest)
        assert sum(lengths) == num_tokens
        assert 1 <= min(lengths) <= max(lengths) <= longest
    (packed,) = (case for case in cases.option_cases() if case.kind == "packed")
    lengths = packed.case.lengths
    assert cases.pairs(packed) == sum(length**2 for length in lengths) / 2
    assert packed.case.flops() == 4 * 16 * 128 * sum(length * (length + 1) // 2 for length in lengths)
    assert packed.case.rows_q == packed.case.rows_k == 16384


def test_packed_sequences_are_beside_a_batch_of_equal_work(bench_module):
    cases = bench_module("gpu_cases")
    (packed,) = (case for case in cases.option_cases() if case.kind == "packed")
    dense = cases.GpuCase("plain", packed.plain, packed.passes)
    assert packed.plain.lengths == ()
    assert abs(packed.plain.rows_q - 16384) <= packed.plain.shape.batch_size / 2
    # Numbers of sequences are whole ones, of which the nearest is within a twelfth.
    assert cases.flops(dense, "forward") == pytest.approx(cases.flops(packed, "forward"), rel=1 / 12)
    # Of 12 tokens four see 4 keys and eight 8: 80 / 12 in the mean, so that two sequences of 6 are nearest.
    assert str(cases.of_equal_work(Shape(2, 8, 8, 4, 2, 16), (4, 8))) == "2x6x4/2x16"


def test_mla_is_what_models_train(bench_module):
    unfolded = list(bench_module("gpu_cases").mla_cases())
    assert [str(case.shape) for case in unfolded][::4] == ["32x512x16x192/128", "2x8192x16x192/128"]
    for case in unfolded:
        assert case.mask == "causal" and case.passes == ("forward", "backward")
        assert case.shape.batch_size * case.shape.seqlen_q == 16384
    inputs = make_inputs(replace(unfolded[0].case, shape=Shape(1, 3, 3, 2, 2, 12, 8)))
    assert [tensor.shape[3] for tensor in (inputs.q, inputs.k, inputs.v, inputs.dout)] == [12, 12, 8, 8]
    for library in (TorchFlash(), FlashAttn(), FlashInfer()):
        with pytest.raises(Unsupported, match="values as wide as keys"):
            library.prepare(unfolded[0].case, inputs)


def test_fp8_chunks_and_extreme_scores(bench_module):
    cases = bench_module("gpu_cases")
    fp8 = list(cases.fp8_cases())
    assert len(fp8) == 3 * 2 * 3
    for case in fp8:
        assert (case.case.dtype, case.plain.dtype, case.case.out_dtype) == ("fp8_e4m3", "bf16", "bf16")
        assert case.case.shape == case.plain.shape and case.case.mask == case.plain.mask
        assert case.passes == ("forward",)
    chunk, longer = cases.chunk_cases()
    assert (str(chunk.shape), str(longer.shape)) == ("1x64/8192x32/8x128", "1x512/8192x32/8x128")
    assert chunk.in_graph and cases.pairs(chunk) == 64 * 8192
    for case in cases.extreme_cases(128, 16, 32, 256):
        wide, plain = (make_inputs(each) for each in (case.case, case.plain))
        for inputs, deviation in ((wide, 81.0), (plain, 9.0)):
            scores = inputs.q.float()[0, :, 0] @ inputs.k.float()[0, :, 0].T / 16**0.5
            assert scores.std() == pytest.approx(deviation, rel=0.1)
        assert wide.v.equal(plain.v)


def test_problem_text_is_that_of_the_call(bench_module):
    """What `explain` is asked for a case is what it would be asked with the call's own tensors."""
    for case in bench_module("gpu_cases").option_cases(seqlen=64, head_dim=16, hidden_size=64, num_tokens=256):
        one, library = case.on("cpu", "forward"), Tilewise()
        inputs = make_inputs(one, seed=None)
        called = tilewise.explain(inputs.q, inputs.k, inputs.v, return_lse=True, **library.options(one, inputs))
        assert library.explanation(one).problem == called.problem


# --- the reference, against dense formulas and autograd ---


@pytest.mark.parametrize(
    "option",
    [
        {},
        {"mask": "causal"},
        {"mask": "causal", "window_left": 3},
        {"softcap": 1.5},
        {"alibi": True},
        {"mask": "causal", "bias": "query[1,h,q,k]", "alibi": True},
        {"bias": "bool[1,1,q,k]"},
    ],
    ids=str,
)
def test_reference(option, monkeypatch):
    torch = importlib.import_module("torch")
    monkeypatch.setattr("tilewise.bench.device_reference._BLOCK_ROWS", 5)  # a last block that is not full
    case = Case(Shape(2, 12, 12, 4, 2, 8, 6), "bf16", **option)
    inputs = make_inputs(case)
    leaves = [tensor.double().requires_grad_() for tensor in (inputs.q, inputs.k, inputs.v)]
    q, k, v = (tensor.transpose(1, 2) for tensor in leaves)
    scores = q @ k.repeat_interleave(2, 1).transpose(2, 3) / 8**0.5
    if case.softcap:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    i, j = torch.arange(12)[:, None], torch.arange(12)[None, :]
    hidden = ((case.mask == "causal") & (j > i)) | ((case.window_left >= 0) & (j < i - case.window_left))
    if case.alibi:
        assert inputs.alibi_slopes.tolist() == [2**-2, 2**-4, 2**-6, 2**-8]
        scores = scores - inputs.alibi_slopes.double()[:, None, None] * (i - j).abs()
    if case.bias.startswith("bool"):
        assert 0 < (~inputs.bias).sum() < 72  # of 144
        hidden = hidden | ~inputs.bias[0, 0]
    elif case.bias:
        scores = scores + inputs.bias.double()
    out = (scores.masked_fill(hidden, -torch.inf).softmax(3) @ v.repeat_interleave(2, 1)).transpose(1, 2)
    gradients = torch.autograd.grad(out, leaves, inputs.dout.double())
    expected = few_heads(case, inputs, gradients=True)
    assert [(head.sequence, head.key_head) for head in expected.heads] == [(0, 0), (1, 1)]
    for results in ((out.detach(),), gradients):
        accuracy = expected.judge(results)
        assert accuracy.problem == ""
        assert accuracy.rel_l2_err < 1e-12
    wrong = (gradients[0], gradients[1], gradients[2].clone())
    wrong[2][1, :, 1] *= 1.1  # dv of the last head
    assert "exceeds" in expected.judge(wrong).problem
    wrong[2][0, 3, 1, 0] = torch.nan  # a head that has no reference
    assert "NaN" in expected.judge(wrong).problem
