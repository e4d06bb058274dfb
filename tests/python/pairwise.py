# Cases over several options in which every two values of different options meet, for drop-ins whose options are too
# many for all combinations.
"""Pairwise coverage of options."""

import itertools
import os
import random
from typing import Any, Callable, Optional


def pairwise(axes: dict[str, list[Any]], possible: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Cases in which every possible pair of values of two axes occurs; the same ones at every call.

    TILEWISE_PAIRWISE_ROUNDS=20 makes twenty such lists of one, each with other cases.
    """
    rounds = int(os.environ.get("TILEWISE_PAIRWISE_ROUNDS", "1"))
    lists = [_round(axes, possible, seed) for seed in range(rounds)]
    different = {tuple(map(str, case.values())): case for one in lists for case in one}
    return list(different.values())


def _round(axes: dict[str, list[Any]], possible: Callable[[dict[str, Any]], bool], seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    names = list(axes)

    def draw(fixed: dict[str, int]) -> Optional[dict[str, int]]:
        for _ in range(200):
            case = {name: fixed.get(name, rng.randrange(len(axes[name]))) for name in names}
            if possible({name: axes[name][place] for name, place in case.items()}):
                return case
        return None

    wanted = {
        ((a, i), (b, j))
        for a, b in itertools.combinations(names, 2)
        for i in range(len(axes[a]))
        for j in range(len(axes[b]))
    }
    found = []
    for pair in sorted(wanted):
        if pair not in wanted:
            continue
        drawn = [case for case in (draw(dict(pair)) for _ in range(20)) if case is not None]
        if not drawn:  # the two exclude each other
            continue
        covers = [{((a, c[a]), (b, c[b])) for a, b in itertools.combinations(names, 2)} for c in drawn]
        best = max(range(len(drawn)), key=lambda place: len(covers[place] & wanted))
        wanted -= covers[best]
        found.append({name: axes[name][place] for name, place in drawn[best].items()})
    return found
