"""The map in CONTRIBUTING.md: it names every folder, and nothing that does not exist."""

import re
from pathlib import Path

import pytest

from support.tree import ROOT, tracked_files

TOP = ("pump", "transports", "handlers", "docs", "tests", ".ci")
LINES_OF_A_SCREEN = 50


def map_lines() -> list[str]:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    section = re.split(r"^## ", text, flags=re.MULTILINE)[1]
    return [line for line in section.splitlines() if line.startswith("|")]


def mapped() -> set[str]:
    """What the map names in its right column."""
    return {place for line in map_lines() for place in re.findall(r"`([^`]+)`", line.rpartition("| ")[2].strip("| "))}


def folders() -> set[str]:
    """Every folder that holds tracked files; those that mirror a folder of the code have one line for all of them."""
    files = [file.relative_to(ROOT) for file in tracked_files()]
    found = {parent for file in files if file.parts[0] in TOP for parent in file.parents} - {Path()}
    return {f"{folder}/" for folder in found if not mirrors(folder)} | {"tests/<folder>/"}


def mirrors(folder: Path) -> bool:
    """Whether a folder holds the tests of the code folder with its name, or is `tests` itself."""
    if folder.parts[0] != "tests":
        return False
    code = [ROOT / parent / name for name in folder.parts[1:2] for parent in ("pump", "")]
    return len(folder.parts) == 1 or any(place.is_dir() for place in code)


def test_every_folder_is_on_the_map() -> None:
    assert sorted(folders() - mapped()) == [], "add a line to the map in CONTRIBUTING.md"


def test_the_map_names_nothing_that_does_not_exist() -> None:
    places = mapped() - {"tests/<folder>/"}

    assert sorted(place for place in places if not (ROOT / place).exists()) == []


def test_the_map_fits_on_a_screen() -> None:
    assert len(map_lines()) <= LINES_OF_A_SCREEN


@pytest.mark.parametrize("folder", sorted(folders()))
def test_a_package_says_what_it_is_for_what_it_imports_and_where_to_begin(folder: str) -> None:
    init = ROOT / folder / "__init__.py"
    if folder.startswith(("tests", "pump/queue/postgres/sql")) or folder == "pump/" or not init.exists():
        return

    lines = init.read_text().split('"""')[1].strip().splitlines()

    assert 3 <= len(lines) <= 6
    assert any(line.startswith("Imports: ") for line in lines)
    assert any(line.startswith("Begin with: ") for line in lines)
