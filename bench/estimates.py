"""What `explain` estimates beside what a call takes, over the shapes of every benchmark.

On the CPU those of attention_cpu.py, on a GPU those of attention_gpu.py, and on both the default grid of
`python -m tilewise.bench`, forward and backward. Prints estimate by measured time for every case, and the extremes;
--csv keeps both times. With --write-docs its section of docs/benchmarks is kept. See bench/README.md.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks_page import publish
from command_line import DOCS, EXIT_OK, PASSES, published_command
from estimate_cases import Job, cpu_jobs, gpu_jobs

from tilewise.bench.argument_types import integer, list_of, one_of, regex, seconds
from tilewise.bench.compile_ahead import compile_all
from tilewise.bench.gpu import gpu_name
from tilewise.bench.machine import describe_machine
from tilewise.bench.markdown import table
from tilewise.bench.timing import geometric_mean

DEFAULT_SECONDS = {"cpu": 0.1, "cuda": 0.02}
FACTOR = 2.0  # that estimates are held to, either way


@dataclass(frozen=True)
class Estimate:
    """One case; the field names are the CSV's columns. `row` and `column` are its place in the table of `bench`."""

    machine: str
    command: str
    bench: str
    operation: str
    row: str
    column: str
    implementation: str
    measured_us: float
    estimated_us: float

    @property
    def ratio(self) -> float:
        return self.estimated_us / self.measured_us

    @property
    def place(self) -> str:
        return f"{self.row}, {self.column}"


def main() -> int:
    options = parse_arguments()
    if options.from_csv is not None:
        estimates = read_csv(options.from_csv)
    else:
        estimates = []
        try:
            estimates.extend(measure_all(options))
        finally:  # what was measured before a failure is kept
            if options.csv is not None:
                write_csv(options.csv, estimates)
    print(text(estimates))
    if options.write_docs:
        publish("estimates", estimates[0].machine, text(estimates), folder=DOCS)
        print(f"written: {DOCS}")
    return EXIT_OK


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=tuple(DEFAULT_SECONDS), default="cpu", help="cuda: AMD's GPUs too")
    parser.add_argument(
        "--passes", type=list_of(one_of(PASSES)), default=list(PASSES), help="default: forward,backward"
    )
    parser.add_argument(
        "--threads", type=list_of(integer(1)), default=[1, 2], metavar="COUNTS", help="of the CPU (default: 1,2)"
    )
    parser.add_argument("--seconds", type=seconds, help="for each case (default: 0.1; on a GPU 0.02)")
    parser.add_argument(
        "--busy", action="store_true", help="on the CPU: count processor time by threads, as other programs run too"
    )
    parser.add_argument("--filter", type=regex, metavar="REGEX", help="only cases whose label it matches (see --list)")
    parser.add_argument("--list", action="store_true", help="print the labels of the cases and leave")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write every case here")
    parser.add_argument("--from-csv", type=Path, metavar="FILE", help="measure nothing: report an earlier run")
    parser.add_argument("--write-docs", action="store_true", help="keep it in docs/benchmarks, and make the page anew")
    options = parser.parse_args()
    if options.from_csv is not None and not options.from_csv.is_file():
        parser.error(f"argument --from-csv: must be a file (got {str(options.from_csv)!r})")
    options.seconds = options.seconds or DEFAULT_SECONDS[options.device]
    if options.list:
        print("\n".join(job.label for job in wanted_jobs(options)))
        sys.exit(EXIT_OK)
    if options.from_csv is None and not wanted_jobs(options):
        parser.error(f"argument --filter: must match the label of a case (got {options.filter.pattern!r})")
    return options


def wanted_jobs(options: argparse.Namespace) -> list[Job]:
    if options.device == "cpu":
        jobs = cpu_jobs(options.passes, options.threads, options.seconds, options.busy)
    else:
        jobs = gpu_jobs(options.passes, options.seconds)
    return [job for job in jobs if options.filter is None or options.filter.search(job.label)]


def measure_all(options: argparse.Namespace) -> Iterator[Estimate]:
    """A line of progress on standard error for each case."""
    jobs = wanted_jobs(options)
    if options.device == "cpu":
        machine = describe_machine().name
    else:
        machine = gpu_name()
        compiled = compile_all([(job.label, job.warm_up) for job in jobs])
        for label, message in compiled.failures:
            print(f"not compiled ahead: {label}: {message}", file=sys.stderr)
        print(f"kernels ready after {compiled.seconds:.0f} s on {compiled.cpus} processors", file=sys.stderr)
    command = f"`{published_command('estimates.py', sys.argv[1:])}` ({time.strftime('%Y-%m-%d', time.gmtime())})"
    for job in jobs:
        try:
            times = job.run()
        except (RuntimeError, NotImplementedError) as error:  # the other cases are worth having
            print(f"{job.label}: failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            continue
        place = (job.bench, job.operation, job.row, job.column)
        estimate = Estimate(machine, command, *place, times.implementation, times.measured_us, times.estimated_us)
        figures = f"{times.measured_us:.1f} us, estimated {times.estimated_us:.1f} us, ratio {estimate.ratio:.2f}"
        print(f"{job.label}: {figures}", file=sys.stderr, flush=True)
        yield estimate


def write_csv(file: Path, estimates: Sequence[Estimate]) -> None:
    names = [field.name for field in dataclasses.fields(Estimate)]
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(dataclasses.asdict(estimate) for estimate in estimates)


def read_csv(file: Path) -> list[Estimate]:
    def estimate(row: dict[str, str]) -> Estimate:
        times = {name: float(row.pop(name)) for name in ("measured_us", "estimated_us")}
        return Estimate(**row, **times)  # type: ignore[arg-type]  # the rest are strings

    with file.open(newline="", encoding="utf-8") as stream:
        return [estimate(row) for row in csv.DictReader(stream)]


def text(estimates: Sequence[Estimate]) -> str:
    """The whole report as Markdown, for the terminal and for the documentation."""
    kernels = ", ".join(dict.fromkeys(estimate.implementation for estimate in estimates))
    commands = ", ".join(dict.fromkeys(estimate.command for estimate in estimates))
    parts = [f"By {commands}; Tilewise ran {kernels}.", summary_table(estimates)]
    for bench in dict.fromkeys(estimate.bench for estimate in estimates):
        parts += [f"Estimate by measured time, {bench}:", ratio_table([e for e in estimates if e.bench == bench])]
    return "\n\n".join(parts)


def summary_table(estimates: Sequence[Estimate]) -> str:
    """The extremes of each benchmark and pass."""
    groups: dict[tuple[str, str], list[Estimate]] = {}
    for estimate in estimates:
        groups.setdefault((estimate.bench, estimate.operation), []).append(estimate)
    lines = []
    for (bench, operation), group in groups.items():
        least, most = (extreme(group, key=lambda estimate: estimate.ratio) for extreme in (min, max))
        within = sum(1 / FACTOR <= estimate.ratio <= FACTOR for estimate in group)
        mean = geometric_mean([estimate.ratio for estimate in group])
        figures = [f"{within} of {len(group)}", f"{mean:.2f}"]
        for extreme in (least, most):
            figures += [f"{extreme.ratio:.2f}", extreme.place]
        lines.append([bench, operation, *figures])
    header = ["benchmark", "pass", f"within a factor of {FACTOR:.0f}", "geometric mean", "least", "at", "most", "at"]
    return table(header, lines)


def ratio_table(estimates: Sequence[Estimate]) -> str:
    """Every case of one benchmark."""
    columns = list(dict.fromkeys(estimate.column for estimate in estimates))
    lines: dict[str, dict[str, str]] = {}
    for estimate in estimates:
        lines.setdefault(estimate.row, {})[estimate.column] = f"{estimate.ratio:.2f}"
    return table(
        ["case", *columns], [[row, *(cells.get(name, "-") for name in columns)] for row, cells in lines.items()]
    )


if __name__ == "__main__":
    sys.exit(main())
