"""A consumer in a process of its own, which can be killed: it writes what it has handled to a file."""

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pump.errors import DeferMessageAction
from pump.program.dispatcher import Dispatcher
from pump.request import Command
from pump.transports.nats import NatsSubscription


@dataclass(frozen=True)
class Order(Command):
    """The request; one number kills the process."""

    number: int


def main() -> int:
    """Consume until a signal."""
    told = argparse.ArgumentParser()
    told.add_argument("url")
    told.add_argument("subject")
    told.add_argument("file", type=Path)
    told.add_argument("--lease", type=float, default=2.0)
    told.add_argument("--work", type=float, default=0.0)
    told.add_argument("--attempts", type=int, default=3)
    told.add_argument("--killer", type=int, default=-1)
    told.add_argument("--defer", type=float, default=0.0)
    told.add_argument("--awaits", action="store_true")
    options = told.parse_args()
    notes = options.file.open("a", buffering=1)

    def note(order: Order) -> None:
        if order.number == options.killer:
            notes.write(f"killed {order.number}\n")
            os.kill(os.getpid(), signal.SIGKILL)
        notes.write(f"begun {order.number} {time.time()}\n")
        if options.defer:
            raise DeferMessageAction(options.defer)

    def handle(order: Order) -> None:
        note(order)
        time.sleep(options.work)
        notes.write(f"done {order.number}\n")

    async def handle_async(order: Order) -> None:
        import asyncio

        note(order)
        await asyncio.sleep(options.work)
        notes.write(f"done {order.number}\n")

    rules = NatsSubscription(
        Order,
        subject=options.subject,
        lease=options.lease,
        max_attempts=options.attempts,
        failure_backoff=(0.2, 1),
    )
    dispatcher = Dispatcher(
        options.url,
        handlers=[handle_async if options.awaits else handle],
        subscriptions=[rules],
        state_folder=options.file.parent / "state",
    )
    return dispatcher.run()


if __name__ == "__main__":
    sys.exit(main())
