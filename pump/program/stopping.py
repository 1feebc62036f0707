"""How performers end within their grace: first they are asked, then handlers are told to end, then they are left.

A stop is a series of waits. Each is for a signal, with a time limit, and is made by blocking or by awaiting.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import inf
from typing import Final, TypeAlias

from pump.clock import Signal, SystemClock
from pump.process_signals import LOOK_UP_SECONDS
from pump.program.performer_group import PerformerGroup
from pump.telemetry import log

Waits: TypeAlias = Iterator[tuple[Signal, float | None]]
"""Each wait is a signal and the longest time in seconds; None is without limit."""

real_clock: Final = SystemClock()
"""Threads and tasks end in real time, whatever clock the pumps use."""
AFTER_GRACE: Final = 0.8
"""How long a stop waits for a handler after telling it to end, in seconds."""
CLOSING: Final = 0.6
"""How many seconds later everything else is closed, or left."""
PROCESS_END: Final = 1.6
"""This many seconds after the grace, a stopped process ends, whatever still runs in it."""


def go_through(waits: Waits) -> None:
    """Make the waits, blocking."""
    for signal, left in looking_up(waits):
        real_clock.wait(signal, left)


async def go_through_async(waits: Waits) -> None:
    """The same, awaiting."""
    for signal, left in looking_up(waits):
        await real_clock.wait_async(signal, left)


def looking_up(waits: Waits) -> Waits:
    """The same waits in short pieces: a system signal that comes just before a wait is then handled soon."""
    for signal, left in waits:
        until = inf if left is None else real_clock.monotonic() + left
        while not signal.is_set() and (more := until - real_clock.monotonic()) > 0:
            yield signal, min(more, LOOK_UP_SECONDS)


def hurry(waits: Waits) -> None:
    """Do the remaining steps without waiting, after a second Ctrl-C or a cancellation."""
    with suppress(Exception):  # the caller raises the interruption itself
        for _ in waits:
            pass


def end_performers(graces: Mapping[PerformerGroup, float], began: float) -> Waits:
    """Ask every performer to stop, tell its handlers to end after its grace, and leave those that still run."""
    for group in graces:
        group.stop()
    in_turn = sorted(graces, key=graces.__getitem__)
    for group in in_turn:
        yield from _ends(group, began + graces[group])
        group.give_up()
    for group in in_turn:
        yield from _ends(group, began + graces[group] + AFTER_GRACE)
        for performer in group.unfinished:
            log.error(
                "performer %s has not ended within the grace of %g s and %g s more: it waits for %s; %s",
                performer.name,
                graces[group],
                AFTER_GRACE,
                performer.waits_for,
                performer.comes_again,
            )


def _ends(group: PerformerGroup, until: float) -> Waits:
    for performer in group.unfinished:
        yield performer.finished, until - real_clock.monotonic()
