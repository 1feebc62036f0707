"""`pump spark`: the commands of the data pipeline. Spark is loaded only by a command that needs it."""

import argparse
from collections.abc import Callable, Mapping
from typing import Final

_COMMANDS: Final[Mapping[str, tuple[Callable[[argparse.ArgumentParser], None], str]]] = {}


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `pump spark`."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (add, about) in _COMMANDS.items():
        command = commands.add_parser(
            name, help=about, description=f"{about[0].upper()}{about[1:]}.", allow_abbrev=False
        )
        command.add_argument("--traceback", action="store_true", help="show where an error comes from")
        command.set_defaults(called=command.prog)
        add(command)
