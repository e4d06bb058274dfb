# `make docs`: Doxygen reads the headers, stage.py lays out the documents, plots.py draws, Sphinx makes pages, and
# links.py follows every link of them.
"""Builds the documentation site; any warning is an error.

usage: build.py [--out FOLDER]      FOLDER: build/site by default; the pages are in FOLDER/html
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from command import write_page
from links import broken_links
from plots import draw
from stage import ROOT, stage

SITE = Path(__file__).resolve().parent

# What the references of C++ and C have in common, and what each reads. Names without a comment are listed too.
DOXYGEN = """
INPUT = {inputs}
FILE_PATTERNS = {patterns}
EXCLUDE = {excluded}
OUTPUT_DIRECTORY = "{folder}"
XML_OUTPUT = {language}
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
GENERATE_HTML = NO
GENERATE_LATEX = NO
EXTRACT_ALL = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = TILEWISE_EXPORT= [[nodiscard]]= [[noreturn]]=
STRIP_FROM_PATH = include
STRIP_FROM_INC_PATH = include
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
WARN_AS_ERROR = YES
INPUT_FILTER = "{python} {filter}"
"""
C_OPTIONS = """
OPTIMIZE_OUTPUT_FOR_C = YES
TYPEDEF_HIDES_STRUCT = YES
EXTENSION_MAPPING = h=C
"""


def read_headers(folder: Path) -> None:
    """Doxygen's XML of the C++ and of the C headers, in folder/cpp and folder/c."""
    if shutil.which("doxygen") is None:
        raise SystemExit("doxygen: must be installed (Debian: apt-get install doxygen)")
    languages = {
        "cpp": ("include/tilewise", "*.hpp", "include/tilewise/c include/tilewise/cxx20.hpp", ""),
        "c": ("include/tilewise/c", "*.h", "", C_OPTIONS),
    }
    for language, (inputs, patterns, excluded, more) in languages.items():
        shutil.rmtree(folder / language, ignore_errors=True)
        settings = (DOXYGEN + more).format(
            inputs=inputs,
            patterns=patterns,
            excluded=excluded,
            folder=folder,
            language=language,
            python=sys.executable,
            filter=SITE / "doxygen_filter.py",
        )
        subprocess.run(["doxygen", "-"], input=settings, text=True, cwd=ROOT, check=True)


def make_pages(source: Path, folder: Path) -> None:
    """Sphinx, of which every warning is an error; it goes on to show all of them. It reads everything anew (-E): of a
    page that it has read before it would keep back the warnings."""
    shutil.rmtree(folder / "html", ignore_errors=True)
    words = ["-b", "html", "-E", "-W", "--keep-going", "-q", "-c", str(SITE), "-d", str(folder / "doctrees")]
    environment = os.environ | {"TILEWISE_SITE_BUILD": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(
        [sys.executable, "-m", "sphinx", *words, str(source), str(folder / "html")], check=True, env=environment
    )


def main() -> int:
    """Builds all of it; the exit status is 1 where a link is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="where to build")
    folder = parser.parse_args().out.resolve()
    source = folder / "source"
    folder.mkdir(parents=True, exist_ok=True)
    read_headers(folder)
    stage(source)
    write_page(ROOT / "build" / "tilewise", source / "api" / "command.md")
    draw(source)
    try:
        make_pages(source, folder)
    except subprocess.CalledProcessError as error:
        return error.returncode
    broken = broken_links(folder / "html")
    for line in broken:
        print(line, file=sys.stderr)
    pages = len(list((folder / "html").glob("**/*.html")))
    print(f"docs: {pages} pages in {folder / 'html'}, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
