"""`pump demo`: a shop on the in-memory bus, shown live in the terminal for half a minute."""

import itertools
import logging
import os
import shutil
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, NamedTuple, cast

from pump.clock import Signal, SystemClock
from pump.command.demo_shop import PRICES, SHIPPING, OrderFromOldTill, PlaceOrder, Shop, dispatcher
from pump.errors import DeferMessageAction, DontAckAction, RejectMessageAction
from pump.message import Message
from pump.process_signals import handling
from pump.request import Command

_TICK: Final = 0.1
_TICKS_PER_LINE: Final = 20
_CHANNELS: Final = ("orders", "payments", "parcels")
_DEAD_LETTERS: Final = ("orders.dead", "orders.invalid", "payments.dead", "parcels.dead")
_OUTCOMES: Final[Mapping[type, str]] = {
    type(None): "handled",
    DeferMessageAction: "deferred",
    DontAckAction: "held",
    RejectMessageAction: "rejected",
}
"""The outcome for each error that a handler of the shop raises."""
_CLOSING_TIME: Final = 0.8
"""After this part of the demo no more orders come."""


class _Counts(NamedTuple):
    """The messages of one channel, as columns of the table."""

    posted: int
    handled: int
    waiting: int
    in_hand: int
    deferred: int
    held: int
    failed: int
    dead: int


class _Outcomes:
    """A listener that counts how handlers ended, and prints what is unusual."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.counts: Final = Counter[tuple[str, str]]()
        self._show: Final = show
        self._held: Final = set[str]()
        self._lock: Final = threading.Lock()

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Listen."""
        if event != "handler_ended":
            return
        channel, request, error = fields["channel"], fields["request"], fields["error"]
        outcome = _OUTCOMES.get(type(error), "failed")
        with self._lock:
            self.counts[str(channel), outcome] += 1
            text = self._text(outcome, error, cast("Message", fields["message"]))
        if text:
            number = getattr(request, "number", None) or getattr(request, "order", "")
            self._show(f"{channel:<9} {type(request).__name__} {number} {text}")

    def _text(self, outcome: str, error: object, message: Message) -> str:
        match outcome:
            case "held":
                first = message.id not in self._held
                self._held.add(message.id)
                return f"is held: {error}" if first else ""
            case "handled" if message.id in self._held:
                self._held.discard(message.id)
                return "was held, and is handled now"
            case "handled":
                return "is handled at last" if message.attempts else ""
            case "deferred":
                return f"comes again later: {getattr(error, '__cause__', None)}"
            case "failed":
                return f"failed: {type(error).__name__}: {error}"
            case _:
                return f"is rejected: {error}"


class Demo:
    """The shop, its customers, and the troubles that it runs into."""

    def __init__(self, seconds: float, speed: float, *, show: Callable[[str], None]) -> None:
        self.seconds: Final = seconds
        self.switches: Final = {SHIPPING: True}
        self.shop: Final = Shop(work_seconds=0.02 / speed)
        self._outcomes: Final = _Outcomes(show)
        retry_seconds = max(0.05, seconds / 30)
        self.dispatcher: Final = dispatcher(self.shop, self.switches, self._outcomes, retry_seconds=retry_seconds)
        self._bus: Final[Any] = getattr(self.dispatcher.transport, "bus")  # noqa: B009 - not every transport has one
        self._show: Final = show
        self._orders_per_second: Final = 4.0 * speed
        self._orders = 0
        self._script: Final = deque(self._events())

    def _events(self) -> Iterator[tuple[float, str, Callable[[], None]]]:
        """The events of the demo: when each happens, as a part of the whole time, its text, and what to do."""
        yield 0.10, "the bank is down: payments are deferred", lambda: self.shop.set_bank(up=False)
        yield 0.15, "a forgotten till sends something", lambda: self._post(OrderFromOldTill("1 x TEA"))
        yield 0.20, "somebody orders 0 parcels: the handler has a bug there", lambda: self._order(parcels=0)
        yield 0.30, "shipping is switched off: parcels are held", lambda: self.switches.update({SHIPPING: False})
        yield 0.40, "the bank is up again", lambda: self.shop.set_bank(up=True)
        yield 0.65, "shipping is switched on again", lambda: self.switches.update({SHIPPING: True})
        yield _CLOSING_TIME, "closing time: no more orders", lambda: None

    def advance(self, elapsed: float) -> None:
        """Do everything that is due `elapsed` seconds after the beginning."""
        while self._script and elapsed >= self._script[0][0] * self.seconds:
            _, text, act = self._script.popleft()
            self._show(text)
            act()
        while self._script and self._orders < elapsed * self._orders_per_second:
            self._order()

    def _order(self, parcels: int = 1) -> None:
        self._orders += 1
        items = sorted(PRICES)
        wrong = parcels and self._orders % 20 == 7  # noqa: PLR2004 - now and then
        item = "unicorn" if wrong else items[self._orders % len(items)]
        self._post(PlaceOrder(self._orders, item, 1 + self._orders % 3, parcels))

    def _post(self, request: Command) -> None:
        self.dispatcher.post(request)
        self.shop.count_posted(request)

    # -- results

    def counts(self, channel: str) -> _Counts:
        """The messages of a channel at this moment."""
        outcomes = self._outcomes.counts
        return _Counts(
            posted=self.shop.posted.get(channel, 0),
            handled=outcomes[channel, "handled"],
            waiting=self._bus.pending(channel) + self._bus.scheduled(channel),
            in_hand=self._bus.locked(channel),
            deferred=outcomes[channel, "deferred"],
            held=outcomes[channel, "held"],
            failed=outcomes[channel, "failed"],
            dead=sum(self._bus.pending(name) for name in _DEAD_LETTERS if name.startswith(f"{channel}.")),
        )

    def table(self) -> str:
        """The counts of every channel."""
        head = ("channel", "posted", "handled", "waiting", "in hand", "deferred", "held", "failed", "dead letters")
        rows: list[Sequence[object]] = [head, *((channel, *self.counts(channel)) for channel in _CHANNELS)]
        return "\n".join("".join(f"{cell!s:<10}" for cell in row).rstrip() for row in rows)

    def dead_letters(self) -> Iterator[str]:
        """A line for each dead letter: where it is, and why."""
        for name in _DEAD_LETTERS:
            for message in self._bus.messages(name):
                reason = message.header.headers.get("pump-reason", "")
                error = message.header.headers.get("pump-error", "")
                why = reason if reason in error else f"{reason} ({error})"
                yield f"{name:<14}  {why}: {message.header.type} {message.body.decode()}"

    def summary(self) -> tuple[bool, str]:
        """Whether every posted message is accounted for, and the numbers."""
        total = _Counts(*map(sum, zip(*(self.counts(channel) for channel in _CHANNELS), strict=True)))
        waiting = total.waiting + total.in_hand
        adds_up = total.posted == total.handled + total.dead + waiting
        verdict = "nothing is lost" if adds_up else "this does not add up: it is a bug"
        return adds_up, (
            f"posted {total.posted} = handled {total.handled} + dead letters {total.dead} + still waiting {waiting}: "
            f"{verdict}\non the way: deferred {total.deferred} times, held {total.held} times, "
            f"failed {total.failed} times"
        )


def run_demo(seconds: float, speed: float, *, plain: bool) -> int:
    """Run the shop for this many seconds, or until Ctrl-C; return 0 if every posted message is accounted for."""
    stop, clock = Signal(), SystemClock()
    live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not plain
    display: _Lines | _Screen = _Screen() if live else _Lines()
    began = clock.monotonic()
    demo = Demo(seconds, speed, show=lambda text: display.show(clock.monotonic() - began, text))
    with ExitStack() as restored, handling(lambda *_: stop.set()):
        log, silent = logging.getLogger("pump"), logging.NullHandler()  # other loggers are still shown
        restored.callback(setattr, log, "propagate", log.propagate)
        restored.callback(log.removeHandler, silent)
        log.propagate = False
        log.addHandler(silent)
        if live:  # on the terminal's alternate page, without a cursor
            restored.callback(print, "\x1b[?25h\x1b[?1049l", end="", flush=True)
            print("\x1b[?1049h\x1b[?25l", end="", flush=True)
        with demo.dispatcher:
            began = clock.monotonic()
            while (elapsed := clock.monotonic() - began) < seconds and not stop.is_set():
                demo.advance(elapsed)
                display.update(demo, elapsed)
                clock.wait(stop, _TICK)
        display.update(demo, elapsed)
    adds_up, summary = demo.summary()
    dead_letters = (f"  {each}" for each in demo.dead_letters())
    print(
        "\n".join([*([] if live else [""]), demo.table(), "", "dead letters", *dead_letters, "", summary]), flush=True
    )
    return 0 if adds_up else 1


# -- output


class _Lines:
    """Prints a line for every event, and the counts now and then."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def show(self, elapsed: float, text: str) -> None:
        print(f"{elapsed:5.1f} s  {text}", flush=True)

    def update(self, demo: Demo, elapsed: float) -> None:
        if next(self._ticks) % _TICKS_PER_LINE == 0:
            counts = ((channel, demo.counts(channel)) for channel in _CHANNELS)
            texts = (f"{channel} {now.handled} handled, {now.waiting + now.in_hand} here" for channel, now in counts)
            self.show(elapsed, f"          {'; '.join(texts)}")


class _Screen:
    """Draws one screen again and again, with the latest events."""

    def __init__(self) -> None:
        self._events: Final = deque[str](maxlen=8)

    def show(self, elapsed: float, text: str) -> None:
        self._events.append(f"{elapsed:5.1f} s  {text}")

    def update(self, demo: Demo, elapsed: float) -> None:
        columns, height = shutil.get_terminal_size()
        lines = [line[: columns - 1] for line in self._lines(demo, elapsed)][: height - 1]
        print("\x1b[H" + "".join(f"{_coloured(line)}\x1b[K\n" for line in lines) + "\x1b[J", end="", flush=True)

    def _lines(self, demo: Demo, elapsed: float) -> Sequence[str]:
        return [
            f"pump demo: a small shop on the in-memory bus   {min(elapsed, demo.seconds):.1f} of {demo.seconds:g} s",
            "",
            *demo.table().splitlines(),
            "",
            f"bank      {'up' if demo.shop.bank_is_up else 'DOWN   payments are deferred'}",
            f"shipping  {'on' if demo.switches[SHIPPING] else 'OFF    parcels are held'}",
            "",
            "dead letters",
            *(f"  {each}" for each in list(demo.dead_letters())[-5:]),
            "",
            "what happens",
            *(f"  {each}" for each in list(self._events)),
        ]


def _coloured(line: str) -> str:
    if line.startswith(("pump demo", "channel", "dead letters", "what happens")):
        return f"\x1b[1m{line}\x1b[0m"
    return f"\x1b[33m{line}\x1b[0m" if " DOWN " in line or " OFF " in line else line
