"""`tilewise compile`: code objects with launch.json, bundles that need no compiler, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# One tile of keys: never split, so one kernel.
FORWARD = "attention_forward dtype=bf16 seqlen_q=128 seqlen_k=64 num_heads_q=4 head_dim=64"
DECODE = "attention_forward dtype=bf16 seqlen_q=1 seqlen_k=8192 num_heads_q=4 head_dim=64"
BACKWARD = "attention_backward dtype=bf16 seqlen_q=128 num_heads_q=4 head_dim=64"
# As on a machine where no compiler for GPUs is installed.
NO_COMPILER = {"TILEWISE_NVRTC": "/nowhere", "TILEWISE_CLANG": "none", "TILEWISE_HIPRTC": "/nowhere"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def compile_(tilewise, cache):
    """compile_(target, *arguments, **variables): skips where the target has no compiler."""

    def run(target: str, *arguments: str | Path, **variables: str):
        # NVRTC is a package of this Python's environment.
        variables = {"TILEWISE_CACHE_DIR": str(cache), "VIRTUAL_ENV": sys.prefix} | variables
        report = json.loads(tilewise("doctor", "--json", **variables).stdout)
        vendor = "NVIDIA" if target.startswith("sm_") else "AMD"
        (library,) = [row for row in report["libraries"] if row["name"] == f"compiler for {vendor}"]
        if not library["found"]:
            pytest.skip(library["detail"])
        return tilewise("compile", "--target", target, *arguments, **variables)

    return run


def read_launches(folder: Path) -> dict:
    return json.loads((folder / "launch.json").read_text())


def architecture_of(path: Path) -> int:
    """e_machine of an ELF file: 190 is CUDA, 224 AMD."""
    image = path.read_bytes()
    assert image[:4] == b"\x7fELF"
    return int.from_bytes(image[18:20], "little")


@pytest.mark.parametrize(("target", "suffix", "machine"), [("sm_89", "cubin", 190), ("gfx1102", "hsaco", 224)])
def test_folder_holds_what_a_driver_needs(compile_, tmp_path, target, suffix, machine):
    text = compile_(target, "--problem", FORWARD, "--out", tmp_path).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"forward.{suffix}", "launch.json"]
    assert architecture_of(tmp_path / f"forward.{suffix}") == machine
    report = read_launches(tmp_path)
    assert report["target"] == target
    assert report["device"]["multiprocessors"] > 0
    (kernel,) = report["kernels"]
    assert kernel["file"] == f"forward.{suffix}"
    assert kernel["symbol"].encode() in (tmp_path / kernel["file"]).read_bytes()
    assert kernel["registers"] > 0
    assert kernel["scratch_bytes"] >= 0
    assert kernel["symbol"] in kernel["source"]
    row = next(line.split() for line in text.splitlines() if line.startswith("forward."))
    (step,) = report["problems"][0]["steps"]
    shared = kernel["static_shared_bytes"] + step["dynamic_shared_bytes"]
    assert row[1].startswith(("cuda.sm80", "hip.rdna"))
    assert row[2:6] == [
        str(step["block"][0]),
        str(kernel["registers"]),
        str(shared),
        str(kernel["spill_bytes"]),
    ]
    assert re.search(rf"^1 kernel of 1 problem for \w+ {target} in .*, written to {tmp_path}$", text, re.MULTILINE)


def check_pointers(report: dict) -> None:
    """Every pointer of every block is a tensor or has its place in the workspace; every other field its value."""
    parameters = {kernel["file"]: kernel["parameters"] for kernel in report["kernels"]}
    for problem in report["problems"]:
        workspace = problem["workspace"]
        for step in problem["steps"]:
            block = parameters[step["file"]]
            fields = {field["name"]: field for field in block["fields"]}
            maps = [range(entry["offset"], entry["offset"] + 128) for entry in step["tensor_maps"]]
            end = max(field["offset"] + field["size"] for field in block["fields"])
            assert 0 <= block["size"] - end < (64 if maps else 1)
            pointers = {name for name, field in fields.items() if field["type"].endswith("*")}
            encoded = {name for name, field in fields.items() if any(field["offset"] in place for place in maps)}
            assert set(step["values_of_contiguous_tensors"]) == set(fields) - pointers - encoded
            tensors, places = step["pointers"]["tensors"], step["pointers"]["workspace"]
            assert set(tensors) | set(places) <= pointers
            assert set(tensors).isdisjoint(places)
            for offset in places.values():
                assert offset % workspace["alignment"] == 0
                assert offset < workspace["size"]
                assert offset in [part["offset"] for part in workspace["parts"]]


def test_takes_what_dispatch_would(compile_, tilewise, tmp_path):
    """On Hopper its own kernel, whose tensor maps are told; on others the portable one, as explain has it."""
    problem = "attention_forward dtype=bf16 seqlen_q=4096 num_heads_q=16 head_dim=128 mask=causal"
    for target, expected in [("sm_90a", "cuda.hopper"), ("sm_90", "cuda.sm80"), ("gfx1201", "hip.rdna4")]:
        rows = json.loads(tilewise("explain", "--json", "--target", target, problem).stdout)["implementations"]
        assert [row["implementation"] for row in rows if row["chosen"]] == [expected]
    text = compile_("sm_90a", "--problem", problem, "--out", tmp_path).stdout
    report = read_launches(tmp_path)
    check_pointers(report)
    (entry,) = report["problems"]
    assert entry["implementation"] == "cuda.hopper"
    assert {"q", "k", "v", "out"} <= {place["tensor"] for place in entry["steps"][0]["tensor_maps"]}
    assert text.splitlines()[1].split()[1] == "cuda.hopper"


def test_pointers_are_those_of_the_call(compile_, tmp_path):
    """Keys stand for values where there are none, the sink has its type, and what is not given is null."""
    mla = (
        "kv_cache_attention dtype=bf16 mla=1 batch_size=2 seqlen_q=1 num_heads_q=16 num_heads_k=1 head_dim=576"
        " head_dim_v=512 page_size=64 num_pages=64 max_pages_per_seq=8 cache_seqlens=1 sink=1"
    )
    compile_("gfx942", "--problem", mla, "--out", tmp_path)
    step = read_launches(tmp_path)["problems"][0]["steps"][0]
    tensors = step["pointers"]["tensors"]
    assert tensors["k.data"] == tensors["v.data"] == "k_cache"
    assert tensors["cache.block_table"] == "block_table"
    assert not {"v_cache", "bias", "cache_leftpad", "softmax_lse"} & set(tensors.values())
    joined = [s for s in read_launches(tmp_path)["problems"][0]["steps"] if "sink" in s["pointers"]["tensors"].values()]
    assert joined
    assert all(s["values_of_contiguous_tensors"]["sink.type"] != 0 for s in joined)


def test_merge_can_be_packed(compile_, tmp_path):
    words = "parts=20 batch_size=2 seqlen_q=8 num_heads_q=4 head_dim_v=64 sink=f32"
    problems = [f"merge {words}", f"merge_backward {words} dsink=1 dlse=1", f"merge {words} stacked=1"]
    compile_("gfx942", *(word for problem in problems for word in ("--problem", problem)), "--out", tmp_path)
    report = read_launches(tmp_path)
    check_pointers(report)
    listed, backward, stacked = report["problems"]
    tensors = [set(step["pointers"]["tensors"].values()) for step in listed["steps"]]
    assert {"outs[0]", "lses[15]"} <= tensors[0]
    assert {"outs[16]", "lses[19]", "out", "sink"} <= tensors[1]
    assert [step["file"].partition(".")[0].rstrip("_0123456789") for step in backward["steps"]] == [
        *["merge_bwd_preprocess"] * 2, *["merge_bwd"] * 2, "merge_bwd_dsink",
    ]  # fmt: skip
    (step,) = stacked["steps"]
    assert {"outs", "lses"} <= set(step["pointers"]["tensors"].values())
    assert step["values_of_contiguous_tensors"]["range.rows_stride"] == 2 * 8 * 4 * 64


def test_parameters_can_be_packed(compile_, tmp_path):
    compile_("gfx942", "--problem", DECODE, "--out", tmp_path)
    report = read_launches(tmp_path)
    check_pointers(report)
    (problem,) = report["problems"]
    assert "device=hip" in problem["problem"]
    forward, combine = problem["steps"]
    assert forward["file"] == "forward.hsaco"
    assert combine["file"] == "combine.hsaco"
    values = forward["values_of_contiguous_tensors"]
    assert values["shape.seqlen_k"] == 8192
    assert values["k.seq_stride"] == 4 * 64
    assert values["score.softmax_scale"] == pytest.approx(64**-0.5)
    splits = values["grid.num_splits"]
    assert splits > 1
    assert combine["values_of_contiguous_tensors"]["num_splits"] == splits
    assert forward["grid"] == [4 * splits, 1, 1]
    assert forward["cluster"] == [1, 1, 1]
    assert forward["pointers"]["workspace"] == combine["pointers"]["workspace"]
    assert set(forward["pointers"]["workspace"]) == {"out_accum", "lse_accum"}
    assert forward["pointers"]["tensors"]["q.data"] == "q"
    assert problem["workspace"]["size"] >= 4 * splits * 4 * (64 + 1)


def test_backward_places_every_sum(compile_, tmp_path):
    """Few keys: queries are split, so that every part of the workspace is there."""
    text = "attention_backward dtype=bf16 seqlen_q=2048 seqlen_k=64 num_heads_q=4 head_dim=64"
    compile_("sm_90a", "--implementation", "cuda.sm80", "--problem", text, "--out", tmp_path)
    report = read_launches(tmp_path)
    check_pointers(report)
    (problem,) = report["problems"]
    steps = {step["symbol"].removeprefix("tilewise_"): step["pointers"]["workspace"] for step in problem["steps"]}
    assert set(steps["bwd_preprocess"]) == {"delta", "dq_accum"}
    assert set(steps["bwd"]) == {"delta", "dq_accum", "dk_accum", "dv_accum"}
    assert set(steps["bwd_convert_dkdv"]) == {"dk_accum", "dv_accum"}
    assert set(steps["bwd_convert_dq"]) == {"dq_accum"}
    for places in steps.values():
        assert places.items() <= steps["bwd"].items()


def test_problems_share_kernels(compile_, tmp_path):
    listed = tmp_path / "problems.txt"
    listed.write_text(f"# what a model needs\n{FORWARD}\n\n{FORWARD} batch_size=9  # of the same kernel\n{BACKWARD}\n")
    folder = tmp_path / "out"
    # Words need no quotes.
    text = compile_("gfx942", "--problems", listed, "--problem", *DECODE.split(), "--out", folder).stdout
    report = read_launches(folder)
    operations = [problem["problem"].split()[0] for problem in report["problems"]]
    assert operations == ["attention_forward", "attention_forward", "attention_forward", "attention_backward"]
    files = [[step["file"] for step in problem["steps"]] for problem in report["problems"]]
    assert files[1] == files[2]
    assert files[3] == ["bwd_preprocess.hsaco", "bwd_dkdv.hsaco", "bwd_dq.hsaco"]
    names = [kernel["file"] for kernel in report["kernels"]]
    assert len(set(names)) == len(names) == len(list(folder.iterdir())) - 1
    assert {name for launches in files for name in launches} == set(names)
    assert f"{len(names)} kernels of 4 problems" in text


@pytest.mark.parametrize("target", ["sm_80", "gfx950"])
def test_bundles_need_no_compiler(compile_, tilewise, tmp_path, target):
    bundle = tmp_path / "kernels.bundle"
    assert f"bundled in {bundle}" in compile_(target, "--problem", FORWARD, "--bundle", bundle).stdout
    elsewhere = NO_COMPILER | {"TILEWISE_CACHE_DIR": str(tmp_path / "empty"), "TILEWISE_BUNDLE": str(bundle)}
    text = tilewise("compile", "--target", target, "--problem", FORWARD, "--out", tmp_path, **elsewhere).stdout
    assert next(line for line in text.splitlines() if line.startswith("forward.")).endswith("kept")
    done = tilewise("compile", "--target", target, "--problem", FORWARD, "mask=causal", status=1, **elsewhere)
    assert "no compiler for" in done.stderr


def test_without_a_place_the_cache_is_filled(compile_, tilewise, cache):
    compile_("gfx942", "--problem", FORWARD)
    kernels = json.loads(tilewise("cache", "list", "--json", TILEWISE_CACHE_DIR=str(cache)).stdout)["kernels"]
    assert ("gfx942", "tilewise_forward") in [(kernel["architecture"], kernel["symbol"]) for kernel in kernels]
    assert "kept" in compile_("gfx942", "--problem", FORWARD).stdout


def test_fewer_multiprocessors_have_fewer_splits(compile_, tmp_path):
    compile_("gfx942", "--problem", DECODE, "--out", tmp_path / "all")
    compile_("gfx942", "--problem", DECODE, "--out", tmp_path / "few", "--multiprocessors", "8")
    many, few = (
        read_launches(tmp_path / name)["problems"][0]["steps"][0]["values_of_contiguous_tensors"]["grid.num_splits"]
        for name in ["all", "few"]
    )
    assert 1 < few < many


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--target", "sm_75", "--problem", FORWARD], 2, ["target: must be one of sm_80, ", "gfx1250 (got 'sm_75')"]),
        (
            ["--target", "gfx908", "--problem", FORWARD],
            2,
            ["gfx908 is not supported: its MFMA of bf16 has a depth of 4"],
        ),
        (
            ["--target", "sm_130", "--problem", FORWARD],
            2,
            [
                "sm_130 is newer than this version of Tilewise, whose last is sm_121",
                "portable kernels of cuda.sm80 run",
            ],
        ),
        (
            ["--target", "gfx1310", "--problem", FORWARD],
            2,
            ["gfx1310 is newer than this version of Tilewise, whose last is gfx1250", "no kernel of this version runs"],
        ),
        (["--target", "host", "--problem", FORWARD], 2, ["target: must be one of sm_80, "]),
        (["--target", "sm_80"], 2, ["PROBLEM: must be given with --problem or --problems (got none)"]),
        (["--problem", FORWARD], 2, ["--target is required"]),
        (["--target", "sm_80", "--problem", FORWARD + " device=hip"], 2, ["device: must be cuda for sm_80 (got hip)"]),
        (["--target", "gfx942", "--problem", FORWARD + " device=cpu"], 2, ["device: must be hip for gfx942 (got cpu)"]),
        (["--target", "sm_80", "--problem", "attention_forward head_dim=64"], 2, ["seqlen_q: must be given"]),
        (["--target", "sm_80", "--out", "-"], 2, ["--out: must be a name, and ./- is one (got '-')"]),
        (["--target", "sm_80", "--bundle", "-"], 2, ["--bundle: must be a name, and ./- is one (got '-')"]),
        (["--target", "sm_80", "--problems", "/nowhere"], 2, ["--problems: /nowhere can't be read"]),
        (
            ["--target", "sm_80", "--problem", FORWARD, "--implementation", "hip.cdna"],
            2,
            ["implementation: must be one of those for sm_80: cuda.sm80 (got 'hip.cdna')"],
        ),
        (
            ["--target", "gfx942", "--problem", FORWARD.replace("bf16", "f32")],
            1,
            ["hip.cdna refuses attention_forward device=hip seqlen_q=128", "does not support f32"],
        ),
        (
            ["--target", "gfx942", "--problem", FORWARD.replace("head_dim=64", "head_dim=300")],
            1,
            ["on gfx942: head_dim and head_dim_v must be <= 256 (got 300 and 300)"],
        ),
        (["--target", "sm_80", "--problem", FORWARD], 1, ["no compiler for CUDA sm_80", "nvidia-cuda-nvrtc"]),
        (["--target", "gfx90a", "--problem", FORWARD], 1, ["no compiler for HIP gfx90a", "TILEWISE_HIPRTC"]),
    ],
)
def test_errors(tilewise, tmp_path, arguments, status, words):
    done = tilewise("compile", *arguments, status=status, TILEWISE_CACHE_DIR=str(tmp_path), **NO_COMPILER)
    assert done.stdout == ""
    for part in words:
        assert part in done.stderr


def test_errors_name_the_line(tilewise, tmp_path):
    listed = tmp_path / "problems.txt"
    listed.write_text(f"{FORWARD}\n{FORWARD} colour=red\n")
    done = tilewise("compile", "--target", "sm_80", "--problems", listed, status=2)
    assert f"{listed}:2: problem: unknown key (got 'colour')" in done.stderr


def test_unwritable_places(compile_, tilewise, cache, tmp_path):
    compile_("gfx942", "--problem", FORWARD)  # or skips
    (tmp_path / "file").write_text("")
    for option in ["--out", "--bundle"]:
        place = tmp_path / "file" / "below"
        arguments = ["--target", "gfx942", "--problem", FORWARD, option, place]
        done = tilewise("compile", *arguments, status=1, TILEWISE_CACHE_DIR=str(cache))
        assert str(place) in done.stderr


@pytest.mark.skipif(not shutil.which("llvm-readelf-22"), reason="llvm-readelf-22 is not installed")
def test_amd_kernels_need_nothing_but_their_parameters(compile_, tmp_path):
    """No implicit arguments: the kernarg segment is the parameter block."""
    compile_("gfx942", "--problem", BACKWARD, "--out", tmp_path)
    for kernel in read_launches(tmp_path)["kernels"]:
        command = ["llvm-readelf-22", "--notes", tmp_path / kernel["file"]]
        notes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f".kernarg_segment_size: {kernel['parameters']['size']}" in notes
        assert "hidden_" not in notes


@pytest.mark.parametrize(("target", "suffix"), [("sm_90a", "cubin"), ("gfx942", "hsaco")])
def test_kv_cache_steps_can_be_packed(compile_, tmp_path, target, suffix):
    """Appending many keys, attending in parts and joining them: partial results lie in the workspace."""
    cache = "head_dim=64 num_heads_k=2 page_size=16 num_pages=64"
    step = (
        f"kv_cache_attention dtype=bf16 batch_size=4 seqlen_q=64 num_heads_q=8 {cache} max_pages_per_seq=8 append=1"
        " seqlen_k_new=64 cache_seqlens=1 rotary_dim=64 num_splits=4 mask=causal"
    )
    slots = f"append_kv dtype=bf16 batch_size=4 {cache} cache_dtype=fp8_e4m3 scales=token slots=i64"
    compile_(target, "--problem", step, "--problem", slots, "--out", tmp_path)
    report = read_launches(tmp_path)
    check_pointers(report)
    attended, appended = report["problems"]
    append, forward, combine = attended["steps"]
    names = [step["symbol"].removeprefix("tilewise_") for step in attended["steps"]]
    assert names == ["append_kv", "kv_cache_forward", "kv_cache_combine"]
    assert (tmp_path / f"kv_cache_forward.{suffix}").exists()
    places = {part["name"]: part["offset"] for part in attended["workspace"]["parts"]}
    assert set(places) == {"out_accum", "lse_accum"}
    assert append["pointers"]["workspace"] == {}
    assert forward["pointers"]["workspace"] == combine["pointers"]["workspace"] == places
    assert forward["pointers"]["tensors"]["rotary.cos"] == "rotary_cos"
    tensors = append["pointers"]["tensors"]
    changed = {"k.data": "k_cache", "v.data": "v_cache", "cache.block_table": "block_table"}
    assert changed.items() <= tensors.items() and tensors["rotary.cos"] == "rotary_cos"
    values = forward["values_of_contiguous_tensors"]
    assert values["k.batch_stride"] == 16 * 2 * 64 and values["cache.block_table_stride"] == 8
    (alone,) = appended["steps"]
    tensors = alone["pointers"]["tensors"]
    assert (tensors["slots"], tensors["k_scale.data"], tensors["v_scale.data"]) == ("slots", "k_scale", "v_scale")
    assert alone["values_of_contiguous_tensors"]["slot_bytes"] == 8


def test_a_cache_that_keeps_nothing_is_told(tilewise, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    words = ["compile", "--target", "gfx942", "--problem", FORWARD]
    done = tilewise(*words, status=1, TILEWISE_CACHE_DIR=str(folder), **NO_COMPILER)
    assert done.stderr.startswith(f"tilewise: kernel cache: {folder}: must be writable by nobody else than its owner")
    assert "; kernels there are ignored (nothing is kept)\n" in done.stderr
    quiet = tilewise(*words, status=1, TILEWISE_CACHE_DIR=str(tmp_path / "new"), **NO_COMPILER)
    assert "kernel cache" not in quiet.stderr


def test_features_of_a_target_are_no_other_target(tilewise):
    """sm_100a is sm_100 to portable kernels, which say so; the page of GPUs names every target."""
    words = ["explain", "--target", "sm_100a", "attention_forward", "dtype=bf16", "seqlen_q=64", "head_dim=64"]
    text = tilewise(*words).stdout
    assert re.search(r"^cuda.sm80 +chosen", text, re.MULTILINE)
    assert text.endswith("sm_100: portable kernels; its tcgen05 is not used\n")
    refused = tilewise(
        "explain", "--target", "nothing", "attention_forward", "seqlen_q=1", "head_dim=8", status=2
    ).stderr
    targets = re.search(r"must be one of (.*?) \(got", refused)[1].split(", ")
    page = (Path(__file__).resolve().parents[2] / "docs" / "devices.md").read_text(encoding="utf-8")
    table = "".join(line.split("|")[2] for line in page.splitlines() if line.startswith("|"))
    assert re.findall("`((?:sm_|gfx)[0-9a-z]+)`", table) == targets
