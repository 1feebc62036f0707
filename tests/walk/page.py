"""docs/walk.md: a table of the counts, and each walk as indented text."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from support.tree import ROOT
from walk.tracer import Hop, Walk
from walk.walks import Walks

PAGE: Final = ROOT / "docs" / "walk.md"
LONGEST_LINE: Final = 150
CHANCE: Final = 6
"""So many calls fewer there are when a thread finds that what it would wait for has happened already."""

_ROW: Final = re.compile(
    r"^\| \[(?P<name>.+)\]\(.+\) \| (?P<calls>\d+) \| (?P<files>\d+) \| (?P<switches>\d+) \|$", re.MULTILINE
)
_HOP: Final = re.compile(r"^ +(?P<function>[\w.<>]+) \((?P<module>[\w.]+)\)", re.MULTILINE)

_UNIQUE: Final = re.compile(r"walk-[0-9a-f]{8}")
"""The channel's name, which is another one each time."""

_INTRODUCTION: Final = """\
# The walk of one message

Every function of `pump`, its transports and its handlers that is called for one message, on all threads, in order.
`python -m walk --write` in the folder `tests` traces them and writes this page; do not edit it by hand. A test fails
when a message takes more calls, files or switches than the table says.

* RabbitMQ: one message to an idle consumer, from the frame that is read to the acknowledgement that is written, until
  the pump waits for the next message. The handler does nothing.
* HTTP: one request to `pump queue serve` on SQLite, from the request to its response.

Connections are open and caches are filled. Of several walks the shortest is drawn. A *switch* is a call
in another file than the call before it on the same thread. Not counted: comprehensions, generated code, and the
functions of the standard library, of pika and of the web server.

| walk | calls | files | switches |
|---|---|---|---|
"""


class Counts(NamedTuple):
    """What one walk costs."""

    calls: int
    files: int
    switches: int

    def exceeds(self, other: "Counts") -> bool:
        """Whether one of the numbers is higher by more than chance."""
        return any(mine > theirs + CHANCE for mine, theirs in zip(self, other, strict=True))


def counts(walk: Walk) -> Counts:
    """The numbers of a walk."""
    return Counts(walk.calls, walk.files, walk.switches)


def written_counts() -> dict[str, Counts]:
    """The numbers on the page, by the name of the walk."""
    rows = _ROW.finditer(PAGE.read_text())
    return {row["name"]: Counts(int(row["calls"]), int(row["files"]), int(row["switches"])) for row in rows}


def written_functions() -> set[tuple[str, str]]:
    """Module and qualified name of every function on the page."""
    return {(f"pump.{hop['module']}", hop["function"]) for hop in _HOP.finditer(PAGE.read_text())}


def page(traced: Mapping[str, Walks]) -> str:
    """The whole page."""
    walks = {name: each[0] for name, each in traced.items()}
    rows = [f"| [{name}](#{_anchor(name)}) | {' | '.join(map(str, counts(walk)))} |" for name, walk in walks.items()]
    sections = [_section(name, walk) for name, walk in walks.items()]
    return _INTRODUCTION + "\n".join(rows) + "\n\n" + "\n".join(sections)


def _section(name: str, walk: Walk) -> str:
    return "\n".join([f"## {name}", "", "```text", *_lines(walk), "```", ""])


def _anchor(name: str) -> str:
    return name.lower().replace(",", "").replace(" ", "-")


def _lines(walk: Walk) -> Iterator[str]:
    thread = ""
    for hop in walk.hops:
        if hop.thread != thread:
            thread = hop.thread
            yield f"thread {_UNIQUE.sub('orders', thread)}"
        outermost = min(each.depth for each in walk.hops if each.thread == thread)
        yield _line(hop, hop.depth - outermost)


def _line(hop: Hop, depth: int) -> str:
    line = f"{'  ' * (depth + 1)}{hop.name} ({hop.module.removeprefix('pump.')})"
    line = f"{line}: {hop.summary}" if hop.summary else line
    return line if len(line) <= LONGEST_LINE else f"{line[: LONGEST_LINE - 1].rstrip()}…"
