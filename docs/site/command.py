# The page of the command: what every subcommand's --help says, so that no page has to repeat it.
"""Writes the reference of the `tilewise` command."""

import re
import subprocess
from pathlib import Path

HEAD = """# Command line

`man tilewise` is this page where Tilewise is installed; bash, zsh and fish complete it. Exit status: 0 done, 1 the task
failed, 2 usage or bad input.

"""


def subcommands(help_text: str) -> list[str]:
    """The names below "Subcommands:"."""
    _, found, rest = help_text.partition("\nSubcommands:\n")
    return re.findall(r"^  ([a-z]+) ", rest.partition("\n\n")[0], re.MULTILINE) if found else []


def sections(command: Path, words: tuple[str, ...] = ()) -> list[str]:
    """A section for the command and for each of its subcommands, theirs included."""
    done = subprocess.run([command, *words, "--help"], capture_output=True, text=True, check=True)
    level = "#" * (2 + (len(words) > 1))
    own = f"{level} {' '.join(('tilewise', *words))}\n\n```text\n{done.stdout.strip()}\n```\n"
    return [own, *(part for name in subcommands(done.stdout) for part in sections(command, (*words, name)))]


def write_page(command: Path, page: Path) -> None:
    """Writes the page of a built command."""
    page.write_text(HEAD + "\n".join(sections(command)), encoding="utf-8")
