# Sphinx's settings. Sources are staged by stage.py; build.py says where everything is.
"""Configuration of the documentation site."""

import os
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from tables import tables

ROOT = Path(__file__).resolve().parents[2]
BUILT = Path(os.environ["TILEWISE_SITE_BUILD"])
sys.path.insert(0, str(ROOT / "build" / "python"))

project, author, copyright = "Tilewise", "the Tilewise authors", "the Tilewise authors"
release = re.search(r"project\(tilewise VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "breathe",
    "sphinx_copybutton",
    "sphinx_design",
]
root_doc = "index"
html_theme = "furo"
html_title = f"Tilewise {release}"
html_static_path = [str(Path(__file__).with_name("static"))]
html_css_files = ["tilewise.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "source_repository": "https://github.com/tilewise/tilewise",
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7db4f0", "color-brand-content": "#7db4f0"},
}

# Headings get the anchors that GitHub gives them, so that one link serves both.
myst_heading_anchors = 6
myst_enable_extensions = ["colon_fence"]
# Problem text and .npy sessions have no lexer; a block without a language is not code of any.
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings give shapes and dtypes, which types cannot
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False

breathe_projects = {"cpp": str(BUILT / "cpp"), "c": str(BUILT / "c")}
breathe_default_project = "cpp"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}
breathe_show_define_initializer = True


def shorten(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Leaves the definition of all operations, which attention()'s docstring ends with, to its own page."""
    from tilewise import semantics

    definition = (semantics.__doc__ or "").splitlines()[0]
    if definition in lines:
        del lines[lines.index(definition) :]
        lines[:] = [line.replace("follows below", "is :doc:`a page of its own </semantics>`") for line in lines]


def adapt(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written for terminals; napoleon, which reads them next, needs some of it spelled out: the names of
    one list of arguments on one line, an example as a section, a star as a star."""
    text = "\n".join(lines)
    text = re.sub(r"^(    [\w, ]+,)((?:\n        [\w, ]+,)*\n        [\w, ]+: )", join_names, text, flags=re.MULTILINE)
    text = re.sub(r"^Example, (.*):$", r"Example:\n    For \1:\n", text, flags=re.MULTILINE)
    lines[:] = re.sub(r"(?<=[ \[(])\*(?=\w)", r"\\*", text).split("\n")


def join_names(match: re.Match[str]) -> str:
    """The names of arguments that share one description, on one line."""
    return match[1] + re.sub(r"\s+", " ", match[2])


def tabulate(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Adds the tables of an operation that is stated by a schema."""
    from tilewise._calls import CALLS

    module, _, function = name.rpartition(".")
    if module == "tilewise" and function in CALLS:
        lines += tables(CALLS[function])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", shorten, priority=100)
    app.connect("autodoc-process-docstring", adapt, priority=200)
    app.connect(
        "autodoc-process-docstring", tabulate, priority=900
    )  # napoleon's, at 500, would take them for a section
