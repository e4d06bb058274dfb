"""What `make docs` does before and after Sphinx: links are rewritten and followed, headers read, plots drawn."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import links  # noqa: E402
import stage  # noqa: E402
from command import subcommands  # noqa: E402
from doxygen_filter import marked, without_namespace  # noqa: E402
from plots import draw  # noqa: E402
from tables import tables  # noqa: E402

from tilewise._calls import CALLS  # noqa: E402

SOURCE = ROOT / "docs" / "tutorials" / "cpp.md"


@pytest.mark.parametrize(
    ("link", "rewritten"),
    [
        ("../semantics.md#the-score", "../semantics.md#the-score"),
        ("../../README.md#what-works", "../overview.md#what-works"),
        ("../../bench/README.md", "../bench.md"),
        ("../../examples/consumer", f"{stage.REPOSITORY}/tree/main/examples/consumer"),
        ("../../src/exports.map", f"{stage.REPOSITORY}/blob/main/src/exports.map"),
        ("../benchmarks_gpu.png", "../benchmarks_gpu.png"),
        ("https://example.org/a.md", "https://example.org/a.md"),
        ("#in-c", "#in-c"),
    ],
)
def test_links_lead_to_pages_or_to_the_repository(link: str, rewritten: str) -> None:
    text = f"See [there]({link}).\n\n```sh\n[kept]({link})\n```\n"
    found = stage.rewrite(text, SOURCE, Path("tutorials/cpp.md"), stage.documents())
    assert found == f"See [there]({rewritten}).\n\n```sh\n[kept]({link})\n```\n"


def test_link_to_nothing_is_told() -> None:
    with pytest.raises(SystemExit, match="nothing is there"):
        stage.rewrite("[x](../no_such.md)", SOURCE, Path("tutorials/cpp.md"), stage.documents())


@pytest.mark.parametrize(
    ("link", "wrong"),
    [
        ("b.html#here", ""),
        ("folder/", ""),
        ("b.html#there", "no such anchor"),
        ("c.html", "nothing is there"),
        ("../outside.html", "it leaves the site"),
        ("https://example.org/page", ""),
        ("http://example.org", "an address must begin with https"),
        ("https://example", "no address has this form"),
        (f"{links.REPOSITORY}/blob/main/README.md", ""),
        (f"{links.REPOSITORY}/blob/main/no/such/file", "the repository has no no/such/file"),
    ],
)
def test_broken_links_are_found(tmp_path: Path, link: str, wrong: str) -> None:
    (tmp_path / "a.html").write_text(f'<p><a href="{link}">x</a></p>')
    (tmp_path / "b.html").write_text('<h1 id="here">x</h1>')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "index.html").write_text("<p>x</p>")
    assert links.broken_links(tmp_path) == ([f"a.html: {link}: {wrong}"] if wrong else [])


def test_comments_of_c_become_documentation() -> None:
    text = "/* File. */\n#ifndef X\n/* NOLINTBEGIN: x */\n/* A. */\nint f(int a); /* of b */\n  A = 0, /* zero */\n"
    assert marked(text) == (
        "/** @file\n * File. */\n#ifndef X\n\n/** A. */\nint f(int a); /**< of b */\n  A = 0, /**< zero */\n"
    )


def test_names_of_cpp_stand_alone() -> None:
    text = "// File,\n// more.\n#pragma once\nnamespace tilewise {\nint f();\n}  // namespace tilewise\n"
    assert without_namespace(text) == "/// @file\n/// File,\n/// more.\n#pragma once\n\nint f();\n\n"


def test_every_document_is_in_the_contents() -> None:
    text = (ROOT / "docs" / "site" / "pages" / "index.md").read_text()
    listed = set(
        re.findall(r"^(?:.* <)?([\w/]+)>?$", "".join(re.findall(r"```{toctree}(.*?)```", text, re.DOTALL)), re.M)
    )
    staged = {place.with_suffix("").as_posix() for place in stage.documents().values()}
    assert {name for name in staged if not name.startswith("decisions/")} == (listed | {"index"}) - {"api/command"}


def test_every_public_header_is_in_a_reference() -> None:
    for folder, pattern, page in (("", "*.hpp", "cpp"), ("c", "*.h", "c")):
        text = (ROOT / "docs" / "site" / "pages" / "api" / f"{page}.md").read_text()
        for header in (ROOT / "include" / "tilewise" / folder).glob(pattern):
            if header.name != "cxx20.hpp":  # it has a message and no name
                assert f"{{doxygenfile}} {header.name}\n" in text


def test_every_public_name_of_python_is_in_its_reference() -> None:
    import tilewise

    text = (ROOT / "docs" / "site" / "pages" / "api" / "python.md").read_text()
    for name in tilewise.__all__:
        if name not in ("__version__", "semantics"):  # a number, and a page of its own
            assert f":: tilewise.{name}\n" in text


def test_plots_are_drawn_from_the_published_data(tmp_path: Path) -> None:
    draw(tmp_path)
    page = (ROOT / "docs" / "site" / "pages" / "glance.md").read_text()
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert len(drawn) == 4
    assert all(f"({name})" in page for name in drawn)


def test_subcommands_are_found() -> None:
    text = "Options:\n  -h  help\n\nSubcommands:\n  run     Do it\n          again\n  stop    Don't\n\nEnd\n"
    assert subcommands(text) == ["run", "stop"]
    assert subcommands("Usage: x run\n\nOptions:\n  -h  help\n") == []


def test_tables_of_what_a_schema_says() -> None:
    text = "\n".join(tables(CALLS["merge"]))
    row = ("   * - ``outs``\n     - each of a list\n     - ``[batch_size, seqlen_q, num_heads_q, head_dim_v]``; thd "
           "``[total_q, num_heads_q, head_dim_v]``\n     - that of out or f32 (f64 where out is f64)\n")  # fmt: skip
    assert row in text
    assert "   * - ``sink``\n     - optional\n     - ``[num_heads_q]``\n     - f32 or that of out\n" in text
    assert "   * - ``layout``\n     - ``bshd``, ``sbhd``, ``bhsd``, ``thd``\n     - ``bshd``\n" in text
    assert "that of outs" in "\n".join(tables(CALLS["merge_backward"]))
