"""What is installed: all of pump, its transports and handlers, and nothing besides."""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import packages_distributions
from pathlib import Path
from zipfile import ZipFile

import pytest

import pump
from support.tree import PACKAGES, ROOT, modules, owner, tracked_files

# fmt: off
VENDORS = [
    "azure", "boto3", "botocore", "confluent_kafka", "google.cloud", "nats",
    "opentelemetry", "paho", "pika", "prometheus_client", "psycopg", "psycopg_pool", "pydantic",
    "pyspark", "redis", "starlette", "uvicorn",
]
# fmt: on

_IMPORTED = re.compile(r"(?:^ *(?:from|import) |sys\.modules\[\")(\w+)", re.MULTILINE)
_EXTRA = re.compile(r"extra == ['\"]([\w-]+)['\"]")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZipFile]:
    """The wheel, built from a copy of what it is built from; the links are copied as links."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    for folder in (folder for folder in PACKAGES.values() if folder.parent == ROOT):
        shutil.copytree(folder, tree / folder.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    built = subprocess.run(command, cwd=tree, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    with ZipFile(next((tree / "dist").glob("*.whl"))) as file:
        yield file


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def installed_files() -> set[str]:
    """Where each file of the tree belongs in an installation: modules, and what they read."""
    return {
        f"{package.replace('.', '/')}/{file.relative_to(folder).as_posix()}"
        for file in tracked_files()
        for package, folder in PACKAGES.items()
        if owner(file) == package
    }


def test_every_file_is_in_the_wheel(wheel: ZipFile) -> None:
    missing = installed_files() - set(wheel.namelist())

    assert {Path(name).suffix for name in installed_files()} >= {".lua", ".py", ".sql", ".typed"}
    assert missing == set(), "pyproject.toml: list a folder in packages, and files that are no modules in package-data"


def test_no_other_file_is_in_the_wheel(wheel: ZipFile) -> None:
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == installed_files()


def test_the_wheel_installs_pump_and_what_spark_looks_for_and_nothing_beside_them(wheel: ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}

    assert {name for name in top if not name.endswith(".dist-info")} == {"pump", "pyspark_pump"}


def test_msgspec_alone_is_required_and_all_else_by_an_extra(metadata: Message) -> None:
    required = [each for each in metadata.get_all("Requires-Dist") or [] if "extra ==" not in each]

    assert [re.split(r"[^\w-]", each)[0] for each in required] == ["msgspec"]


def test_every_extra_is_in_the_extra_all(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra") or []) - {"all"}
    wanted = [each for each in metadata.get_all("Requires-Dist") or [] if each.startswith("message-pump[")]
    in_all = {extra for each in wanted for extra in each.split("[")[1].split("]")[0].split(",")}

    assert in_all == extras


def test_an_extra_is_for_code_that_is_there(metadata: Message) -> None:
    distributions = packages_distributions()
    files = [file for package in PACKAGES for file in modules(package).values()]
    imported = {name for file in files for name in _IMPORTED.findall(file.read_text())}
    used = {re.sub("[-_.]+", "-", name).lower() for module in imported for name in distributions.get(module, ())}
    extras = set(metadata.get_all("Provides-Extra") or []) - {"all"}

    wanted = [each for each in metadata.get_all("Requires-Dist") or [] if "extra ==" in each]
    needed = {found[1] for each in wanted if re.split(r"[^\w-]", each)[0] in used and (found := _EXTRA.search(each))}

    assert extras - needed == set(), "an extra without code that imports one of its packages"


def test_the_licence_is_in_the_wheel(wheel: ZipFile, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert [name for name in wheel.namelist() if name.endswith("/LICENSE")] != []


def test_every_folder_of_modules_is_listed_as_a_package() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {
        ".".join([package, *file.parent.relative_to(PACKAGES[package]).parts])
        for package in PACKAGES
        for file in modules(package).values()
    }

    assert folders - set(listed) == set(), "[tool.setuptools] packages: what is not listed is left out of the wheel"
    assert set(listed) - folders == set(), "[tool.setuptools] packages lists a folder that is not there"


def test_handlers_are_a_file_each() -> None:
    assert {file.parent for file in modules("pump.handlers").values()} == {PACKAGES["pump.handlers"]}


@pytest.mark.parametrize("name", ["transports", "handlers"])
def test_a_link_shows_the_folder_where_it_is_installed(name: str) -> None:
    link = ROOT / "pump" / name

    assert link.is_symlink(), "a checkout needs symbolic links: git config core.symlinks true"
    assert link.readlink() == Path("..", name)


def test_no_file_makes_the_tests_a_package() -> None:
    assert [name for name in ("tests/__init__.py", "conftest.py", "tests/pump") if (ROOT / name).exists()] == []


def test_a_safe_path_runs_the_tests_on_what_is_installed() -> None:
    if not sys.flags.safe_path:
        pytest.skip("this run takes pump from wherever Python finds it; tox asks for the wheel")

    assert not Path(pump.__file__).is_relative_to(ROOT / "pump")


def test_importing_pump_imports_no_vendor() -> None:
    program = "import sys; before = set(sys.modules); import pump; print(*set(sys.modules) - before)"

    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True)

    imported = run.stdout.split()
    assert "pump" in imported
    assert [name for name in imported if any(f"{name}.".startswith(f"{vendor}.") for vendor in VENDORS)] == []
