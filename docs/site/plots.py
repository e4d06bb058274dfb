# What the data of docs/benchmarks says at a glance: plots are drawn from it whenever the site is built.
"""Draws the plots of the page "Benchmarks at a glance"."""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))

from publication import Section, Table, read

OURS, THEIRS, LINE = "#2a6fbb", "#9a9a9a", "#777777"
GPU_LIBRARIES = {"Tilewise": OURS, "cuDNN": "#b3541e", "FlashAttention-2": THEIRS}  # columns of its tables
# Legible on a light and on a dark page alike, and as wide as a phone where the page shrinks it.
STYLE = {
    "svg.fonttype": "path",
    "svg.hashsalt": "tilewise",
    "font.size": 12,
    "text.color": LINE,
    "axes.labelcolor": LINE,
    "axes.edgecolor": LINE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "savefig.transparent": True,
    "figure.constrained_layout.use": True,
}


def of_kind(sections: list[Section], kind: str) -> list[Section]:
    """Those that one script wrote; there must be some."""
    found = [section for section in sections if section.kind == kind]
    if not found:
        raise SystemExit(f"docs/benchmarks: must have a section of {kind!r}")
    return found


def named(section: Section, title: str) -> Table:
    """The table of a section whose title begins so; there must be one."""
    found = [table for table in section.tables if table.title.startswith(title)]
    if len(found) != 1:
        raise SystemExit(f"docs/benchmarks: {section.name}: must have one table {title!r} (got {len(found)})")
    return found[0]


def short(heading: str) -> str:
    """The processor's name on two lines at most."""
    return re.sub(r"\(R\)| Processor", "", heading).replace(", ", ",\n")


def draw_cpu(sections: list[Section], path: Path) -> None:
    """Bars: how many times as fast as torch, by processor."""
    machines = of_kind(sections, "attention_cpu")
    title = "Time of torch divided by time of Tilewise"
    cases = [("forward", "bf16"), ("forward", "f32"), ("backward", "bf16"), ("backward", "f32")]
    colours = ["#1f5fa8", "#7db4f0", "#b3541e", "#f0a878"]
    figure, axis = pyplot.subplots(figsize=(7.5, 4.2))
    for number, ((operation, dtype), colour) in enumerate(zip(cases, colours)):
        means = [
            next(
                float(row["geometric mean"])
                for row in named(machine, title).dicts()
                if (row["pass"], row["dtype"]) == (operation, dtype) and "," in row["threads"]
            )
            for machine in machines
        ]
        places = [machine + 0.2 * (number - 1.5) for machine in range(len(machines))]
        axis.bar(places, means, 0.18, color=colour, label=f"{operation}, {dtype}")
        for place, mean in zip(places, means):
            axis.text(place, mean + 0.06, f"{mean:.1f}", ha="center", fontsize=10)
    axis.axhline(1, color=LINE, linewidth=1, linestyle="--")
    axis.set_xticks(range(len(machines)), [short(machine.heading) for machine in machines])
    axis.set_ylabel("times as fast as torch")
    axis.legend(frameon=False, ncols=2, loc="upper left")
    figure.savefig(path)
    pyplot.close(figure)


def draw_gpu(sections: list[Section], operation: str, path: Path) -> None:
    """Lines: TFLOP/s by sequence length, a panel for each head_dim."""
    section = next(each for each in of_kind(sections, "attention_gpu") if each.heading == "NVIDIA H200")
    rows = named(section, f"TFLOP/s, {operation}").dicts()
    head_dims = list(dict.fromkeys(row["head_dim"] for row in rows))
    most = max(float(row[who]) for row in rows for who in GPU_LIBRARIES)
    figure, axes = pyplot.subplots(1, len(head_dims), figsize=(7.5, 3.6), sharey=True)
    for axis, head_dim in zip(axes, head_dims):
        for who, colour in GPU_LIBRARIES.items():
            for mask, style in (("full", "-"), ("causal", "--")):
                points = [row for row in rows if (row["head_dim"], row["mask"]) == (head_dim, mask)]
                lengths = [int(row["seqlen"]) for row in points]
                speeds = [float(row[who]) for row in points]
                axis.plot(lengths, speeds, style, marker="o", markersize=3, color=colour, label=f"{who}, {mask}")
        axis.set_xscale("log", base=2)
        axis.set_xticks([512, 2048, 8192], ["512", "2k", "8k"])
        axis.set_ylim(0, 1.08 * most)
        axis.grid(color=LINE, alpha=0.2)
        axis.set_title(f"head_dim {head_dim}", fontsize=12)
        axis.set_xlabel("seqlen")
    axes[0].set_ylabel("TFLOP/s")
    figure.legend(*axes[0].get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center", fontsize=11)
    figure.savefig(path)
    pyplot.close(figure)


def draw_serving(sections: list[Section], path: Path) -> None:
    """Bars: tokens a second of a model that serves, beside transformers' own attention."""
    rows = of_kind(sections, "serving")[0].tables[0].dicts()
    figure, axis = pyplot.subplots(figsize=(7.5, 3.6))
    for who, colour, shift in (("tilewise, tokens/s", OURS, -0.19), ("sdpa", THEIRS, 0.19)):
        speeds = [float(row[who]) for row in rows]
        places = [row + shift for row in range(len(rows))]
        axis.bar(places, speeds, 0.36, color=colour, label=who.partition(",")[0])
        for place, speed in zip(places, speeds):
            axis.text(place, speed + 2, f"{speed:.0f}", ha="center", fontsize=10)
    names = [f"{row['requests x prompt + new'].partition(' ')[0]}\n{row['dtype']}" for row in rows]
    axis.set_xticks(range(len(rows)), names)
    axis.set_xlabel("requests at once")
    axis.set_ylabel("new tokens a second")
    axis.legend(frameon=False, loc="upper left")
    figure.savefig(path)
    pyplot.close(figure)


def draw(folder: Path) -> None:
    """Writes every plot below `folder`."""
    sections = read()
    with pyplot.rc_context(STYLE):
        draw_cpu(sections, folder / "glance_cpu.svg")
        for operation in ("forward", "backward"):
            draw_gpu(sections, operation, folder / f"glance_gpu_{operation}.svg")
        draw_serving(sections, folder / "glance_serving.svg")
