"""`pump spark`: the commands of the data pipeline. Spark is loaded only by a command that needs it."""

import argparse
from typing import Final

from pump.command.subcommands import Subcommands, add_subcommands
from pump.spark.dead_letters.command import add_redrive, add_triage
from pump.spark.journal import command as journal
from pump.spark.lake import command as lake
from pump.spark.recover_command import add_recover

_COMMANDS: Final[Subcommands] = {
    "summary": (journal.add_summary, "count what a journal says: rates, latencies, outcomes, errors"),
    "alerts": (journal.add_alerts, "keep windows and alerts of a journal up to date"),
    "compact-journal": (journal.add_compact, "merge the small files of a journal"),
    "triage": (add_triage, "group dead letters by the signature of their error"),
    "redrive": (add_redrive, "post dead letters again, each once"),
    "archive": (lake.add_archive, "store the messages of a channel as a table, each once"),
    "compact-archive": (lake.add_compact, "merge the small files of an archive"),
    "replay": (lake.add_replay, "post messages of an archive again, each once"),
    "recover": (add_recover, "get back what a stream had staged when its checkpoint was lost"),
}


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `pump spark`."""
    add_subcommands(parser, _COMMANDS)
