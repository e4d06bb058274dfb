"""`tilewise cache`: what it lists and clears, and what it says of a folder with damaged files."""

from __future__ import annotations

import json
from pathlib import Path


def fill(folder: Path) -> None:
    """Two files where kernels are kept; neither is one."""
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / ("a" * 64 + ".kernel")).write_bytes(b"no kernel" * 1000)
    (folder / "kernels" / ("b" * 64 + ".kernel")).write_bytes(b"TWKERNEL" + bytes(100))


def test_nothing_is_made_by_asking(tilewise, tmp_path):
    folder = tmp_path / "cache"
    text = tilewise("cache", "list", TILEWISE_CACHE_DIR=str(folder), TILEWISE_CACHE_SIZE_MB="50").stdout
    assert text == f"0 kernels, 0.00 of 50.0 MB in {folder}\n"
    assert tilewise("cache", "clear", TILEWISE_CACHE_DIR=str(folder)).stdout == f"removed 0 kernels from {folder}\n"
    assert not folder.exists()


def test_list_and_clear(tilewise, tmp_path):
    fill(tmp_path)
    text = tilewise("cache", "list", TILEWISE_CACHE_DIR=str(tmp_path)).stdout
    for words in ["(not a kernel of Tilewise)", "(of format 0, not ", "2 kernels, ", "aaaaaaaaaaaa", " ago"]:
        assert words in text
    report = json.loads(tilewise("cache", "list", "--json", TILEWISE_CACHE_DIR=str(tmp_path)).stdout)
    assert report["folder"] == str(tmp_path)
    assert report["limit_bytes"] == 1024 * 1000**2
    assert sorted((kernel["key"][0], kernel["bytes"]) for kernel in report["kernels"]) == [("a", 9000), ("b", 108)]
    assert all(kernel["fault"] and 0 <= kernel["age_seconds"] < 3600 for kernel in report["kernels"])

    assert tilewise("cache", "clear", TILEWISE_CACHE_DIR=str(tmp_path)).stdout == f"removed 2 kernels from {tmp_path}\n"
    assert list(tmp_path.iterdir()) == []


def test_bad_limit(tilewise, tmp_path):
    fill(tmp_path)
    done = tilewise("cache", "list", status=2, TILEWISE_CACHE_DIR=str(tmp_path), TILEWISE_CACHE_SIZE_MB="much")
    assert "TILEWISE_CACHE_SIZE_MB: must be an integer" in done.stderr
    assert "'much'" in done.stderr
    assert done.stdout == ""


def test_a_file_is_no_folder(tilewise, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for words in [["list"], ["list", "--json"]]:
        done = tilewise("cache", *words, status=2, TILEWISE_CACHE_DIR=str(file))
        assert f"TILEWISE_CACHE_DIR: must be a folder (got the file '{file}')" in done.stderr
        assert done.stdout == ""


def test_doctor_speaks_of_the_cache(tilewise, tmp_path):
    (tmp_path / "file").write_text("")
    good = json.loads(tilewise("doctor", "--json", TILEWISE_CACHE_DIR=str(tmp_path / "new")).stdout)["kernel_cache"]
    assert good == {"folder": str(tmp_path / "new"), "limit_bytes": 1024 * 1000**2, "reason": ""}
    text = tilewise("doctor", TILEWISE_CACHE_DIR=str(tmp_path / "file")).stdout
    assert f"Kernel cache: {tmp_path / 'file'}: not a folder (nothing is kept)" in text
