# Follows the links of built pages: those within the site to their file and anchor, those into the repository to a file
# that is there. Others are only held to the form of an address, so that building needs no network.
"""Finds broken links in a folder of HTML pages."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from stage import REPOSITORY, ROOT


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called for each tag."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if values.get(name)}
        self.links += [values[name] for name in ("href", "src") if values.get(name)]


@cache
def page_at(path: Path) -> Page:
    """A page, read once."""
    return Page(path.read_text(encoding="utf-8"))


def wrong_address(link: str) -> str:
    """What is wrong with a link that leaves the site; empty where nothing is."""
    if link.startswith(REPOSITORY):
        kind, _, path = urlsplit(link).path.removeprefix(urlsplit(REPOSITORY).path).strip("/").partition("/main/")
        if kind in ("blob", "tree") and not (ROOT / unquote(path)).exists():
            return f"the repository has no {path}"
    parts = urlsplit(link)
    if parts.scheme in ("mailto", "data"):
        return ""
    if parts.scheme != "https":
        return "an address must begin with https"
    if "." not in parts.netloc or any(character in link for character in ' <>"{}|\\^`'):
        return "no address has this form"
    return ""


def wrong_place(page: Path, link: str, root: Path) -> str:
    """What is wrong with a link within the site."""
    parts = urlsplit(link)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not target.is_relative_to(root):
        return "it leaves the site"
    if target.is_dir():
        target /= "index.html"
    if not target.exists():
        return "nothing is there"
    if parts.fragment and target.suffix == ".html" and unquote(parts.fragment) not in page_at(target).anchors:
        return "no such anchor"
    return ""


def broken_links(folder: Path) -> list[str]:
    """A line for each broken link of each page below `folder`."""
    root, lines = folder.resolve(), []
    for page in sorted(root.glob("**/*.html")):
        for link in dict.fromkeys(page_at(page).links):
            outward = bool(urlsplit(link).scheme or urlsplit(link).netloc)
            wrong = wrong_address(link) if outward else wrong_place(page, link, root)
            if wrong:
                lines.append(f"{page.relative_to(root)}: {link}: {wrong}")
    return lines
