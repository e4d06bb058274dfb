"""The documents keep their word: every Python example runs, and every link leads somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from extract import blocks

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench" / "README.md"])
EXAMPLES = [
    pytest.param(example, id=f"{document.relative_to(ROOT)}-{number}")
    for document in DOCUMENTS
    for number, example in enumerate(blocks(document.read_text(encoding="utf-8"), "python"), 1)
]


def test_examples_are_found() -> None:
    found = [str(example.id) for example in EXAMPLES]
    assert {"README.md-1", "README.md-2", "README.md-3", "docs/migrating.md-1", "docs/migrating.md-3"} <= {*found}


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example: str) -> None:
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "explain" not in example or "chosen" in done.stdout


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        linked = (document.parent / path).resolve() if path else document
        assert linked.exists(), f"{target}: nothing is there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{target}: no such heading"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_in_running_text_exist(document: Path) -> None:
    folders = "src|include|tests|tools|python|examples|scripts"
    for path in re.findall(rf"`((?:{folders})/[\w./-]+)`", document.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), f"{path} does not exist"


def test_changelog_has_the_version_in_the_making() -> None:
    version = re.search(r"project\(tilewise VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert version
    assert f"## [{version.group(1)}]" in (ROOT / "CHANGELOG.md").read_text()
