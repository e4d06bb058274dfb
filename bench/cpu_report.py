"""Turns the results of attention_cpu.py into Markdown tables, a section of docs/benchmarks and a plot.

Works from the JSON alone, so that a run on another machine can be reported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks_page import publish

from tilewise.bench.markdown import distinct, group_by_label, mask_name, ratio_of, table
from tilewise.bench.timing import geometric_mean

Json = dict[str, Any]

PEAK_POINT = (128, 4096, "none")  # head_dim, seqlen, mask of "fraction of the peak"


def text(results: Json) -> str:
    """The whole report as Markdown, for the terminal and for the documentation."""
    parts = [machine_list(results), "Ceilings, measured in the same run:", ceilings_table(results)]
    if results["rows"]:
        parts += [
            "Time of torch divided by time of Tilewise, and the share of the multiply-add peak:",
            summary_table(results),
        ]
    if results["decode"]:
        parts += [decode_intro(results["decode"][0]), decode_table(results)]
    if results["overhead"]:
        parts += ["One call on one query, one key and head_dim 8:", overhead_table(results["overhead"])]
    for operation in distinct(results["rows"], "operation"):
        for dtype in distinct(results["rows"], "dtype"):
            rows = [row for row in results["rows"] if (row["operation"], row["dtype"]) == (operation, dtype)]
            if rows:
                kernels = ", ".join(name for name in distinct(rows, "implementation") if name)
                parts += [f"{operation}, {dtype}, GFLOP/s (Tilewise: {kernels})", grid_table(rows)]
    return "\n\n".join(parts)


def machine_list(results: Json) -> str:
    machine = results["machine"]
    lines = [
        f"processor: {machine['processor']}; {machine['instruction_sets']}",
        f"memory: {machine['memory']}, last-level cache {machine['last_level_cache']}",
        f"system: {machine['system']}",
        f"versions: {machine['versions']}",
        f"command: `{results['command']}` ({results['date']})",
    ]
    return "\n".join(f"- {line}" for line in lines)


def ceilings_table(results: Json) -> str:
    header = ["threads", "fp32 multiply-add GFLOP/s", "vdpbf16ps GFLOP/s", "tdpbf16ps GFLOP/s", "memory read GB/s"]
    rates = ("fma_gflops", "bf16_gflops", "amx_gflops", "read_gb_per_s")
    rows = [
        [str(ceiling["num_threads"]), *(f"{ceiling[rate]:.0f}" if ceiling[rate] else "-" for rate in rates)]
        for ceiling in results["ceilings"]
    ]
    return table(header, rows)


def summary_table(results: Json) -> str:
    """A line for each pass, dtype and thread count, and one over all thread counts."""
    header = ["pass", "dtype", "threads", "geometric mean", "least", "at", "d128 s4096 full", "of the peak"]
    lines: list[list[str]] = []
    for operation in distinct(results["rows"], "operation"):
        for dtype in distinct(results["rows"], "dtype"):
            thread_counts = distinct(results["rows"], "threads")
            for threads in thread_counts:
                lines += summary_line(results, operation, dtype, [threads])
            if len(thread_counts) > 1:
                lines += summary_line(results, operation, dtype, thread_counts)
    return table(header, lines)


def summary_line(results: Json, operation: str, dtype: str, thread_counts: Sequence[int]) -> list[list[str]]:
    """One row of the summary as a list of one, or none where nothing was measured."""
    rows = [row for row in results["rows"] if (row["operation"], row["dtype"]) == (operation, dtype)]
    ratios = {
        name: ratio for name, ratio in ratios_by_label(rows).items() if int(name.rpartition("t")[2]) in thread_counts
    }
    if not ratios:
        return []
    least = min(ratios, key=lambda name: ratios[name])
    speed = peak_share = "-"
    if len(thread_counts) == 1:
        ceiling = next(c for c in results["ceilings"] if c["num_threads"] == thread_counts[0])
        for row in rows:
            point = (row["head_dim"], row["seqlen_q"], row["mask"])
            if (row["library"], row["threads"], point) == ("tilewise", thread_counts[0], PEAK_POINT) and row[
                "status"
            ] == "ok":
                speed = f"{row['gflops']:.0f} GFLOP/s"
                peak_share = f"{100 * row['gflops'] / ceiling['peak_gflops'][dtype]:.0f}%"
    threads = ", ".join(str(count) for count in thread_counts)
    mean = f"{geometric_mean(list(ratios.values())):.2f}"
    place = " ".join(least.split()[2:])
    return [[operation, dtype, threads, mean, f"{ratios[least]:.2f}", place, speed, peak_share]]


def ratios_by_label(rows: Sequence[Json]) -> dict[str, float]:
    """How many times faster Tilewise is than torch, for each case that both computed rightly."""
    ratios = {name: ratio_of(pair.values()) for name, pair in group_by_label(rows).items()}
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


def decode_intro(row: Json) -> str:
    return (
        f"One decode step: {row['seqlen_q']} query, {row['num_heads_q']} query heads on {row['num_heads_k']} key heads,"
        f" head_dim {row['head_dim']}, {row['seqlen_k']} keys, on a cold cache:"
    )


def decode_table(results: Json) -> str:
    header = ["dtype", "threads", "Tilewise us", "Tilewise GB/s", "of the read bandwidth", "torch us", "torch GB/s"]
    bandwidth = {ceiling["num_threads"]: ceiling["read_gb_per_s"] for ceiling in results["ceilings"]}
    by_case = group_by_label(results["decode"])
    lines = []
    for pair in by_case.values():
        ours, torch = pair["tilewise"], pair["torch"]
        share = f"{100 * ours['gb_per_s'] / bandwidth[ours['threads']]:.0f}%"
        speeds = [f"{ours['median_us']:.0f}", f"{ours['gb_per_s']:.1f}", share]
        lines.append(
            [ours["dtype"], str(ours["threads"]), *speeds, f"{torch['median_us']:.0f}", f"{torch['gb_per_s']:.1f}"]
        )
    return table(header, lines)


def overhead_table(overhead: Json) -> str:
    lines = [
        [f"C++ {what}, {measured['implementation']}", f"{ns / 1000:.2f}"]
        for measured in overhead["cpp"]
        if measured["problem"].startswith("attention_")
        for what, ns in measured["ns"].items()
    ]
    lines += [[f"Python, {what}", f"{microseconds:.2f}"] for what, microseconds in overhead["torch_us"].items()]
    return table(["call", "us"], lines)


def grid_table(rows: Sequence[Json]) -> str:
    """head_dim, seqlen, mask against torch, Tilewise and their ratio for each thread count."""
    thread_counts = distinct(rows, "threads")
    header = ["head_dim", "seqlen", "mask"]
    for threads in thread_counts:
        header += [f"torch, {threads} thr.", f"Tilewise, {threads} thr.", "ratio"]
    by_case = group_by_label(rows)
    lines: dict[tuple[str, str, str], list[str]] = {}
    for pair in by_case.values():
        ours, torch = pair["tilewise"], pair["torch"]
        cells = lines.setdefault((str(ours["head_dim"]), str(ours["seqlen_q"]), mask_name(ours)), [])
        cells += [f"{torch['gflops']:.1f}", f"{ours['gflops']:.1f}", f"{torch['median_us'] / ours['median_us']:.2f}"]
    return table(header, [[*case, *cells] for case, cells in lines.items()])


def write_section(docs: Path, results: Json, plot_file: Path) -> None:
    """Keeps the section of this machine in the folder `docs`, in place of an earlier one."""
    publish("attention_cpu", results["machine"]["name"], text(results), plot_file.name, docs)


def plot(results: Json, file: Path) -> None:
    """GFLOP/s of both libraries over the grid, a panel for each pass and dtype, at the smallest thread count."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    passes, dtypes = distinct(results["rows"], "operation"), distinct(results["rows"], "dtype")
    threads = min(distinct(results["rows"], "threads"))
    peaks = next(c["peak_gflops"] for c in results["ceilings"] if c["num_threads"] == threads)
    size = (6.5 * len(dtypes), 3.6 * len(passes))
    figure, axes = pyplot.subplots(len(passes), len(dtypes), figsize=size, squeeze=False)
    for i, operation in enumerate(passes):
        for j, dtype in enumerate(dtypes):
            key = (operation, dtype, threads)
            rows = [row for row in results["rows"] if (row["operation"], row["dtype"], row["threads"]) == key]
            draw_panel(axes[i][j], rows, peaks[dtype])
            axes[i][j].set_title(f"{operation}, {dtype}, {threads} thread{'s' if threads > 1 else ''}")
    axes[0][0].legend(loc="upper right", ncols=3, fontsize="small")
    figure.suptitle(results["machine"]["name"])
    figure.tight_layout()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def draw_panel(axis: Any, rows: Sequence[Json], peak: float) -> None:
    groups = [pair for pair in group_by_label(rows).values() if len(pair) == 2]
    positions = range(len(groups))
    for offset, library, name, color in ((-0.2, "torch", "torch", "#b0b0b0"), (0.2, "tilewise", "Tilewise", "#2a6fbb")):
        heights = [pair[library]["gflops"] for pair in groups]
        axis.bar([position + offset for position in positions], heights, 0.4, label=name, color=color)
    axis.axhline(peak, color="#c0392b", linewidth=1, linestyle="--", label="measured peak")
    names = [f"d{p['torch']['head_dim']}\n{p['torch']['seqlen_q']}\n{mask_name(p['torch'])}" for p in groups]
    axis.set_xticks(list(positions), names, fontsize=7)
    axis.set_ylim(top=1.25 * max(peak, axis.get_ylim()[1]))  # room for the legend
    axis.set_ylabel("GFLOP/s")
