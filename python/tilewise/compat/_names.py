# The core's messages speak of q, k, v and bias; a drop-in's user has passed them under other names.
"""Errors of tilewise.attention in the words of another function's arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping

# What tilewise.attention raises for a call that it does not take: wrong arguments, or none that honours them.
REFUSALS = (TypeError, ValueError, NotImplementedError)


def renamed(error: Exception, names: Mapping[str, str]) -> Exception:
    """`error`, one of the REFUSALS, again, with every argument of `names` under its other name."""
    kind = next(kind for kind in REFUSALS if isinstance(error, kind))
    pattern = r"\b(" + "|".join(names) + r")\b(?!=)"
    return kind(re.sub(pattern, lambda match: names[match.group(1)], str(error)))
