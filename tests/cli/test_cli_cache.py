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
    text = tilewise("doctor", status=1, TILEWISE_CACHE_DIR=str(tmp_path / "file")).stdout
    assert f"Kernel cache: {tmp_path / 'file'}: not a folder (nothing is kept)" in text
    assert f"\nProblems\n  kernel cache: {tmp_path / 'file'}: not a folder\n" in text


def test_a_folder_that_others_may_write_is_told(tilewise, tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    reason = f"{folder}: must be writable by nobody else than its owner (mode 0777); kernels there are ignored"
    told = f"tilewise: kernel cache: {reason} (nothing is kept)\n"
    place = {"TILEWISE_CACHE_DIR": str(folder)}
    assert tilewise("cache", "list", **place).stderr == told
    done = tilewise("cache", "list", "--json", **place)
    assert done.stderr == told
    assert json.loads(done.stdout)["reason"] == reason
    problem = "attention_forward device=cuda dtype=bf16 seqlen_q=64 head_dim=64"
    assert tilewise("tune", "--dry-run", problem, status=1, **place).stderr.startswith(told)
    kept = tilewise("tune", problem, status=1, **place).stderr
    assert (
        kept == f"{told}tilewise: tune: what it finds could not be kept; --dry-run times the schedules all the same\n"
    )


def test_nothing_is_told_of_a_cache_that_keeps(tilewise, tmp_path):
    place = {"TILEWISE_CACHE_DIR": str(tmp_path / "new")}
    done = tilewise("cache", "list", "--json", **place)
    assert done.stderr == ""
    assert json.loads(done.stdout)["reason"] == ""
