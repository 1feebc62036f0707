"""`pump demo`: the shop at work on the in-memory bus, live in the terminal, for half a minute."""

import logging
import os
import shutil
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from pump.clock import Signal, SystemClock
from pump.command.demo_shop import PRICES, SHIPPING, OrderFromOldTill, PlaceOrder, Shop, dispatcher
from pump.command.signals import on_signals
from pump.errors import DeferMessageAction, DontAckAction
from pump.message import Message
from pump.request import Command

_ORDERS_A_SECOND: Final = 4.0
_TICK: Final = 0.1
_TICKS_A_LINE: Final = 20
"""How often the plain form says how things stand."""
_CHANNELS: Final = ("orders", "payments", "parcels")
_GRAVES: Final = ("orders.dead", "orders.invalid", "payments.dead", "parcels.dead")
_CLOSING_TIME: Final = 0.8
"""The part of the show after which no more orders come."""


class _Bus(Protocol):
    def pending(self, channel: str) -> int: ...
    def locked(self, channel: str) -> int: ...
    def scheduled(self, channel: str) -> int: ...
    def messages(self, channel: str) -> Sequence[Message]: ...


class _OnMemory(Protocol):
    bus: _Bus


@dataclass(frozen=True)
class _Counts:
    """How a channel stands."""

    waiting: int
    in_hand: int
    handled: int
    deferred: int
    left: int
    failed: int
    dead: int


@dataclass
class _Journal:
    """What the listeners were told: counted, and the last of it in words."""

    say: Callable[[str], None]
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _held: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """As a listener."""
        if event not in {"handled", "decided", "failed"}:
            return
        error, message = fields["error"], cast("Message", fields["message"])
        what = {DeferMessageAction: "deferred", DontAckAction: "left"}.get(type(error), event)
        with self._lock:
            self.counts[str(fields["channel"]), what] += 1
            words = self._words(what, error, message)
        if words:
            self.say(f"{fields['channel']:<9} {_name(fields['request'])} {words}")

    def _words(self, what: str, error: object, message: Message) -> str:
        cause = error.__cause__ if isinstance(error, Exception) else None
        match what:
            case "left":
                first = message.id not in self._held
                self._held.add(message.id)
                return f"is held: {error}" if first else ""
            case "handled" if message.id in self._held:
                self._held.discard(message.id)
                return "was held, and is handled now"
            case "handled":
                return "is handled at last" if message.attempts else ""
            case "deferred":
                return f"comes again later: {cause}"
            case "failed":
                return f"failed: {type(error).__name__}: {error}"
            case _:
                return f"is rejected: {error}"


def _name(request: object) -> str:
    number = getattr(request, "number", None) or getattr(request, "order", "")
    return f"{type(request).__name__} {number}"


class _Show:
    """The shop, its visitors, and what happens to them."""

    def __init__(self, seconds: float, speed: float, *, say: Callable[[str], None]) -> None:
        self.seconds: Final = seconds
        self.switches: Final = {SHIPPING: True}
        self.journal: Final = _Journal(say)
        self.shop: Final = Shop(work_seconds=0.02 / speed)
        self.dispatcher: Final = dispatcher(self.shop, self.switches, self.journal, patience=max(0.05, seconds / 30))
        self.bus: Final = cast("_OnMemory", self.dispatcher.transport).bus
        self._say: Final = say
        self._pace: Final = _ORDERS_A_SECOND * speed
        self._orders = 0
        self._plot: Final = deque(
            sorted(
                [
                    (0.10, "the bank is down: payments are deferred", self._bank_down),
                    (0.15, "a forgotten till sends something", self._old_till),
                    (0.20, "somebody orders no parcels: there is a bug for that", self._no_parcels),
                    (0.30, "shipping is switched off: parcels are held", self._switch_off),
                    (0.40, "the bank is up again", self._bank_up),
                    (0.65, "shipping is switched on again", self._switch_on),
                    (_CLOSING_TIME, "closing time: no more orders", self._close),
                ],
                key=lambda each: each[0],
            )
        )
        self._closed = False

    def advance(self, elapsed: float) -> None:
        """Let happen what happens up to that time, in seconds from the beginning."""
        while self._plot and elapsed >= self._plot[0][0] * self.seconds:
            _, words, act = self._plot.popleft()
            self._say(words)
            act()
        while not self._closed and self._orders < elapsed * self._pace:
            self._order()

    def _order(self) -> None:
        self._orders += 1
        items = sorted(PRICES)
        item = "unicorn" if self._orders % 20 == 7 else items[self._orders % len(items)]  # noqa: PLR2004 - now and then
        self._post(PlaceOrder(self._orders, item, 1 + self._orders % 3))

    def _post(self, request: Command) -> None:
        self.dispatcher.post(request)
        self.shop.write_down(request)

    def _old_till(self) -> None:
        self._post(OrderFromOldTill("1 x TEA"))

    def _no_parcels(self) -> None:
        self._orders += 1
        self._post(PlaceOrder(self._orders, "tea", 2, parcels=0))

    def _bank_down(self) -> None:
        self.shop.bank_is_up = False

    def _bank_up(self) -> None:
        self.shop.bank_is_up = True

    def _switch_off(self) -> None:
        self.switches[SHIPPING] = False

    def _switch_on(self) -> None:
        self.switches[SHIPPING] = True

    def _close(self) -> None:
        self._closed = True

    # -- how it stands

    def counts(self, channel: str) -> _Counts:
        """How a channel stands."""
        told = {what: self.journal.counts[channel, what] for what in ("handled", "deferred", "left", "failed")}
        return _Counts(
            waiting=self.bus.pending(channel) + self.bus.scheduled(channel),
            in_hand=self.bus.locked(channel),
            dead=sum(self.bus.pending(grave) for grave in _GRAVES if grave.startswith(f"{channel}.")),
            **told,
        )

    def dead_letters(self) -> Iterator[str]:
        """Each dead letter, with where it lies and why."""
        for grave in _GRAVES:
            for message in self.bus.messages(grave):
                reason = message.header.headers.get("pump-reason", "")
                error = message.header.headers.get("pump-error", "")
                why = reason if reason in error else f"{reason} ({error})"
                yield f"{grave:<14}  {why}: {message.header.type} {message.body.decode()}"

    def summary(self) -> tuple[bool, str]:
        """Whether everything that was posted is accounted for, and the account."""
        counts = [self.counts(channel) for channel in _CHANNELS]
        posted = sum(self.shop.posted.values())
        handled, dead = sum(each.handled for each in counts), sum(each.dead for each in counts)
        waiting = sum(each.waiting + each.in_hand for each in counts)
        adds_up = posted == handled + dead + waiting
        verdict = "nothing is lost" if adds_up else "this does not add up, and should"
        return adds_up, (
            f"posted {posted} = handled {handled} + dead letters {dead} + still waiting {waiting}: {verdict}\n"
            f"on the way: deferred {sum(each.deferred for each in counts)} times, "
            f"held {sum(each.left for each in counts)} times, failed {sum(each.failed for each in counts)} times"
        )


def show(seconds: float, speed: float, *, plain: bool) -> int:
    """Run the shop for so long, or until Ctrl-C; returns 0 if all that was posted is accounted for."""
    stop, clock = Signal(), SystemClock()
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not plain
    stage: _Lines | _Picture = _Picture() if live else _Lines()
    began = clock.monotonic()
    play = _Show(seconds, speed, say=lambda words: stage.say(clock.monotonic() - began, words))
    with _quietly(), on_signals(lambda _: stop.set()), stage:
        with play.dispatcher:
            began = clock.monotonic()
            while (elapsed := clock.monotonic() - began) < seconds and not stop.is_set():
                play.advance(elapsed)
                stage.draw(play, elapsed)
                clock.wait(stop, _TICK)
        stage.draw(play, elapsed)
    adds_up, account = play.summary()
    print(table(play))
    print("\n".join(["", "dead letters", *(f"  {each}" for each in play.dead_letters()), "", account]), flush=True)
    return 0 if adds_up else 1


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the log: the stage says what happens."""
    log = logging.getLogger("pump")
    before, log.propagate, silent = log.propagate, False, logging.NullHandler()
    log.addHandler(silent)
    try:
        yield
    finally:
        log.removeHandler(silent)
        log.propagate = before


# -- the stage


def table(play: _Show) -> str:
    """How every channel stands."""
    head = ("channel", "posted", "handled", "waiting", "in hand", "deferred", "held", "failed", "dead letters")
    rows: list[Sequence[object]] = [head]
    for channel in _CHANNELS:
        now = play.counts(channel)
        posted = play.shop.posted.get(channel, 0)
        rows.append(
            (channel, posted, now.handled, now.waiting, now.in_hand, now.deferred, now.left, now.failed, now.dead)
        )
    return "\n".join("".join(f"{cell!s:<10}" for cell in row).rstrip() for row in rows)


class _Lines:
    """A line for everything that is worth one, and how things stand now and then."""

    def __init__(self) -> None:
        self._ticks = 0

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(self, *_: object) -> None:
        print()

    def say(self, elapsed: float, words: str) -> None:
        """Say that something happened."""
        print(f"{elapsed:5.1f} s  {words}", flush=True)

    def draw(self, play: _Show, elapsed: float) -> None:
        """Say how things stand, now and then."""
        if self._ticks % _TICKS_A_LINE == 0:
            counts = ((channel, play.counts(channel)) for channel in _CHANNELS)
            said = (f"{channel} {now.handled} handled, {now.waiting + now.in_hand} here" for channel, now in counts)
            self.say(elapsed, f"          {'; '.join(said)}")
        self._ticks += 1


class _Picture:
    """One screen, redrawn a few times a second, on the terminal's other page."""

    def __init__(self) -> None:
        self._events: Final = deque[str](maxlen=8)

    def __enter__(self) -> None:
        print("\x1b[?1049h\x1b[?25l", end="", flush=True)

    def __exit__(self, *_: object) -> None:
        print("\x1b[?25h\x1b[?1049l", end="", flush=True)

    def say(self, elapsed: float, words: str) -> None:
        """Note that something happened, for the next picture."""
        self._events.append(f"{elapsed:5.1f} s  {words}")

    def draw(self, play: _Show, elapsed: float) -> None:
        """Draw how things stand."""
        columns, height = shutil.get_terminal_size()
        lines = [line[: columns - 1] for line in self._lines(play, elapsed)][: height - 1]
        print("\x1b[H" + "".join(f"{_painted(line)}\x1b[K\n" for line in lines) + "\x1b[J", end="", flush=True)

    def _lines(self, play: _Show, elapsed: float) -> Iterator[str]:
        yield f"pump demo: a small shop on the in-memory bus   {min(elapsed, play.seconds):.1f} of {play.seconds:g} s"
        yield ""
        yield from table(play).splitlines()
        yield ""
        yield f"bank      {'up' if play.shop.bank_is_up else 'DOWN   payments are deferred'}"
        yield f"shipping  {'on' if play.switches[SHIPPING] else 'OFF    parcels are held'}"
        yield ""
        yield "dead letters"
        yield from (f"  {each}" for each in list(play.dead_letters())[-5:])
        yield ""
        yield "what happens"
        yield from (f"  {each}" for each in list(self._events))


def _painted(line: str) -> str:
    if line.startswith(("pump demo", "channel", "dead letters", "what happens")):
        return f"\x1b[1m{line}\x1b[0m"
    return f"\x1b[33m{line}\x1b[0m" if " DOWN " in line or " OFF " in line else line
