"""Links between pages: each leads to something that exists, and every page can be reached from the README."""

import re
from pathlib import Path

import pytest

from support.tree import ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def pages() -> list[str]:
    return [str(file.relative_to(ROOT)) for file in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]]


def links(page: str) -> list[tuple[Path, str]]:
    """The files of this repository that a page links to, each with the heading that it names there."""
    text = BLOCK.sub("", (ROOT / page).read_text())
    targets = [target.partition("#") for target in LINK.findall(text) if "://" not in target]
    return [
        ((ROOT / page).parent.joinpath(path).resolve() if path else ROOT / page, heading)
        for path, _, heading in targets
    ]


def anchors(file: Path) -> set[str]:
    """The names of a page's headings in links."""
    titles = HEADING.findall(BLOCK.sub("", file.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", pages())
def test_a_link_leads_somewhere(page: str) -> None:
    found = links(page)

    assert [str(file) for file, _ in found if not file.exists()] == []
    assert [f"{file}#{heading}" for file, heading in found if heading and heading not in anchors(file)] == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached = {ROOT / "README.md"}
    new = set(reached)
    while new:
        new = {file for page in new for file, _ in links(str(page.relative_to(ROOT))) if file.suffix == ".md"} - reached
        reached |= new

    unreached = {page for page in pages() if ROOT / page not in reached}

    assert unreached - {"CHANGELOG.md"} - {page for page in pages() if page.startswith("docs/decisions/")} == set()
