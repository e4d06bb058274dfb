"""The manual page and the shells' completions say what `--help` says: every subcommand, option and choice."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

COMMANDS = [
    (),
    ("doctor",),
    ("explain",),
    ("run",),
    ("verify",),
    ("bench",),
    ("tune",),
    ("cache",),
    ("cache", "list"),
    ("cache", "clear"),
    ("compile",),
    ("completion",),
    ("manual",),
]
Offers = Callable[[str], list[str]]


def subcommands(help_text: str) -> list[str]:
    """The names below "Subcommands:"."""
    _, found, rest = help_text.partition("\nSubcommands:\n")
    return re.findall(r"^  ([a-z]+) ", rest.partition("\n\n")[0], re.MULTILINE) if found else []


def options(help_text: str) -> list[str]:
    lines = re.findall(r"^  (-[\w,-]+)", help_text, re.MULTILINE)
    return [name for line in lines for name in line.split(",")]


def choices(help_text: str) -> dict[str, list[str]]:
    """Of each option that has some: "--mask none|causal" in its parts."""
    found = re.findall(r"^  (?:-\w,)?(--[\w-]+) (\S+\|\S+)", help_text, re.MULTILINE)
    return {name: value.split("|") for name, value in found}


def test_every_command_is_here(tilewise):
    found: list[tuple[str, ...]] = [()]
    for command in found:
        found += [(*command, name) for name in subcommands(tilewise(*command, "--help").stdout)]
    assert sorted(found) == sorted(COMMANDS)


# ---- the manual page ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def manual(tilewise) -> str:
    return tilewise("manual").stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_manual_has_every_option(tilewise, manual, words):
    help_text = tilewise(*words, "--help").stdout
    page = manual.replace("\\-", "-")
    heading = " ".join(["tilewise", *words])
    section = page.partition(".SH OPTIONS")[2] if not words else page.partition(f".SS {heading} [OPTIONS]")[2]
    section = re.split(r"^\.S[SH] ", section, maxsplit=1, flags=re.MULTILINE)[0]
    assert options(help_text)
    for name in options(help_text):
        assert re.search(rf"^\.B .*{name}\b", section, re.MULTILINE), name
    for values in choices(help_text).values():
        assert "|".join(values) in section


def test_manual_is_a_page_without_faults(manual):
    assert manual.splitlines()[1].startswith('.TH TILEWISE 1 "" "tilewise ')
    for section in ("NAME", "SYNOPSIS", "OPTIONS", "SUBCOMMANDS", "NOTES", "SEE ALSO"):
        assert f"\n.SH {section}\n" in manual
    known = {'.\\"', ".TH", ".SH", ".SS", ".TP", ".B", ".br", ".PP", ".nf", ".fi"}
    macros = {line.split(" ")[0] for line in manual.splitlines() if line.startswith((".", "'"))}
    assert macros <= known
    assert all(ord(character) < 128 for character in manual)
    if shutil.which("mandoc"):
        done = subprocess.run(
            ["mandoc", "-T", "lint", "-W", "warning"], input=manual, capture_output=True, text=True, timeout=60
        )
        # A page without a date is the same however often it is made.
        assert [line for line in done.stdout.splitlines() if "missing date" not in line] == []
    if shutil.which("groff"):
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww"], input=manual, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0
        assert done.stderr == ""
        assert "--softmax-scale" in re.sub(".\x08", "", done.stdout)  # bold is printed twice


# ---- completions ----------------------------------------------------------------------------


def run_shell(words: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def bash_offers(script: Path, environment: dict[str, str], folder: Path) -> Offers:
    """What bash puts into COMPREPLY, with the words split at = as an interactive shell does."""

    def offers(line: str) -> list[str]:
        words = [part for word in line.split(" ") for part in re.split(r"(?<=.)(?==)|(?<==)(?=.)", word)]
        quoted = " ".join(f"'{word}'" for word in words)
        program = (
            f'source "{script}"; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _tilewise;'
            ' for reply in "${COMPREPLY[@]}"; do echo "$reply"; done'
        )
        return run_shell(["bash", "--norc", "-c", program], environment, folder)

    return offers


def fish_offers(script: Path, environment: dict[str, str], folder: Path) -> Offers:
    def offers(line: str) -> list[str]:
        program = f"source {script}; complete -C '{line}'"
        return [
            answer.split("\t")[0] for answer in run_shell(["fish", "--no-config", "-c", program], environment, folder)
        ]

    return offers


# Each candidate is printed where compadd would take it, and <> when all have been.
ZSH_DRIVER = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'PS1= PS2= RPS1=; autoload -Uz compinit; compinit -u -D; source $SCRIPT'
zpty -w shell 'compadd() { local -a fit; builtin compadd -O fit "$@"; print -rl -- "<"$^fit">"; builtin compadd "$@" }'
zpty -w shell 'offer() { _main_complete; print "<>" }; zle -C offer complete-word offer; bindkey "^I" offer'
zpty -w shell 'print rea""dy'
while zpty -r shell line; do [[ $line == *ready* ]] && break; done
zpty -w -n shell "$LINE_"$'\t'
while zpty -r shell line; do print -r -- "$line"; [[ $line == *"<>"* ]] && break; done
"""


def zsh_offers(script: Path, environment: dict[str, str], folder: Path) -> Offers:
    """What an interactive zsh in a pseudo-terminal lists when Tab is pressed."""

    def offers(line: str) -> list[str]:
        told = {**environment, "SCRIPT": str(script), "LINE_": line}
        lines = run_shell(["zsh", "-f", "-c", ZSH_DRIVER], told, folder)
        assert any("<>" in answer for answer in lines), lines
        return re.findall(r"<([^<>]+)>", "\n".join(lines))

    return offers


SHELLS = {"bash": bash_offers, "zsh": zsh_offers, "fish": fish_offers}


@pytest.fixture(scope="module", params=SHELLS)
def offers(request, tilewise, environment, tmp_path_factory) -> Offers:
    if not shutil.which(request.param):
        pytest.skip(f"no {request.param} here")
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "queries.npy").touch()
    (folder / "kernels").mkdir()
    script = folder.parent / f"completion.{request.param}"
    script.write_text(tilewise("completion", request.param).stdout)
    return SHELLS[request.param](script, environment, folder)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_completion_offers_every_option(tilewise, offers, words):
    wanted = options(tilewise(*words, "--help").stdout)
    line = " ".join(["tilewise", *words])
    offered = {name.rstrip("=") for name in offers(f"{line} --")}  # zsh writes the = before a value itself
    assert offered == {name for name in wanted if name.startswith("--")}


@pytest.mark.parametrize("words", [(), ("cache",)], ids=" ".join)
def test_completion_offers_subcommands(tilewise, offers, words):
    wanted = set(subcommands(tilewise(*words, "--help").stdout))
    line = " ".join(["tilewise", *words])
    assert {name for name in offers(f"{line} ") if not name.startswith("-")} == wanted


def test_completion_offers_values(tilewise, offers):
    values = choices(tilewise("run", "--help").stdout)
    assert values["--mask"] == ["none", "causal", "causal_top_left"]
    for name, words in values.items():
        assert set(offers(f"tilewise run {name} ")) == set(words)
    assert offers("tilewise run --causal --mask no") == ["none"]
    assert set(offers("tilewise completion ")) >= {"bash", "zsh", "fish"}


def test_completion_offers_files_where_files_are_meant(offers):
    assert "queries.npy" in offers("tilewise run --q ")
    assert {name.rstrip("/") for name in offers("tilewise compile --out ")} == {"kernels"}
    assert "queries.npy" not in offers("tilewise run --seed ")


def test_completion_after_an_equals_sign(offers):
    assert [word.rpartition("=")[2] for word in offers("tilewise run --mask=no")] == ["none"]


def test_unknown_shell(tilewise):
    assert "one of bash|zsh|fish" in tilewise("completion", "csh", status=2).stderr
