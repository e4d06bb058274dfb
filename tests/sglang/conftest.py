"""What every test beside SGLang begins with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sglang.srt.runtime_context import get_context


@pytest.fixture(autouse=True)
def published() -> Any:
    """SGLang reads how it was started from one place of a process."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    with get_context().override_server_args():
        yield
