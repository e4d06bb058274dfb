# The site's sources in one folder: the documents of the repository as they are, but for their links, and the pages that
# only the site has.
"""Stages Markdown for Sphinx."""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = Path(__file__).with_name("pages")
REPOSITORY = "https://github.com/tilewise/tilewise"

# Documents outside of docs/, and what they are called on the site.
ELSEWHERE = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "bench.md",
}
PICTURES = (".png", ".svg")
LINK = re.compile(r"(?<=\]\()([^)\s#]*)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"(^(?:```|~~~).*?^(?:```|~~~)[ ]*$)", re.MULTILINE | re.DOTALL)


def documents() -> dict[Path, Path]:
    """Each document of the repository, and its place below the site's folder."""
    site = Path(__file__).parent
    found = {path: path.relative_to(ROOT / "docs") for path in sorted((ROOT / "docs").glob("**/*.md"))}
    pages = {path: path.relative_to(PAGES) for path in sorted(PAGES.glob("**/*.md"))}
    elsewhere = {ROOT / name: Path(place) for name, place in ELSEWHERE.items() if (ROOT / name).exists()}
    return {path: place for path, place in found.items() if site not in path.parents} | pages | elsewhere


def relative(target: Path, place: Path) -> str:
    """The way from the document at `place` to `target`, both below the site's folder."""
    up = len(place.parts) - 1
    return "../" * up + target.as_posix()


def rewrite(text: str, source: Path, place: Path, places: dict[Path, Path]) -> str:
    """Links to documents go to their pages, to other files of the repository to GitHub; pictures are beside docs/."""

    def follow(match: re.Match[str]) -> str:
        path, anchor = match[1], match[2] or ""
        if not path or "://" in path or path.startswith("mailto:"):
            return match[0]
        linked = (source.parent / path).resolve()
        if linked in places:
            return relative(places[linked], place) + anchor
        if linked.suffix == ".svg" and source.is_relative_to(PAGES):
            return match[0]  # a plot, which is drawn beside the staged pages
        if not linked.exists():
            raise SystemExit(f"{source}: {path}: nothing is there")
        if linked.suffix in PICTURES:
            return relative(linked.relative_to(ROOT / "docs"), place)
        kind = "tree" if linked.is_dir() else "blob"
        return f"{REPOSITORY}/{kind}/main/{linked.relative_to(ROOT).as_posix()}{anchor}"

    return "".join(part if FENCE.match(part) else LINK.sub(follow, part) for part in FENCE.split(text))


def stage(folder: Path) -> None:
    """Writes every document and picture below `folder`, which it empties first."""
    shutil.rmtree(folder, ignore_errors=True)
    places = documents()
    for source, place in places.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rewrite(source.read_text(encoding="utf-8"), source, place, places), encoding="utf-8")
    for picture in (ROOT / "docs").iterdir():
        if picture.suffix in PICTURES:
            shutil.copy2(picture, folder / picture.name)
