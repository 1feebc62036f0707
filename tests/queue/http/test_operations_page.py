"""The page for operators: its systemd unit, its nginx site and its options work exactly as printed."""

import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Final

import httpx
import pytest

from brokers.certificates import Certificates
from brokers.ports import Port
from support.programs import DEADLINE, PUMP, Program
from support.queue_http import Served
from support.tree import ROOT
from support.waiting import eventually

PAGE: Final = (ROOT / "docs" / "queue-operations.md").read_text("utf-8")
TOKEN: Final = "0123456789abcdef"
KEY: Final = "01" * 32


def block(first: str) -> str:
    """The indented block of the page that begins with this line."""
    lines = PAGE.splitlines()
    begin = lines.index(f"    {first}")
    end = next((n for n, line in enumerate(lines[begin:], begin) if line and not line.startswith("    ")), len(lines))
    return dedent("\n".join(lines[begin:end])).strip() + "\n"


# -- systemd

UNIT: Final = block("[Service]")


def settings() -> Mapping[str, str]:
    return dict(line.split("=", 1) for line in UNIT.splitlines() if "=" in line)


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze")
    program = tmp_path / "pump"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "queue.service"
    unit.write_text(UNIT.replace("/opt/queue/bin/pump", str(program)).replace("User=queue", "User=root"))

    found = subprocess.run([analyze, "verify", unit], check=False, capture_output=True, text=True, timeout=DEADLINE)

    assert (found.returncode, [line for line in found.stderr.splitlines() if "queue.service" in line]) == (0, [])


def test_the_command_lines_of_the_unit_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the folders and the port are others: all folders are below one of this test."""
    data, etc = tmp_path / "var/lib/queue", tmp_path / "etc/queue"
    for folder in (data, etc):
        folder.mkdir(parents=True)
    (etc / "tokens").write_text(f"ann admin {TOKEN}\n")
    (etc / "keys").write_text(f"one {KEY}\n")

    def here(text: str) -> str:
        text = re.sub(r"(?<![\w/])/(var/lib|etc)/queue", rf"{tmp_path}/\1/queue", text)
        return text.replace("sqlite:////var/", f"sqlite:///{tmp_path}/var/")

    name, _, value = here(settings()["Environment"]).partition("=")
    monkeypatch.setenv(name, value)
    start, *options = shlex.split(here(settings()["ExecStart"]))
    assert start == "/opt/queue/bin/pump"
    assert here(settings()["WorkingDirectory"]) == str(data)
    assert "--port" not in options
    with Program([*PUMP, *options, "--port", "0"], data) as server:
        place = server.says("listening on ").rpartition("listening on ")[2].split()[0]
        eventually((data / "queue.db").exists)
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = f"{place}/api/v1/resources/queues"
        assert [httpx.get(url, headers=each, timeout=DEADLINE).status_code for each in ({}, headers)] == [401, 200]

        (etc / "tokens").write_text(f"bob admin {TOKEN[::-1]}\n")
        subprocess.run(shlex.split(settings()["ExecReload"].replace("$MAINPID", str(server.pid))), check=True)
        server.says("tokens and keys were read again")
        assert httpx.get(url, headers=headers, timeout=DEADLINE).status_code == 401

        begun = time.monotonic()
        server.send(signal.SIGTERM)
        assert server.ends() == 0
        assert time.monotonic() - begun < float(settings()["TimeoutStopSec"])


# -- nginx

SITE: Final = block("server {")
HOST: Final = "queue.example"


@contextmanager
def nginx(folder: Path, upstream: Served, read_seconds: int | None = None) -> Iterator[str]:
    """Nginx with the site of the page, in one process, at a port of its own; its time to wait may be shorter.

    Yields its URL.
    """
    program = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    if program is None:
        pytest.skip("there is no nginx")
    port = Port()
    certificates = Certificates(folder)
    site = SITE
    for theirs, ours in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port.number} ssl"),
        ("/etc/ssl/queue.pem", str(certificates.certificate)),
        ("/etc/ssl/queue.key", str(certificates.key)),
        ("http://127.0.0.1:6632", upstream.url),
    ):
        assert site.count(theirs) == 1
        site = site.replace(theirs, ours)
    if read_seconds is not None:
        site = re.sub(r"proxy_read_timeout \d+s", f"proxy_read_timeout {read_seconds}s", site)
    folders = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in KINDS)
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;\n"
        f"{'user root;' if os.geteuid() == 0 else ''}\n"
        f"events {{ }}\nhttp {{ access_log off; {folders}\n{site}}}\n"
    )
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    try:
        with Program(command, folder):
            url = f"https://127.0.0.1:{port.number}"
            eventually(lambda: answers(url))
            yield url
    finally:
        port.release()


KINDS: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def answers(url: str) -> bool:
    try:
        return through(url, "GET", "/health").status_code == 200
    except httpx.TransportError:
        return False


def through(url: str, method: str, path: str, **options: object) -> httpx.Response:
    """A request through the proxy, with the token and by the proxy's name."""
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    headers = {"Host": HOST, "Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(verify=trusting, timeout=DEADLINE, headers=headers) as client:
        return client.request(method, f"{url}{path}", **options)  # type: ignore[arg-type]


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Served]:
    """The server, as the page says it is to be started behind a proxy."""
    assert "Start the server with `--allow-host queue.example`, and with `--tokens`" in PAGE
    (tmp_path / "tokens").write_text(f"ann admin {TOKEN}\n")
    with Served(tmp_path, "--allow-host", HOST, "--tokens", "tokens") as server:
        yield server


def test_the_site_of_nginx_works(tmp_path: Path, behind: Served) -> None:
    with nginx(tmp_path, behind) as url, ThreadPoolExecutor(1) as threads:
        pushed = {"items": [{"queue": "a/b", "payload": "x" * 900_000} for _ in range(10)]}
        assert through(url, "POST", "/api/v1/push", json=pushed).status_code == 201
        too_large = through(url, "POST", "/api/v1/push", content=b" " * 11_000_000)
        assert too_large.status_code == 413
        popped = through(url, "GET", "/api/v1/pop/queue/a%2Fb?batch=10")
        assert [len(each["data"]) for each in popped.json()["messages"]] == [900_000] * 10
        stranger = httpx.Headers({"Host": "elsewhere"})
        assert through(url, "GET", "/health", headers=stranger).status_code == 403

        waiting = threads.submit(through, url, "GET", "/api/v1/pop/queue/q?wait=true&timeout=20000")
        eventually(lambda: 'parked_consumers{queue="q"} 1' in through(url, "GET", "/metrics/prometheus").text)
        begun = time.monotonic()
        assert through(url, "POST", "/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]}).status_code == 201
        assert waiting.result(DEADLINE).json()["messages"][0]["data"] == 1
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("seconds", [3, pytest.param(70, marks=pytest.mark.long)])
def test_a_consumer_may_wait_as_long_as_the_proxy_does(tmp_path: Path, behind: Served, seconds: int) -> None:
    """The page gives the proxy more time than the longest wait; 60 s, its default, would be too short."""
    longest = int(re.findall(r"proxy_read_timeout (\d+)s", SITE)[0])
    assert longest > 3600
    with nginx(tmp_path, behind, None if seconds > 60 else seconds + 5) as url:
        begun = time.monotonic()
        answer = httpx_long(url, seconds)

        assert answer == 204
        assert seconds <= time.monotonic() - begun < seconds + 5


def httpx_long(url: str, seconds: int) -> int:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    headers = {"Host": HOST, "Authorization": f"Bearer {TOKEN}"}
    path = f"{url}/api/v1/pop/queue/q?wait=true&timeout={seconds * 1000}"
    return httpx.get(path, headers=headers, verify=trusting, timeout=seconds + DEADLINE).status_code


def test_a_proxy_that_waits_less_ends_the_wait_and_no_message_is_lost(tmp_path: Path, behind: Served) -> None:
    with nginx(tmp_path, behind, 1) as url:
        assert through(url, "GET", "/api/v1/pop/queue/q?wait=true&timeout=20000").status_code == 504
        eventually(lambda: "parked_consumers{" not in through(url, "GET", "/metrics/prometheus").text)
        assert through(url, "POST", "/api/v1/push", json={"items": [{"queue": "q", "payload": 1}]}).status_code == 201

        [message] = through(url, "GET", "/api/v1/pop/queue/q").json()["messages"]

        assert (message["data"], message["deliveries"]) == (1, 1)


# -- options


def test_every_option_of_the_page_exists() -> None:
    helped = [
        subprocess.run(
            [sys.executable, "-m", "pump", "queue", command, "--help"], check=True, capture_output=True, text=True
        ).stdout
        for command in ("serve", "status", "dlq", "backup", "restore")
    ]
    theirs = {"--schema", "--format", "--file", "--exit-on-error", "--dbname", "--no-owner", "--no-privileges"}
    theirs.add("--length")  # of fallocate

    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) - theirs:
        assert any(option in each for each in helped), option
