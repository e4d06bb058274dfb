"""The documents keep their word: every Python example runs, and every link leads somewhere."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from extract import blocks

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "bench" / "README.md"])
# Pages of the site alone link to what is beside them there: `make docs` follows those links.
LINKED = [document for document in DOCUMENTS if ROOT / "docs" / "site" not in document.parents]
COMMAND = Path(os.environ.get("TILEWISE_CLI", ROOT / "build" / "tilewise"))
EXAMPLES = {
    str(document.relative_to(ROOT)): examples
    for document in DOCUMENTS
    if (examples := blocks(document.read_text(encoding="utf-8"), "python"))
}
# Runs the examples of a page one after the other, each with names of its own, in one process: what takes long is
# importing torch. Says which of them failed, and ends what each one prints with a line.
RUN_EXAMPLES = """
import json, sys
for number, example in enumerate(json.load(sys.stdin), 1):
    name = f"example {number}"
    try:
        exec(compile(example, name, "exec"), {"__name__": "__main__"})
    except BaseException:
        print(name, "failed:\\n" + example, file=sys.stderr)
        raise
    print("\\0")
"""
COMMAND_LINES = [
    pytest.param(line, id=f"{document.relative_to(ROOT)}-{number}")
    for document in DOCUMENTS
    if document.parent.name == "tutorials"
    for number, line in enumerate("".join(blocks(document.read_text(encoding="utf-8"), "sh")).splitlines(), 1)
]


def test_examples_are_found() -> None:
    least = {"README.md": 3, "docs/migrating.md": 3, "docs/tutorials/training.md": 4, "docs/tutorials/serving.md": 3}
    for page, number in {**least, "docs/site/pages/index.md": 1}.items():
        assert len(EXAMPLES[page]) >= number
    assert len(COMMAND_LINES) >= 6


@pytest.mark.parametrize("page", EXAMPLES)
def test_examples_run(page: str) -> None:
    examples = EXAMPLES[page]
    if any("import jax" in example for example in examples) and importlib.util.find_spec("jax") is None:
        pytest.skip("JAX is not installed")
    command = [sys.executable, "-c", RUN_EXAMPLES]
    done = subprocess.run(command, input=json.dumps(examples), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("\0\n")
    assert len(printed) == len(examples) + 1
    for example, output in zip(examples, printed, strict=False):
        assert "explain" not in example or "chosen" in output, example


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_command_of_a_tutorial_runs(line: str, tmp_path: Path) -> None:
    """Blocks of sh run anywhere; those of console, each line behind a $, need a GPU or installation."""
    program, *words = shlex.split(line)
    assert program == "tilewise"
    if "--target" in words:
        libraries = json.loads(subprocess.run([COMMAND, "doctor", "--json"], capture_output=True, check=True).stdout)
        compiler = next(one for one in libraries["libraries"] if one["name"] == "compiler for AMD")
        if not compiler["found"]:
            pytest.skip(compiler["detail"])
    done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_environment_variables_are_those_of_the_doctor() -> None:
    report = subprocess.run([COMMAND, "doctor", "--json"], capture_output=True, text=True, timeout=60).stdout
    known = [f"| `{variable['name']}` | {variable['meaning']} |" for variable in json.loads(report)["environment"]]
    text = (ROOT / "docs" / "environment.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `TILEWISE_\w+` \|[^|]*\|", text, re.MULTILINE) == known


def test_doctor_knows_what_the_sources_read() -> None:
    sources = [path for folder in ("src", "python/tilewise") for path in (ROOT / folder).rglob("*.[cp][py]*")]
    read = r'(?:environ(?:\.get)?[(\[]|environment_variable\(|getenv\(|library_names\()"(TILEWISE_\w+)"'
    found = {name for path in sources for name in re.findall(read, path.read_text(encoding="utf-8"))}
    listed = (ROOT / "src" / "core" / "environment.cpp").read_text(encoding="utf-8")
    known = set(re.findall(r'^    \{"(TILEWISE_\w+)", "', listed, re.MULTILINE))
    assert len(found) > 15
    assert found <= known


def test_an_operation_has_one_section() -> None:
    """Two definitions of one thing drift apart."""
    text = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8")
    headings = [re.sub(r"\s*\(.*", "", heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    assert "KV cache step" in headings
    assert sorted({*headings}) == sorted(headings)


def test_what_is_told_to_install_is_to_be_had() -> None:
    """By a path, or where no index is asked: on an index the name may be nobody's, or somebody else's."""
    for document in DOCUMENTS:
        for line in re.findall(r"pip install[^`\n]*", document.read_text(encoding="utf-8")):
            by_name = re.search(r"(?<![\w/.-])tilewise(\[|\s|\"|$)", line)
            assert not by_name or "--no-index" in line, f"{document}: {line}"
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How fast")[0]
    assert re.search(r"^\$ pip install \.$", first_screen, re.MULTILINE)


@pytest.mark.parametrize("document", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
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


@pytest.mark.parametrize(
    ("page", "words"),
    [("architecture", 3000), ("hopper", 2500), ("portable_kernels", 1000), ("kv_cache_step", 1000)],
)
def test_page_stays_short(page: str, words: int) -> None:
    """Conclusions, not logs: what somebody with five minutes reads. Figures belong into docs/benchmarks."""
    assert len((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split()) <= words


def test_changelog_stays_short() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("## [0.1.0]")[1].splitlines()) <= 60


def test_changelog_has_the_version_in_the_making() -> None:
    version = re.search(r"project\(tilewise VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert version
    assert f"## [{version.group(1)}]" in (ROOT / "CHANGELOG.md").read_text()
