"""Turns the results of attention_gpu.py into Markdown tables, a section of docs/benchmarks and a plot.

Works from the JSON alone, so that a run on another machine can be reported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Optional

from benchmarks_page import publish
from gpu_cases import EXTREME_DEVIATION, PACKED, PLAIN, WIDE_DEVIATION
from overhead_report import overhead_parts

from tilewise.bench.device_timing import RUN_CALLS, RUN_SAMPLES, RUN_UNTIMED
from tilewise.bench.markdown import distinct, group_by_label, ratio_of, table
from tilewise.bench.timing import geometric_mean

Json = dict[str, Any]

# As the tables call what Tilewise is measured beside.
RIVALS = {"torch": "FlashAttention-2", "torch_cudnn": "cuDNN"}
# How calls of a case are timed, by what attention_gpu.py calls it.
TIMINGS = {
    "turns": "calls of all libraries alternate, so that all run at one clock",
    "runs": f"each library's calls by themselves, {RUN_UNTIMED} untimed and {RUN_SAMPLES} times {RUN_CALLS} timed,"
    " in two rounds of opposite order",
    "sustained": "each library's calls by themselves, of whose time the second half counts, at the clock that their own"
    " power allows",
}
FP8_INTRO = (
    "fp8: TFLOP/s forward of q, k and v in e4m3 with out in bf16, beside the same call in bf16, timed with it;"
    " the error is that of out beside float64 formulas of what the fp8 tensors hold:"
)
MLA_INTRO = (
    "MLA with its keys and values unfolded, causal, {num_heads_q} heads, head_dim {head_dim} and head_dim_v"
    " {head_dim_v}, TFLOP/s:"
)
NOTHING: Json = {"tflops": None, "median_us": None}  # of a library that was not there
APART = ("grid", "mla", "fp8", "decode", "chunk")  # kinds that have tables of their own; the others are options


def text(results: Json) -> str:
    """The whole report as Markdown, for the terminal and for the documentation."""
    grid = of_kind(results, "grid")
    parts = [machine_list(results)]
    parts += [f"TFLOP/s, {operation}:\n\n{grid_table(rows)}" for operation, rows in by_pass(grid) if rows]
    if mla := of_kind(results, "mla"):
        parts += [MLA_INTRO.format(**mla[0]), mla_table(mla)]
    if fp8 := of_kind(results, "fp8"):
        parts += [FP8_INTRO, fp8_table(fp8)]
    if decode := of_kind(results, "decode"):
        parts += [decode_intro(decode[0]), decode_table(decode, results["ceilings"]["copy_gb_per_s"])]
    if chunks := of_kind(results, "chunk"):
        parts += [chunk_intro(chunks[0]), chunk_table(chunks)]
    if options := [row for row in results["rows"] if row["kind"] not in APART]:
        parts += [options_intro(options), options_table(options)]
    if results["overhead"]:
        parts += overhead_parts(results["overhead"])
    if grid:
        parts += ["Their time divided by Tilewise's:", summary_table(grid)]
    if failed := [row for row in results["rows"] if row["status"].startswith("failed")]:
        parts.append("\n".join(f"- {row['library']}, {row['label']}: {row['status']}" for row in failed))
    return "\n\n".join(parts)


def machine_list(results: Json) -> str:
    machine, ceilings, ahead = results["machine"], results["ceilings"], results["compiled_ahead"]
    kernels = ", ".join(name for name in distinct(results["rows"], "implementation") if name)
    lines = [
        f"GPU: {machine['gpu']}; driver {machine['driver']}",
        f"host: {machine['host']}",
        f"versions: {machine['versions']}; Tilewise ran {kernels or 'nothing'}",
        f"ceilings in the same run: bf16 matrix product {ceilings['matmul_tflops']:.0f} TFLOP/s,"
        f" copy {ceilings['copy_gb_per_s']:.0f} GB/s (read and written)",
        f"all kernels of the run ready after {ahead['seconds']:.0f} s on {ahead['cpus']} processors",
        f"timing: {TIMINGS[results.get('timing', 'turns')]}",
        f"command: `{results['command']}` ({results['date']})",
    ]
    return "\n".join(f"- {line}" for line in lines)


def of_kind(results: Json, kind: str) -> list[Json]:
    return [row for row in results["rows"] if row["kind"] == kind]


def by_pass(rows: Sequence[Json]) -> Iterable[tuple[str, list[Json]]]:
    for operation in distinct(rows, "operation"):
        yield operation, [row for row in rows if row["operation"] == operation]


def pairs(rows: Sequence[Json]) -> list[dict[str, Json]]:
    return list(group_by_label(rows).values())


def number(value: Optional[float], digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def error(row: Json) -> str:
    """Relative, in the L2 norm."""
    value = row.get("rel_l2_err")
    return "-" if value is None else f"{value:.1e}"


def grid_table(rows: Sequence[Json]) -> str:
    """A line for each shape: all libraries, Tilewise beside each rival, errors."""
    ratios = [f"beside {name}" for name in RIVALS.values()]
    header = ["head_dim", "mask", "seqlen", "Tilewise", *RIVALS.values(), *ratios, "error", "error of FlashAttention-2"]
    lines = []
    for pair in pairs(rows):
        ours = pair["tilewise"]
        place = [str(ours["head_dim"]), ours["mask"], str(ours["seqlen_q"])]
        lines.append([*place, *speeds_of(pair), error(ours), error(pair.get("torch", NOTHING))])
    return table_of_measured(header, lines)


def mla_table(rows: Sequence[Json]) -> str:
    """Beside cuDNN: FlashAttention-2 takes no values of another width than keys."""
    header = ["pass", "batch", "seqlen", "Tilewise", "cuDNN", "beside cuDNN", "error"]
    lines = []
    for pair in pairs(rows):
        ours, cudnn = pair["tilewise"], pair.get("torch_cudnn", NOTHING)
        place = [ours["operation"], str(ours["batch_size"]), str(ours["seqlen_q"])]
        beside = number(ratio_of(pair.values(), "torch_cudnn"), 2)
        lines.append([*place, number(ours["tflops"]), number(cudnn["tflops"]), beside, error(ours)])
    return table_of_measured(header, lines)


def speeds_of(pair: dict[str, Json]) -> list[str]:
    """Tilewise's and each rival's, and the ratios to them."""
    speeds = [number(pair.get(library, NOTHING)["tflops"]) for library in ("tilewise", *RIVALS)]
    return speeds + [number(ratio_of(pair.values(), rival), 2) for rival in RIVALS]


def summary_table(rows: Sequence[Json]) -> str:
    """Geometric mean and least ratio to each rival, of each pass, of each head_dim and of all."""
    header = ["beside", "pass", "head_dim", "geometric mean", "least", "at"]
    lines: list[list[str]] = []
    for rival, name in RIVALS.items():
        for operation, passed in by_pass(rows):
            head_dims = distinct(passed, "head_dim")
            for chosen in [*([head_dim] for head_dim in head_dims), head_dims][: None if len(head_dims) > 1 else 1]:
                part = [row for row in passed if row["head_dim"] in chosen]
                if summary := mean_and_least(part, rival):
                    lines.append([name, operation, ", ".join(map(str, chosen)), *summary])
    return table(header, lines)


def mean_and_least(rows: Sequence[Json], rival: str) -> list[str]:
    """Of the ratios to `rival`: geometric mean, least, and where that is; empty where there are none."""
    ratios = {
        pair["tilewise"]["label"]: value
        for pair in pairs(rows)
        if (value := ratio_of(pair.values(), rival)) is not None
    }
    if not ratios:
        return []
    least = min(ratios, key=lambda label: ratios[label])
    return [f"{geometric_mean(list(ratios.values())):.2f}", f"{ratios[least]:.2f}", " ".join(least.split()[2:5])]


def fp8_table(rows: Sequence[Json]) -> str:
    """Tilewise alone: torch has no attention in fp8."""
    header = ["head_dim", "mask", "seqlen", "fp8", "bf16", "fp8 by bf16", "error"]
    lines = []
    for ours in (pair["tilewise"] for pair in pairs(rows)):
        place = [str(ours["head_dim"]), ours["mask"], str(ours["seqlen_q"])]
        bf16 = ours["plain_tflops"]
        lines.append([*place, number(ours["tflops"]), number(bf16), number(share_of_plain(ours, bf16), 2), error(ours)])
    return table_of_measured(header, lines)


def share_of_plain(row: Json, plain_tflops: Optional[float]) -> Optional[float]:
    """A row's speed by that of what it is compared with; None where not both were measured."""
    return row["tflops"] / plain_tflops if plain_tflops and row["tflops"] else None


def decode_intro(row: Json) -> str:
    return (
        f"Decode: one query, {row['num_heads_q']} query heads on {row['num_heads_k']} key heads, head_dim"
        f" {row['head_dim']}, by replays of a CUDA graph over more keys than the cache holds:"
    )


def chunk_intro(row: Json) -> str:
    return (
        f"Chunks of one sequence's prefill, {row['num_heads_q']} query heads on {row['num_heads_k']} key heads,"
        f" head_dim {row['head_dim']}, no mask, by replays of a CUDA graph likewise:"
    )


def chunk_table(rows: Sequence[Json]) -> str:
    rivals = [f"{name} us" for name in RIVALS.values()]
    ratios = [f"beside {name}" for name in RIVALS.values()]
    header = ["queries", "keys", "Tilewise us", *rivals, *ratios, "Tilewise TFLOP/s", "error"]
    lines = []
    for pair in pairs(rows):
        ours = pair["tilewise"]
        times = [number(pair.get(library, NOTHING)["median_us"], 1) for library in ("tilewise", *RIVALS)]
        beside = [number(ratio_of(pair.values(), rival), 2) for rival in RIVALS]
        place = [str(ours["seqlen_q"]), str(ours["seqlen_k"])]
        lines.append([*place, *times, *beside, number(ours["tflops"]), error(ours)])
    return table_of_measured(header, lines)


def decode_table(rows: Sequence[Json], copy_gb_per_s: float) -> str:
    header = ["batch", "keys", "FlashAttention-2 us", "Tilewise us", "ratio", "Tilewise GB/s", "of the copy"]
    lines = []
    for pair in pairs(rows):
        ours, theirs = pair["tilewise"], pair.get("torch", NOTHING)
        share = "-" if ours["gb_per_s"] is None else f"{100 * ours['gb_per_s'] / copy_gb_per_s:.0f}%"
        times = [number(theirs["median_us"], 1), number(ours["median_us"], 1), number(ratio_of(pair.values()), 2)]
        lines.append([str(ours["batch_size"]), str(ours["seqlen_k"]), *times, number(ours["gb_per_s"]), share])
    return table(header, lines)


def options_intro(rows: Sequence[Json]) -> str:
    beside = "the same call without the option"
    if any(row.get("plain_tflops") for row in rows):
        beside += ", timed with it"
    if packed := [row["plain_shape"] for row in rows if row["kind"] == PACKED and row.get("plain_shape")]:
        batch_size, seqlen, *_ = packed[0].split("x")
        beside += f", for packed sequences a batch of equal work, {batch_size} of {seqlen}"
    if any(row["kind"] == "extreme" for row in rows):
        beside += (
            f", for extreme scores, whose standard deviation is {EXTREME_DEVIATION:.0f} nats, one of"
            f" {WIDE_DEVIATION:.0f}"
        )
    return (
        f'Options, each alone, head_dim {rows[0]["head_dim"]}, TFLOP/s of the visible work; "of plain" is beside'
        f" {beside}:"
    )


def options_table(rows: Sequence[Json]) -> str:
    ratios = [f"beside {name}" for name in RIVALS.values()]
    shape = ["batch", "seqlen", "heads"]
    header = ["option", "mask", "pass", *shape, "Tilewise", *RIVALS.values(), *ratios, "of plain", "error"]
    plain = {
        (row["operation"], row["mask"]): row["tflops"]
        for row in rows
        if row["kind"] == PLAIN and row["library"] == "tilewise" and row["tflops"]
    }
    lines = []
    for pair in pairs(rows):
        ours = pair["tilewise"]
        heads = distinct([{"n": str(ours["num_heads_q"])}, {"n": str(ours["num_heads_k"])}], "n")
        seqlen = f"up to {ours['seqlen_q']}" if ours["kind"] == "packed" else str(ours["seqlen_q"])
        place = [ours["kind"], ours["mask"], ours["operation"], str(ours["batch_size"]), seqlen, " on ".join(heads)]
        without = ours.get("plain_tflops") or plain.get((ours["operation"], ours["mask"]))
        lines.append([*place, *speeds_of(pair), number(share_of_plain(ours, without), 2), error(ours)])
    return table_of_measured(header, lines)


def table_of_measured(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Without the errors of a run that measured none (--no-accuracy)."""
    kept = [i for i, name in enumerate(header) if not name.startswith("error") or {line[i] for line in lines} != {"-"}]
    return table([header[i] for i in kept], [[line[i] for i in kept] for line in lines])


def write_section(docs: Path, results: Json, plot_file: Optional[Path]) -> None:
    """Keeps the section of this GPU in the folder `docs`, in place of an earlier one."""
    publish("attention_gpu", results["machine"]["name"], text(results), plot_file.name if plot_file else "", docs)


def plot(results: Json, file: Path) -> bool:
    """TFLOP/s of all libraries over seqlen, a panel for each pass and head_dim. False without matplotlib or data."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    rows = of_kind(results, "grid")
    if not rows:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot

    passes, head_dims = distinct(rows, "operation"), distinct(rows, "head_dim")
    size = (4.2 * len(head_dims), 3.2 * len(passes))
    figure, axes = pyplot.subplots(
        len(passes), len(head_dims), figsize=size, squeeze=False, sharey="row", layout="constrained"
    )
    for i, operation in enumerate(passes):
        for j, head_dim in enumerate(head_dims):
            chosen = [row for row in rows if (row["operation"], row["head_dim"]) == (operation, head_dim)]
            draw_panel(axes[i][j], chosen)
            axes[i][j].set_title(f"{operation}, head_dim {head_dim}", fontsize="medium")
        axes[i][0].set_ylabel("TFLOP/s")
        axes[i][0].set_ylim(bottom=0)  # of the whole row, and only now: a limit that is set stops its scaling
    handles = axes[-1][-1].get_legend_handles_labels()
    figure.legend(*handles, fontsize="small", loc="outside lower center", ncols=3)
    figure.suptitle(f"{results['machine']['name']}, bf16")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return True


def draw_panel(axis: Any, rows: Sequence[Json]) -> None:
    for library, name, color in (
        ("torch", "FlashAttention-2 of torch", "#b0b0b0"),
        ("torch_cudnn", "cuDNN of torch", "#d08020"),
        ("tilewise", "Tilewise", "#2a6fbb"),
    ):
        for mask, style in (("full", "-"), ("causal", "--")):
            points = [
                (row["seqlen_q"], row["tflops"])
                for row in rows
                if (row["library"], row["mask"]) == (library, mask) and row["tflops"] is not None
            ]
            axis.plot(*zip(*points) if points else ((), ()), style, marker=".", color=color, label=f"{name}, {mask}")
    axis.set_xscale("log", base=2)
    seqlens = distinct(rows, "seqlen_q")
    axis.set_xticks(seqlens, [f"{seqlen // 1024}k" if seqlen >= 1024 else str(seqlen) for seqlen in seqlens])
    axis.grid(alpha=0.3)
