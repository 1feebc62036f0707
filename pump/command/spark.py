"""`pump spark`: the commands of the data pipeline. Spark is loaded only by a command that needs it."""

import argparse
from collections.abc import Callable, Mapping
from typing import Final

from pump.spark.journal.command import add_alerts, add_compact, add_summary
from pump.spark.source.command import add_recover

_COMMANDS: Final[Mapping[str, tuple[Callable[[argparse.ArgumentParser], None], str]]] = {
    "recover": (add_recover, "get back what a stream had staged when its checkpoint was lost"),
    "summary": (add_summary, "count what a journal says: rates, latencies, outcomes, errors"),
    "alerts": (add_alerts, "keep windows and alerts of a journal up to date"),
    "compact": (add_compact, "merge the small files of a journal"),
}


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
