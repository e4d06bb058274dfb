# The package is typed and its checked-in stub is the extension module's own.
"""mypy over the package and over code that uses it; the stub against nanobind's generator."""

import ast
import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

import tilewise
from tilewise import _calls

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "python" / "tilewise"
SAMPLE = Path(__file__).with_name("typing_sample.py")

# mistake: (a piece of the sample, what to put there, a word of the error)
MISTAKES = {
    "mask": ('mask="causal"', 'mask="diagonal"', "mask"),
    "unknown_option": ("softcap=30.0", "soft_cap=30.0", "soft_cap"),
    "keyword_of_torch": ('mask="causal"', "is_causal=True", "is_causal"),
    "option_of_warmup": ('warmup(q, q, q, mask="causal")', "warmup(q, q, q, is_causal=True)", "is_causal"),
    "window": ("window=(128, -1)", "window=128", "window"),
    "layout": ('layout="bhsd"', 'layout="hbsd"', "layout"),
    "lse_without_return_lse": ("torch.tensor([1, 2]), return_lse=True)", "torch.tensor([1, 2]))", "return"),
    "no_array": ("tilewise.warmup(q, q, q, mask", "tilewise.warmup(q, q, 3, mask", "warmup"),
    "bias": ("seqused_k=lengths", "bias=[[0.0]]", "bias"),
    "gradient_that_may_be_missing": ("return every.dq, some.dk", "return some.dq, some.dk", "return value"),
    "mask_of_a_step": ('mask="causal", cache_seqlens', 'mask="causal_top_left", cache_seqlens', "mask"),
    "lse_of_a_step": ("cache_seqlens=table[0], return_lse=True)", "cache_seqlens=table[0])", "return"),
    "keyword_of_a_step": ("cache_seqlens=3,", "cache_seqlen=3,", "cache_seqlen"),
    "keyword_of_the_module": ("attention_dropout=0.1", "dropout_p=0.1", "dropout_p"),
    "option_of_the_modules_call": ("causal=True, window", 'mask="causal", window', "mask"),
    "gradients": ('gradients=("dq", "dk")', 'gradients=("dq", "dw")', "gradients"),
    "backward_mask": ('"causal_top_left")', '"diagonal")', "mask"),
    "num_threads": ("set_num_threads(tilewise.get_num_threads())", 'set_num_threads("2")', "set_num_threads"),
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """What mypy says of the package, the sample and each mistake, by file: one run, which reads torch once."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("mistakes")
    paths = [SOURCE, SAMPLE]
    for name, (old, new, _) in MISTAKES.items():
        assert old in SAMPLE.read_text()
        paths.append(folder / f"mistake_{name}.py")
        paths[-1].write_text(SAMPLE.read_text().replace(old, new))
    command = [sys.executable, "-m", "mypy", "--no-error-summary", *map(str, paths)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 1, result.stdout + result.stderr  # it found mistakes, and did not break
    lines = {}
    for line in result.stdout.splitlines():
        lines.setdefault(Path(line.split(":")[0]).stem, []).append(line)
    return lines


def test_package_and_sample_pass(checked):
    errors = [line for file, lines in checked.items() if not file.startswith("mistake_") for line in lines]
    errors = [line for line in errors if ": error:" in line]
    assert not errors
    revealed = re.findall(r'Revealed type is "(.*)"', "\n".join(checked[SAMPLE.stem]))
    expected = re.findall(r"reveal_type\(.*\)  # (.*)", SAMPLE.read_text())
    assert len(revealed) == len(expected)
    for actual, beginning in zip(revealed, expected):
        assert actual.startswith(beginning)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_found(checked, name):
    errors = [line for line in checked[f"mistake_{name}"] if "error:" in line]
    assert any(MISTAKES[name][2] in line.lower() for line in errors), errors


PUBLIC = (
    "append_kv", "attention", "attention_backward", "block_mask", "dequantize", "explain", "get_num_threads",
    "grouped_linear", "kv_cache_attention", "linear", "merge", "moe", "quantize", "route", "set_num_threads", "warmup",
)  # fmt: skip


@pytest.mark.parametrize("name", PUBLIC)
def test_signatures_have_types(name):
    """What help() shows, and what get_type_hints() gives."""
    assert {*PUBLIC} == {name for name in tilewise.__all__ if inspect.isfunction(getattr(tilewise, name))}
    function = getattr(tilewise, name)
    hints = typing.get_type_hints(function)
    assert hints.keys() == {*inspect.signature(function).parameters, "return"}
    assert [argument for argument, hint in hints.items() if "Any" in str(hint)] == []


def test_stubs_and_overloads_have_no_any():
    """Of the modules that public names come from; private helpers may take anything."""
    for name in ("_core.pyi", "_attention.py", "_backward.py", "_kv_cache.py", "_merge.py", "_types.py", "__init__.py"):
        tree = ast.parse((SOURCE / name).read_text())
        public = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and (node.name in PUBLIC or name in ("_core.pyi", "_types.py"))
            # The short ways, whose signature is that of what they shorten.
            and (node in tree.body or name in ("_core.pyi", "_types.py"))
        ]
        assert public or name == "__init__.py", name
        for node in public:
            spelled = [ast.unparse(part) for part in (node.args, node.returns) if part is not None]
            assert not any(re.search(r"\bAny\b", part) for part in spelled), f"{name}: {node.name}"


def test_package_says_that_it_is_typed():
    assert (Path(tilewise.__file__).parent / "py.typed").exists()


def test_stub_is_up_to_date(tmp_path):
    pytest.importorskip("nanobind")
    generated = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "tilewise._core", "-o", str(generated)]
    environment = {**os.environ, "PYTHONPATH": str(Path(tilewise.__file__).parents[1])}
    subprocess.run(command, check=True, env=environment)
    written = ast.parse(generated.read_text())
    by_schema = {name + kind for name in _calls.CALLS for kind in ("", "_outputs")}  # they follow from what is tested
    by_schema |= {f"{name}_check" for name, call in _calls.CALLS.items() if not any(each.list for each in call.inputs)}
    assert by_schema <= {node.name for node in written.body if isinstance(node, ast.FunctionDef)}
    written.body = [node for node in written.body if getattr(node, "name", None) not in by_schema]
    same = ast.dump(ast.parse((SOURCE / "_core.pyi").read_text())) == ast.dump(written)
    assert same, "python/tilewise/_core.pyi: write it anew with python " + " ".join(command[1:])
