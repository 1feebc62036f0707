"""Processes with real pumps over the memory bus, in which everything may go wrong."""

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

from pump.clock import ManualClock
from pump.ledger import Ledger
from pump.message import Header, Message
from pump.program.performer_group import keeps_attempts_itself
from pump.subscription import Subscription
from pump.transports.memory import MemoryTransport
from support.fates import Fate, Outcome, Settings
from support.machine import Machine
from support.performers import Performer

NEVER_LAPSES: Final = 1e12


class Order:
    """What the messages ask for."""


class World:
    """A bus, and the processes that come and go."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        self.clock: Final = ManualClock(automatic=True)
        lease = 30.0 if settings.leases else NEVER_LAPSES
        self.transport: Final = MemoryTransport(clock=self.clock, ack_timeout=lease)
        self.lease: Final = lease
        self.rules: Final = Subscription(
            Order,
            topic="orders",
            channel="orders",
            dead_letter="orders.dead",
            in_flight=settings.in_flight,
            ordered=settings.ordered,
            renew_lease=settings.renew,
            on_unhandled=settings.on_unhandled,
            may_block=settings.may_block,
            buffer_size=settings.buffer_size,
        )
        self.capabilities: Final = replace(
            MemoryTransport.capabilities,
            nack="holds" if settings.holds else "releases",
            requeue="hold" if settings.holds else "same",
            leases=settings.leases,
            hands_back="all" if settings.hands_back_all else "each",
            carries_attempts=settings.style in {"own", "copying"},
        )
        self.transport.prepare([self.rules], [])
        self.fates: Final[dict[str, Fate]] = {}
        self.failures: Final[dict[str, list[str]]] = {}
        """By call, how the next ones fail: before they have an effect, or after."""
        self.dead_letters_down_until = 0.0
        self.renewal_down_until = 0.0
        self.healed = False
        """What always failed does so no more."""
        self.calm = True
        """Nothing went wrong but handlers."""
        self.steady = True
        """Nothing went wrong but handlers and processes."""
        self.machine: Final = Machine() if settings.remembers else None
        self.copied: Final[dict[str, int]] = {}
        """By message, how many deliveries there were before its last copy was made."""
        self.starts: Final[list[str]] = []
        self.wrong: Final[list[str]] = []
        self.loop: Final = None if settings.pump == "reactor" else asyncio.new_event_loop()
        self.process = Process(self)

    def must(self, condition: object, what: str) -> None:
        """What has to hold where an assertion would be taken for an error of a handler or of the broker."""
        if not condition:
            self.wrong.append(what)

    def post(self, *names: str) -> None:
        for name in names:
            self.fates[name] = Fate()
        self.transport.producer().send([Message(Header(name, "orders"), b"") for name in names])

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        assert self.loop is not None
        try:
            self.loop.run_until_complete(work)
        finally:
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))

    def trouble(self) -> None:
        """Something went wrong that is neither a handler nor a process."""
        self.calm = self.steady = False

    def restart(self) -> None:
        """The process ends in good order, and another begins."""
        self.process.end()
        self._forget()
        self.process = Process(self)

    def crashed(self) -> None:
        """What a process that is gone leaves behind: locks, which lapse, or a connection that the broker sees break."""
        self._forget()
        self.process = Process(self)

    def _forget(self) -> None:
        for fate in self.fates.values():
            fate.forgotten |= fate.known_here or self.settings.style in {"counting", "copying"}

    def close(self) -> None:
        self.process.end()
        if self.loop is not None:
            self.loop.close()

    # -- where everything is

    @property
    def left(self) -> int:
        """How many messages are still to be settled."""
        bus = self.transport.bus
        return bus.pending("orders") + bus.locked("orders") + bus.scheduled("orders")

    @property
    def dead(self) -> list[str]:
        return [each.id for each in self.transport.bus.messages("orders.dead")]

    @property
    def acknowledged(self) -> list[str]:
        return [name for name, fate in self.fates.items() if fate.acknowledged]


class Process:
    """One life of a program: performers that share a ledger."""

    def __init__(self, world: World) -> None:
        self.world: Final = world
        self.guard: Final = None if world.machine is None else world.machine.guard(world.clock)
        self.ledger: Final = Ledger(world.clock, book=None if self.guard is None else self.guard.book)
        self.dead = False
        self.performers: Final = [Performer(self) for _ in range(world.settings.performers)]

    def step(self, which: int, outcomes: Sequence[Outcome]) -> None:
        """One performer takes as many turns as there are outcomes, or fewer where there is nothing to do."""
        performer = self._performer(which)
        if self.world.loop is None:
            performer.step(outcomes)
        else:
            self.world.run(performer.step_async(outcomes))
        if self.dead:
            self.world.crashed()

    def _performer(self, which: int) -> "Performer":
        place = which % len(self.performers)
        if self.performers[place].judge.stopped is not None:
            self.performers[place].end()
            self.performers[place] = Performer(self)
        return self.performers[place]

    def other_than(self, busy: "Performer") -> "Performer | None":
        return next((each for each in self.performers if not each.busy and each is not busy), None)

    def die(self) -> None:
        """Nothing of this process does anything any more."""
        self.dead = True
        if self.guard is not None and self.world.machine is not None:
            self.world.machine.charge(self.guard)
        for performer in self.performers:
            performer.vanish()

    def end(self) -> None:
        for performer in self.performers:
            performer.end()
        if self.guard is not None:
            self.ledger.keep(attempts=keeps_attempts_itself(self.world.rules, self.world.capabilities))
