"""Arguments of the benchmarks' scripts, the command they publish and the file their results go to."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewise.bench.argument_types import list_of, one_of, regex

EXIT_OK, EXIT_FAILURE = 0, 1
PASSES = ("forward", "backward")
DEVICES = ("cuda", "cpu")
REPOSITORY = Path(__file__).resolve().parent.parent
BUILDS = sorted(REPOSITORY.glob("build*"))  # where programs may have been built
DOCS = REPOSITORY / "docs" / "benchmarks"  # the data that docs/benchmarks.md is made of

# Options that hold paths or names of this machine: no part of a published command.
_LOCAL = re.compile(r"--(ceilings|csv|json|plot|machine|write-docs)\b")


def report_parser(description: str, machine: str, plot: Path) -> argparse.ArgumentParser:
    """The arguments of every script that measures beside torch and reports it.

    `machine` says what the name of a machine's section is by default, `plot` where the picture goes.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--passes", type=list_of(one_of(PASSES)), default=list(PASSES), help="default: forward,backward"
    )
    parser.add_argument("--filter", type=regex, metavar="REGEX", help="only cases whose label it matches (see --list)")
    parser.add_argument("--list", action="store_true", help="print the labels of the cases and leave")
    parser.add_argument("--quick", action="store_true", help="fewer shapes, short samples: too rough to publish")
    parser.add_argument("--no-accuracy", action="store_true", help="skip the comparison with float64")
    parser.add_argument("--no-overhead", action="store_true", help="skip the cost of a call")
    add_report(parser, machine)
    default = plot.relative_to(REPOSITORY)
    parser.add_argument("--plot", type=Path, default=plot, metavar="FILE", help=f"default: {default}")
    return parser


def add_report(parser: argparse.ArgumentParser, machine: str) -> None:
    """The arguments of every script that writes a section of the documentation: see report_parser()."""
    parser.add_argument("--machine", metavar="NAME", help=f"title of this machine's section (default: {machine})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where results go (default: in bench/results)")
    parser.add_argument("--from-json", type=Path, metavar="FILE", help="measure nothing: report an earlier run")
    parser.add_argument("--write-docs", action="store_true", help="keep it in docs/benchmarks, and make the page anew")


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        type=one_of(DEVICES),
        default="cuda",
        help='default: cuda, AMD\'s GPUs too; "cpu" only tries the benchmark itself',
    )


def check_device(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    import torch

    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error(f"argument --device: must be one torch can use (got {options.device!r}, without a CUDA GPU)")


def check_report(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Judges what report_parser() or add_report() added."""
    if options.from_json is not None and not options.from_json.is_file():
        parser.error(f"argument --from-json: must be a file (got {str(options.from_json)!r})")
    if getattr(options, "quick", False) and options.write_docs:
        parser.error("argument --write-docs: must not be given with --quick, whose figures are too rough to publish")


def fill_in(options: argparse.Namespace, defaults: Mapping[str, Any]) -> None:
    """Sets what was not given."""
    for name, value in defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def results_file(script: str, machine: str) -> Path:
    """Where the results of `script` on a machine of that name go by default."""
    slug = re.sub(r"[^a-z0-9]+", "_", machine.lower()).strip("_")
    return REPOSITORY / "bench" / "results" / f"{script}_{slug}.json"


def read_results(file: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return results


def kept_results(options: argparse.Namespace, empty: Callable[[], Any], measure: Callable[[Any], None]) -> Any:
    """An earlier run's results, or those that measure() fills in: what it had before a failure is kept."""
    if options.from_json is not None:
        return read_results(options.from_json)
    results = empty()
    try:
        measure(results)
    finally:
        write_results(options.json, results)
    return results


def write_results(file: Path, results: Mapping[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def published_command(script: str, arguments: Sequence[str]) -> str:
    """The command as documentation shows it: without options that hold paths or names of this machine."""
    kept: list[str] = []
    skip_value = False
    for argument in arguments:
        if not skip_value and not _LOCAL.match(argument):
            kept.append(argument)
        skip_value = bool(_LOCAL.match(argument)) and "=" not in argument and argument != "--write-docs"
    return shlex.join(["python", f"bench/{script}", *kept])
