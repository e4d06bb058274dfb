"""What SGLang finds of Tilewise, without SGLang. tests/sglang runs beside SGLang itself, in `make nightly`."""

from __future__ import annotations

import importlib.metadata

import pytest

from tilewise import _engines


def test_sglang_finds_the_entry_point() -> None:
    found = {(entry.name, entry.value) for entry in importlib.metadata.entry_points(group="sglang.srt.plugins")}
    assert ("tilewise", "tilewise.sglang:register") in found


def test_what_is_known_of_a_release() -> None:
    known = {"0.26": "by its minor version", "0.5.23": "by all of it"}
    assert _engines.release_sentence("X", "0.26.4", known).endswith("in X 0.26.4, by its minor version")
    assert _engines.release_sentence("X", "0.5.23", known).endswith("in X 0.5.23, by all of it")
    assert "knows X 0.26, 0.5.23, and not 0.5.24: " in _engines.release_sentence("X", "0.5.24", known)


def test_what_means_something_is_refused() -> None:
    _engines.refuse_meanings("X", "a layer", {"a": None, "b": False, "c": -1}, {"c": -1})
    with pytest.raises(NotImplementedError, match=r"c: is not supported .* in X, passed by a layer \(got 3\)"):
        _engines.refuse_meanings("X", "a layer", {"c": 3}, {"c": -1})
