"""The tables in the documentation that are printed from the code."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from pump.capabilities import Capabilities
from pump.command.settlement_table import HEAD, settlement_rows
from pump.errors import ConfigurationError
from pump.program import options
from pump.program.options import field_texts
from pump.transport_kit.protocol import GROUP, find_transport


def capability_table() -> str:
    """The capabilities of every installed transport whose client is installed too."""
    known = {name: found for name, found in _transports() if found is not None}
    meanings = field_texts(Capabilities)
    head = ("", *known, "")
    rows = [
        (f"`{each.name}`", *(_cell(getattr(found, each.name)) for found in known.values()), meanings.get(each.name, ""))
        for each in fields(Capabilities)
    ]
    return markdown(head, rows)


def _transports() -> Iterator[tuple[str, Capabilities | None]]:
    by_class: dict[str, list[EntryPoint]] = {}
    for each in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        by_class.setdefault(each.value, []).append(each)
    for several in by_class.values():
        yield " ".join(f"`{each.name}://`" for each in several), _capabilities(several[0].name)


def _capabilities(scheme: str) -> Capabilities | None:
    try:
        transport = find_transport(scheme)
    except ConfigurationError:
        return None
    declared: object = getattr(transport, "capabilities", None)
    return declared if isinstance(declared, Capabilities) else transport.from_url(f"{scheme}://").capabilities


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


TABLES: Final[Mapping[str, Callable[[], str]]] = {
    "settlement": lambda: markdown(HEAD, settlement_rows()),
    "options": lambda: markdown(options.HEAD, options.option_rows()),
    "capabilities": capability_table,
}
"""By the name of the page that contains it."""


def write_tables(folder: Path) -> Sequence[Path]:
    """Write each table into its page of the documentation; return the pages that have changed."""
    changed = []
    for name, table in TABLES.items():
        page = folder / f"{name}.md"
        if not page.is_file():
            raise ConfigurationError(f"there is no page {page}: name the folder of the documentation")
        text = page.read_text("utf-8")
        new = with_table(text, name, table())
        if new != text:
            page.write_text(new, "utf-8")
            changed.append(page)
    return changed


def with_table(text: str, name: str, table: str) -> str:
    """The page with this table between its markers; ConfigurationError if it has none."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ConfigurationError(f"the page of {name} has no markers: write {begin.strip()} and {end} around its table")
    return f"{before}{begin}\n{table}\n\n{end}{after}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)
