"""What the command asks of an operation that it measures. It knows none by name: operations.py lists them."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

from tilewise.bench.contenders import Contender
from tilewise.bench.rows import Row


class BenchOperation(ABC):
    """One operation: its arguments, its cases, and the libraries that compute them."""

    name: str  # that --operation takes
    described: str  # in its help
    shapes_described: str  # in that of --shapes
    rivals: tuple[str, ...]  # that --compare takes on the CPU
    gpu_rivals: tuple[str, ...]
    only_with_torch = False
    # Arguments of this operation alone, by their destinations, with what they are unless given. Others refuse them.
    own: dict[str, Any]
    # A small problem by which a GPU is judged, where it is another than gpu.refusal()'s.
    probe: Optional[str] = None

    @abstractmethod
    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Those of `own`."""

    @abstractmethod
    def settle(self, parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
        """Refuses what does not go together, and fills the defaults of `own` in. The device is as it was given."""

    def gpu_dtypes(self, options: argparse.Namespace) -> Sequence[str]:
        """Those to ask the GPU about, beside the probe."""
        del options
        return ()

    @abstractmethod
    def parse_shape(self, text: str) -> Any:
        """One of --shapes. Raises ValueError."""

    @abstractmethod
    def default_shapes(self, device: str) -> list[Any]:
        """Without --shapes."""

    @abstractmethod
    def cases(self, options: argparse.Namespace) -> list[Any]:
        """Everything that is to be measured, in this order."""

    @abstractmethod
    def ours(self) -> Contender[Any, Any]:
        """This library."""

    @abstractmethod
    def rival(self, name: str, device: str) -> Contender[Any, Any]:
        """One of `rivals` or `gpu_rivals` on a device."""

    def compile_jobs(
        self, ours: Contender[Any, Any], cases: Iterable[Any]
    ) -> Sequence[tuple[str, Callable[[], object]]]:
        """What compiles each case's kernels for a GPU ahead of all timing, with its label."""
        del ours, cases
        return ()

    @abstractmethod
    def run(self, case: Any, contenders: Sequence[Any], settings: Any, on_step: Callable[[str], object]) -> list[Row]:
        """The rows of one case, a contender each."""
