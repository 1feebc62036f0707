"""The wheel, as it is built from this tree, and a Python of its own that has it installed."""

import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

from support.tree import PACKAGES, ROOT


def build_wheel(tree: Path) -> Path:
    """Build it from a copy, made in that folder, of what it is built from; the links are copied as links."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for folder in PACKAGES.values():
        shutil.copytree(folder, tree / folder.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    built = subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return next((tree / "dist").glob("*.whl"))


def python_with(wheel: Path, folder: Path) -> Path:
    """A Python that has the wheel installed, and sees all other packages that this one sees."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    with ZipFile(wheel) as file:
        file.extractall(packages)
    others = dict.fromkeys(path for path in sys.path if path.endswith("site-packages"))
    (packages / "others.pth").write_text("\n".join(others) + "\n")
    return folder / "bin" / "python"
