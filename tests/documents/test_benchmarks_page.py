"""docs/benchmarks.md is what its data makes, and data keeps what a report says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import benchmarks_page  # noqa: E402
import publication  # noqa: E402
import speed_picture  # noqa: E402

REPORT = """
- GPU: some GPU; driver 1
- command: `python bench/some.py
  --long` (2026-01-02)

TFLOP/s, forward:

| head_dim | mask | torch | Tilewise | ratio | torch | Tilewise | ratio |
|---------:|------|------:|---------:|------:|------:|---------:|------:|
|       64 | full |  10.0 |     20.0 |  2.00 |  30.0 |     15.0 |  0.50 |
|      128 | full |  10.0 |     40.0 |  4.00 |     - |        - |     - |

What was seen
besides.
"""


@pytest.fixture
def section() -> publication.Section:
    return publication.section_of("some", "A GPU, 2 cores", REPORT, "some.png")


def page(section: publication.Section, template: str) -> str:
    return benchmarks_page.Page([section]).render(template)


def test_page_is_what_the_data_makes() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert text == benchmarks_page.make(), "python bench/benchmarks_page.py makes it anew"


def test_picture_is_what_the_data_makes() -> None:
    sections = publication.read()
    text = (ROOT / "docs" / "benchmarks_speed.svg").read_text(encoding="utf-8")
    assert text == speed_picture.draw(sections), "python bench/benchmarks_page.py makes it anew"
    assert "(docs/benchmarks_speed.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert {bar.beside for bar in speed_picture.bars(sections)} == {"cuDNN", "FlashAttention-2", "torch"}
    assert not speed_picture.bars([])


def test_page_is_short_and_names_every_file_of_data() -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    for file in (ROOT / "docs" / "benchmarks").glob("*.json"):
        assert f"(benchmarks/{file.name})" in text


def test_report_becomes_data(section: publication.Section) -> None:
    assert section.name == "some_a_gpu_2_cores"
    assert section.facts == ["GPU: some GPU; driver 1", "command: `python bench/some.py --long` (2026-01-02)"]
    assert section.notes == ["What was seen besides."]
    (table,) = section.tables
    assert table.title == "TFLOP/s, forward"
    assert table.rows[0] == ["64", "full", "10.0", "20.0", "2.00", "30.0", "15.0", "0.50"]
    assert table.dicts()[0]["Tilewise"] == "20.0"


def test_data_is_read_as_it_was_written(section: publication.Section, tmp_path: Path) -> None:
    file = publication.write(section, tmp_path)
    assert publication.read(tmp_path) == [section]
    assert '    ["128", "full", "10.0", "40.0", "4.00", "-", "-", "-"]\n' in file.read_text()


def test_notes_outlive_a_new_run(section: publication.Section, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    publication.write(section, folder)
    (folder / "page.md.in").write_text("# Page\n\n{{table some_a_gpu_2_cores | TFLOP/s}}\n")
    benchmarks_page.publish(
        "some", "A GPU, 2 cores", REPORT.replace("What was seen", "More").replace("40.0", "41.0"), "", folder
    )
    (again,) = publication.read(folder)
    assert again.notes == ["More besides.", "What was seen besides."]
    assert "41.0" in (tmp_path / "data.md").read_text()


def test_directives(section: publication.Section) -> None:
    name = section.name
    assert page(section, "{{each some}}\n### {{heading @}}\n{{end}}\n") == "### A GPU, 2 cores\n"
    assert page(section, f"{{{{facts {name} | GPU}}}}") == "- GPU: some GPU; driver 1"
    assert page(section, f"{{{{picture {name}}}}}") == "![Speed on A GPU, 2 cores](some.png)"
    assert page(section, f"{{{{cell {name} | TFLOP | head_dim=128; mask=full | ratio}}}}") == "4.00"
    assert page(section, f"{{{{least {name} | TFLOP | head_dim=64 or 128 | ratio}}}}") == "2"
    assert page(section, f"{{{{most {name} | TFLOP | mask=full | ratio}}}}") == "4"
    table = page(section, f"{{{{table {name} | TFLOP | head_dim=64 | mask; ratio}}}}")
    assert [re.findall(r"[\w.]+", line) for line in table.splitlines()][::2] == [["mask", "ratio"], ["full", "2.00"]]


def test_losses_are_found(section: publication.Section) -> None:
    (line,) = page(section, "{{losses}}").splitlines()
    assert line == "- A GPU, 2 cores, TFLOP/s, forward, head_dim 64, mask full: torch takes 0.50 of Tilewise's time"


@pytest.mark.parametrize(
    ("directive", "message"),
    [
        ("{{each other}}\n{{end}}\n", "must name a kind of section (got 'other')"),
        ("{{tables x}}", "must use one of heading, facts, "),
        ("{{heading x}}", "must name a section of docs/benchmarks (got 'x')"),
        ("{{table NAME | GB/s}}", "must have one table 'GB/s' (got 0)"),
        ("{{table NAME | TFLOP | dtype=bf16}}", "has no column dtype"),
        ("{{table NAME | TFLOP | mask=causal}}", "has no row with mask=causal"),
        ("{{table NAME | TFLOP | mask=full | dtype}}", "has no column dtype"),
        ("{{cell NAME | TFLOP | mask=full | ratio}}", "must be one cell of 'ratio' (got 2 rows)"),
    ],
)
def test_wrong_directives_are_told(section: publication.Section, directive: str, message: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)):
        page(section, directive.replace("NAME", section.name))
