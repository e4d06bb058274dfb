"""Turns the results of decode_gpu.py into Markdown tables and a section of docs/benchmarks.

Works from the JSON alone, so that a run on another machine can be reported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks_page import publish
from decode_cases import FORMS, Form
from gpu_report import error, machine_list, number

from tilewise.bench.markdown import Json, distinct, table

# Columns for what is not the default in every row, and the cells of the default.
RARE = {"capacity": "longest", "queries": "bf16", "num_splits": "own"}


def text(results: Json) -> str:
    """The whole report as Markdown, for the terminal and for the documentation."""
    parts = [machine_list(results)]
    for form_name in distinct(results["rows"], "form"):
        rows = [row for row in results["rows"] if row["form"] == form_name]
        parts += [intro(FORMS[form_name]), step_table(rows)]
    if failed := [row for row in results["rows"] if row["status"] != "ok"]:
        parts.append("\n".join(f"- {row['label']}: {row['status']}" for row in failed))
    return "\n\n".join(parts)


def intro(form: Form) -> str:
    heads = f"{form.num_heads_q} query heads on {form.num_heads_k} key head{'s' if form.num_heads_k > 1 else ''}"
    sizes = f"head_dim {form.head_dim}"
    if form.mla:
        sizes += f", whose first {form.head_dim_v} columns are the values"
    return f"{form.title}: one query of each sequence, {heads}, {sizes}:"


def step_table(rows: Sequence[Json]) -> str:
    """A line for each step. TFLOP/s are told where the products would take longer than the bytes."""
    columns = ["sequences x keys", "cache", "pages", *RARE, "us", "GB/s", "TFLOP/s", "of ceiling", "error"]
    lines = []
    for row in rows:
        cells = {
            "sequences x keys": row["keys"],
            "cache": row["cache"],
            "pages": str(row["page_size"] or "contiguous"),
            "capacity": str(row["capacity"] or RARE["capacity"]),
            "queries": row["queries"],
            "num_splits": str(row["num_splits"] or RARE["num_splits"]),
            "us": number(row["median_us"], 1),
            "GB/s": number(row["gb_per_s"]),
            "TFLOP/s": number(row["tflops"] if row["products_bound"] else None),
            "of ceiling": "-" if row["of_ceiling"] is None else f"{100 * row['of_ceiling']:.0f}%",
            "error": error(row),
        }
        lines.append(cells)
    usual = {**RARE, "TFLOP/s": "-"}
    kept = [name for name in columns if name not in usual or {line[name] for line in lines} != {usual[name]}]
    return table(kept, [[line[name] for name in kept] for line in lines])


def write_section(docs: Path, results: Json) -> None:
    """Keeps the section of this GPU in the folder `docs`, in place of an earlier one."""
    publish("decode_gpu", results["machine"]["name"], text(results), folder=docs)
