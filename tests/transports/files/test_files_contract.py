"""The sample transport of docs/new-transport.md: it keeps the contract, and fits on a few pages."""

import ast
import importlib.util
import io
import re
import subprocess
import sys
import threading
import tokenize
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.clock import Clock, ManualClock, SystemClock
from pump.errors import ConfigurationError
from pump.testing import TransportContract
from pump.transport_kit.protocol import Transport
from support.tree import ROOT

FILE = ROOT / "docs" / "examples" / "files_transport.py"
PAGE = ROOT / "docs" / "new-transport.md"
MOST_LINES_OF_CODE = 280
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def load_sample() -> ModuleType:
    spec = importlib.util.spec_from_file_location("files_transport", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sample = load_sample()


class TestFiles(TransportContract):
    """All waits use a clock that the waiting code itself moves."""

    @pytest.fixture
    def clock(self) -> Clock:
        return ManualClock(automatic=True)

    @pytest.fixture
    def transport(self, tmp_path: Path, clock: Clock) -> Transport:
        transport: Transport = sample.FilesTransport(tmp_path, clock=clock)
        return transport

    def restart_broker(self, transport: Transport) -> None:
        """Do nothing: there is no broker, only files."""

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        folder = transport._folder  # type: ignore[attr-defined]
        folder.store([(channel, b"[]\nno header") for channel in folder.channels_of(topic)])
        return b"[]\nno header"


class TestFilesInOrder(TestFiles):
    ordered = True


@pytest.mark.long
class TestFilesInRealTime(TestFiles):
    def in_another_process(self, transport: Transport) -> str:
        folder = transport._folder._root  # type: ignore[attr-defined]
        return (
            f"import sys\nfrom pathlib import Path\nsys.path.insert(0, {str(FILE.parent)!r})\n"
            f"from files_transport import FilesTransport\ntransport = FilesTransport(Path({str(folder)!r}))"
        )

    @pytest.fixture
    def clock(self) -> Clock:
        return SystemClock()


def test_a_url_says_the_folder_and_the_lease(tmp_path: Path) -> None:
    transport = sample.FilesTransport.from_url(f"files://{tmp_path}/a%20b?lease=5")

    assert transport._folder.channel("c") == tmp_path / "a b" / "channels" / "c"
    assert transport._lease == 5


@pytest.mark.parametrize("option", ["lease=0", "lease=soon", "leese=5"])
def test_a_wrong_option_is_named(option: str) -> None:
    with pytest.raises(ConfigurationError, match=option.partition("=")[0]):
        sample.FilesTransport.from_url(f"files:///folder?{option}")


@dataclass(frozen=True)
class Job(Command):
    number: int


class Blocking(RequestHandler[Job]):
    done = threading.Semaphore(0)

    def handle(self, job: Job) -> None:
        self.done.release()


class Awaiting(RequestHandler[Job]):
    async def handle(self, job: Job) -> None:
        Blocking.done.release()


def jobs(folder: Path, *handlers: type, **options: Any) -> Dispatcher:
    return Dispatcher(
        sample.FilesTransport(folder),
        handlers=handlers,
        subscriptions=[Subscription(Job, topic="jobs", **options)] if handlers else [],
        publications=[Publication(Job, topic="jobs")],
    )


def post(folder: Path, count: int) -> None:
    dispatcher = jobs(folder)
    with dispatcher.publishing():
        dispatcher.post_many([Job(number) for number in range(count)])


@pytest.mark.parametrize("handler", [Blocking, Awaiting])
def test_both_pumps_run_on_it(handler: type, tmp_path: Path) -> None:
    post(tmp_path, 20)

    with jobs(tmp_path, handler, performers=2):
        for _ in range(20):
            assert Blocking.done.acquire(timeout=10)

    files = [file for file in tmp_path.glob("channels/*/*/*") if file.is_file()]
    assert files == []


KILLED = f"""
import os, runpy, sys
from pump import Subscription
transport = runpy.run_path({str(FILE)!r})["FilesTransport"](sys.argv[1])
consumer = transport.consumer(Subscription(object, topic="jobs", lease=0.5))
assert consumer.receive(1, 5.0)
os.kill(os.getpid(), 9)
"""


def test_what_a_killed_process_held_comes_again_and_says_so(tmp_path: Path) -> None:
    post(tmp_path, 1)

    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, timeout=30)
    consumer = sample.FilesTransport(tmp_path).consumer(Subscription(Job, topic="jobs"))
    (again,) = consumer.receive(10, 10.0)

    assert killed.returncode == -9
    assert (again.deliveries, again.unexplained, again.attempts) == (2, 1, 0)


def test_the_sample_can_be_read_at_a_sitting() -> None:
    source = FILE.read_text()
    docstrings = {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = {token.start[0] for token in tokens if token.type not in NOT_CODE} - docstrings

    assert len(code) <= MOST_LINES_OF_CODE


def test_the_page_shows_the_sample_as_it_is() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    source = FILE.read_text()

    assert len(blocks) > 5
    assert [block for block in blocks if block not in source and "class Test" not in block] == []


def test_the_page_names_every_module_of_the_kit() -> None:
    kit = {file.stem for file in (ROOT / "pump" / "transport_kit").glob("*.py")} - {"__init__", "protocol", "bridge"}
    named = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))

    assert named - {"TransportError", "PublishError", "LeaseLost", "SetupError"} == kit
