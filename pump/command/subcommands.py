"""Subcommands: a table of names, with what adds the options of each and what it is about."""

import argparse
from collections.abc import Callable, Mapping
from typing import TypeAlias

Subcommands: TypeAlias = Mapping[str, tuple[Callable[[argparse.ArgumentParser], None], str]]


def add_subcommands(parser: argparse.ArgumentParser, table: Subcommands) -> None:
    """Add all of the table to the parser; each has its own help, and `--traceback`."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (add, about) in table.items():
        description = f"{about[0].upper()}{about[1:]}."
        command = commands.add_parser(name, help=about, description=description, allow_abbrev=False)
        command.add_argument("--traceback", action="store_true", help="show where an error comes from")
        command.set_defaults(called=command.prog)
        add(command)
