"""Rules of the house that no linter knows."""

import ast
import re
from collections.abc import Iterator

import pytest

from support.tree import ROOT, modules, tracked_files

LONGEST_MODULE = 500

WAITS = {
    "asyncio.sleep",
    "asyncio.timeout",
    "asyncio.timeout_at",
    "asyncio.wait_for",
    "threading.Timer",
    "time.sleep",
}
METHODS_THAT_WAIT = {"acquire", "get", "join", "put", "result", "wait", "wait_for"}
LOOP_TIMERS = {"call_at", "call_later"}

FOREIGN_WORDS = {
    "a place on somebody's machine": r"(?<![\w.:/-])/(?:work|root|home|Users)/\w",
    "a ticket": r"(?i)\bissues?\s+(?:#\s*)?\d+\b|\bissue\s+tracker\b",
    "when it was written": r"(?i)\b(?:this|that|next|last|previous|earlier) session\b",
}
"""Words that are not about the product, which speaks of itself alone; a broker's sessions are about it."""


def bare_waits(source: str) -> Iterator[str]:
    """Every wait for a time that is not asked of a clock."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (f"line {node.lineno}: imports {name}" for name in names if name in WAITS)
        if isinstance(node, ast.Call) and _waits_barely(node):
            yield f"line {node.lineno}: {ast.unparse(node)}"


def _waits_barely(call: ast.Call) -> bool:
    function = ast.unparse(call.func)
    owner, _, name = function.rpartition(".")
    if function == "asyncio.sleep":
        return ast.unparse(call.args[0]) != "0"  # gives way to others, and waits for no time
    if function in WAITS or name in LOOP_TIMERS:
        return True
    timed = any(keyword.arg == "timeout" for keyword in call.keywords)
    timed = timed or (name == "wait" and owner != "asyncio" and bool(call.args))
    return timed and name in METHODS_THAT_WAIT and not owner.endswith("clock")


@pytest.mark.parametrize("module", [module for module in modules("pump") if module != "pump.clock"])
def test_the_clock_owns_waits(module: str) -> None:
    assert list(bare_waits(modules("pump")[module].read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "time.sleep(1)",
        "from time import sleep",
        "asyncio.sleep(delay)",
        "asyncio.wait_for(receive(), 5)",
        "asyncio.wait(tasks, timeout=5)",
        "self._stop.wait(0.5)",
        "stop.wait(timeout=0.5)",
        "thread.join(timeout=5)",
        "queue.get(timeout=1)",
        "threading.Timer(1, ring)",
        "loop.call_later(1, ring)",
    ],
)
def test_a_bare_wait_is_seen(source: str) -> None:
    assert list(bare_waits(source)) != []


@pytest.mark.parametrize(
    "source",
    [
        "self._clock.wait(stop, 0.5)",
        "clock.wait(stop, timeout=0.5)",
        "asyncio.sleep(0)",
        "asyncio.wait(tasks)",
        "stopped.wait()",
        "', '.join(names)",
        "headers.get(name)",
    ],
)
def test_other_calls_are_not_bare_waits(source: str) -> None:
    assert list(bare_waits(source)) == []


@pytest.mark.parametrize("module", modules("pump"))
def test_a_module_of_pump_can_be_read_at_a_sitting(module: str) -> None:
    assert len(modules("pump")[module].read_text().splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("kind", FOREIGN_WORDS)
def test_the_files_speak_of_the_product_alone(kind: str) -> None:
    word = re.compile(FOREIGN_WORDS[kind])

    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in tracked_files()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1)
        if word.search(line)
    ]

    assert found == []


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("a place on somebody's machine", "see {}work/notes"),
        ("a place on somebody's machine", "FILE = '{}home/ann/x'"),
        ("a ticket", "closes Issue{} #12"),
        ("a ticket", "see issue{} 7"),
        ("when it was written", "left for the next{} session"),
    ],
)
def test_a_foreign_word_is_seen(kind: str, line: str) -> None:
    assert re.search(FOREIGN_WORDS[kind], line.format("/" if "machine" in kind else ""))
