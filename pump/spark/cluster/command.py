"""`pump run … --on MASTER`: the options, what is wrong with them, and the run."""

import argparse
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from typing import Final

from pump.clock import Signal
from pump.duration import seconds
from pump.errors import ConfigurationError
from pump.process_signals import asking
from pump.program.dispatcher import Dispatcher
from pump.program.life_log import place_of
from pump.program.validation import Problem
from pump.spark.cluster.shifts import SHIFT_SECONDS, Shifts
from pump.spark.commands import opened

log: Final = logging.getLogger("pump.spark")


def add_options(parser: argparse.ArgumentParser, count: Callable[[str], int], positive: Callable[[str], float]) -> None:
    """The options of `pump run` that are for a cluster."""
    group = parser.add_argument_group("on a Spark cluster")
    group.add_argument("--on", metavar="MASTER", help="spark://host:7077, local[4], sc://host (Spark Connect), …")
    group.add_argument(
        "--performers", type=count, metavar="N", help="tasks, each with the whole dispatcher (default: 1)"
    )
    group.add_argument(
        "--shift", type=positive, metavar="S", help=f"how long one Spark job lasts (default: {SHIFT_SECONDS:g})"
    )
    group.add_argument(
        "--py-files", metavar="FILES", help=".py and .zip files that executors need, with commas between them"
    )
    group.add_argument("--conf", action="append", metavar="NAME=VALUE", help="a setting of Spark; may be repeated")


def is_wanted(options: argparse.Namespace) -> bool:
    """Whether this run is for a cluster; ConfigurationError if its options contradict each other."""
    of_cluster = {
        f"--{name.replace('_', '-')}": getattr(options, name) for name in ("performers", "shift", "py_files", "conf")
    }
    if options.on is None:
        for name, value in of_cluster.items():
            if value is not None:
                raise ConfigurationError(f"{name} is for a cluster: say --on spark://… too")
        return False
    if options.workers > 1 or options.reload:
        raise ConfigurationError("--on has no workers and no --reload: say --performers N; each shift starts anew")
    return True


def problems(dispatcher: Dispatcher, master: str, performers: int) -> Sequence[Problem]:
    """What is wrong with a dispatcher on a cluster with so many performers."""
    capabilities, found = dispatcher.transport.capabilities, []
    if not capabilities.between_processes:
        found.append(
            f"{capabilities.system} is private to its process: performers on a cluster would have messages of their "
            "own. Use a broker that the cluster reaches"
        )
    if performers > 1 and not capabilities.shards_by_key:
        found += [
            f"channel {rules.channel} is ordered, and {performers} performers would overtake one another on "
            f"{capabilities.system}: say --performers 1"
            for rules in dispatcher.subscriptions
            if rules.ordered
        ]
    cores = re.match(r"local(?:\[(\d+)[\],]|$)", master)
    if cores is not None and performers > int(cores[1] or 1):
        found.append(f"{master} has {cores[1] or 1} cores, and each of {performers} performers needs one")
    return [Problem("error", text) for text in found]


def run_on_cluster(options: argparse.Namespace, dispatcher: Dispatcher, load: Callable[[], Dispatcher]) -> int:
    """Run the dispatcher's performers on the cluster; returns the exit status."""
    performers = options.performers or 1
    channels = ", ".join(each.channel for each in dispatcher.subscriptions)
    log.info("pump %s runs %s", version("message-pump"), options.target)
    log.info(
        "starting: %s on %s; %d performers on %s", channels, place_of(dispatcher.transport), performers, options.on
    )
    until = Signal()
    with asking(until.set):  # a stop may be requested while Spark begins, too
        session = opened(f"pump {options.target}", options.on, settings_of(options.conf or (), performers))
    try:
        for file in filter(None, (options.py_files or "").split(",")):
            session.addArtifacts(file, pyfile=True)
        grace = max(seconds(each.grace) for each in dispatcher.subscriptions)
        shift = options.shift or SHIFT_SECONDS
        return Shifts(session, load, performers, seconds=shift, grace=grace, log_level=options.log_level).run(until)
    finally:
        with suppress(Exception):  # it has ended by itself, and the run's own error says so
            session.stop()


def settings_of(given: Sequence[str], performers: int) -> Mapping[str, str]:
    """The settings of a session that is for performers alone: it takes the cores that it needs, and no more."""
    wrong = [each for each in given if "=" not in each]
    if wrong:
        raise ConfigurationError(f"--conf is NAME=VALUE, not {wrong[0]!r}")
    return {
        "spark.cores.max": str(performers),
        "spark.python.worker.reuse": "false",  # each shift begins in a new process, with the program as it is then
        **dict(each.split("=", 1) for each in given),
    }
