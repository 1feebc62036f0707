"""The newcomer's two commands: `python3 .ci/start.py demo` and `python3 .ci/start.py tests`.

Needs Python 3.11 or newer and nothing else: what it installs goes into `.venv-run` beside the code.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - says so, where an older Python would fail obscurely
    VERSION = sys.version.split()[0]
    sys.exit(f"message-pump needs Python 3.11 or newer, and this is {VERSION}: use a newer one for this command.")

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-run"
PYTHON = VENV / "bin" / "python"
PIP_INSTALL = (PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
COLOURS = re.compile(rb"\x1b\[[\d;]*m")
CLOSING_LINE = re.compile(rb"=+ (no tests ran|.*\d+ (passed|failed|errors?|skipped|deselected)\b.*) in [\d.]+s.* =+")
USAGE = """\
usage: python3 .ci/start.py demo [what `pump demo` takes]
       python3 .ci/start.py tests [what pytest takes]"""


def main(arguments: list[str]) -> int:
    command, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if command == "demo":
        return demo(rest)
    if command == "tests":
        return tests(rest)
    print(USAGE, file=sys.stderr)
    return 2


def demo(arguments: list[str]) -> NoReturn:
    """Install the project as it stands here, and become `pump demo`."""
    make_venv()
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # or a module deleted since would be installed again
    run(*PIP_INSTALL, ROOT)
    pump = VENV / "bin" / "pump"
    os.execv(pump, [str(pump), "demo", *arguments])  # noqa: S606 - no shell is wanted


def tests(arguments: list[str]) -> int:
    """Run lint, types and the tests on the built wheel; all three run, and each can fail the whole."""
    make_venv()
    if not succeeds(PYTHON, "-c", "import tox"):
        run(*PIP_INSTALL, "tox>=4.25")
    command: list[str | Path] = [PYTHON, "-m", "tox", "run", "-q", "-e", "lint,types,tests", "--", *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        for line in closing_line_last(process.stdout or ()):
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
    return process.returncode


def closing_line_last(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The same lines, but pytest's own closing one ends them, after the coverage and what tox has to say."""
    held: list[bytes] = []
    for line in lines:
        if CLOSING_LINE.fullmatch(COLOURS.sub(b"", line).strip()):
            yield from held  # an earlier one was only something that a test printed
            held = [line]
        elif held:
            held.append(line)
        else:
            yield line
    yield from held[1:]
    yield from held[:1]


def make_venv() -> None:
    """Have a virtual environment that works: the one that is there, or a new one."""
    if succeeds(PYTHON, "-c", "import sys, pip; sys.exit(sys.version_info < (3, 11))"):
        return
    if not can_make_venv() and not (install_venv_package() and can_make_venv()):
        sys.exit(
            f"{sys.executable} cannot make virtual environments: its ensurepip is missing. "
            "Install the package python3-venv (as root: apt-get install python3-venv), then run this again."
        )
    shutil.rmtree(VENV, ignore_errors=True)
    run(sys.executable, "-m", "venv", VENV)


def can_make_venv() -> bool:
    return succeeds(sys.executable, "-c", "import ensurepip, venv")


def install_venv_package() -> bool:
    """Install what Debian keeps apart from Python, where that takes no password."""
    if not shutil.which("apt-get"):
        return False
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if not succeeds(*as_root, "true"):
        return False
    print("Installing python3-venv, which this Python lacks.", flush=True)
    succeeds(*as_root, "apt-get", "update")  # an old list may do
    return succeeds(*as_root, "apt-get", "install", "--yes", "--no-install-recommends", "python3-venv")


def succeeds(*command: str | Path) -> bool:
    try:
        return subprocess.run(command, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def run(*command: str | Path) -> None:
    status = subprocess.run(command, check=False).returncode
    if status:
        sys.exit(f"failed with status {status}: {' '.join(map(str, command))}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
