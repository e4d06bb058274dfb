"""The progress bar of `python -m tilewise.bench`, silent where standard error is no terminal."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

# Says what is being done, and how many more of the bar's steps are finished; any thread may.
Step = Callable[[str, int], None]


@contextlib.contextmanager
def progress_bar(console: Any, total: int) -> Iterator[Step]:
    """A bar of `total` steps."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Two refreshes a second: the bar's own thread must not disturb what is being timed.
    with Progress(*columns, console=console, disable=not console.is_terminal, refresh_per_second=2) as bar:
        task = bar.add_task("", total=total)
        yield lambda description, finished: bar.update(task, description=description, advance=finished)
