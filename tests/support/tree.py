"""The project's own files, in the folders beside the tests."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = {
    "pump": ROOT / "pump",
    "pump.transports": ROOT / "transports",
    "pump.handlers": ROOT / "handlers",
    "pyspark_pump": ROOT / "pump" / "spark" / "registered",
}
"""The packages, and the folders of their files. Spark imports `pyspark_pump` by that name."""


@cache
def modules(package: str) -> dict[str, Path]:
    """A package's own modules by their full names; the links in pump/ are not followed."""
    folder = PACKAGES[package]
    files = (
        file for file in sorted(folder.rglob("*.py")) if not _behind_a_link(file, folder) and owner(file) == package
    )
    return {_module_name(package, file.relative_to(folder)): file for file in files}


def owner(file: Path) -> str | None:
    """The package that a file belongs to: a folder within a package's folder may be another one."""
    inside = [package for package, folder in PACKAGES.items() if file.is_relative_to(folder)]
    return max(inside, key=lambda package: len(PACKAGES[package].parts), default=None)


def tracked_files() -> list[Path]:
    """The files in git."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    files = (ROOT / name for name in listing.stdout.split("\0") if name)
    return [file for file in files if file.is_file() and not file.is_symlink()]


def _behind_a_link(file: Path, folder: Path) -> bool:
    return any(parent.is_symlink() for parent in file.parents if parent.is_relative_to(folder))


def _module_name(package: str, file: Path) -> str:
    parts = [package, *file.with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
