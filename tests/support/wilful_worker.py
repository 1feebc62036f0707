"""A program whose only message is refused fifty times and then fails: `python wilful_worker.py SETTINGS`."""

import asyncio
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from pump import Command, Dispatcher, DontAckAction, Publication, Subscription

REFUSALS = 50
ATTEMPTS = 3


@dataclass(frozen=True)
class Wish(Command):
    """What the handler does not want to do now."""

    name: str


def dispatcher(settings: dict[str, Any]) -> Dispatcher:
    """What consumes the channel."""
    descriptor = os.open(settings["runs"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def run() -> None:
        os.write(descriptor, b".")
        raise DontAckAction if os.fstat(descriptor).st_size <= REFUSALS else ValueError("no tea")

    def refuse(_: Wish) -> None:
        run()

    async def refuse_async(_: Wish) -> None:
        await asyncio.sleep(0)
        run()

    rules = Subscription(
        Wish,
        topic=settings["channel"],
        channel=settings["channel"],
        max_attempts=ATTEMPTS,
        may_block=True,
        dont_ack_delay=0.01,
        requeue_backoff=(0.05, 0.05),
        failure_backoff=(0.2, 1.0),
        **settings["options"],
    )
    return Dispatcher(
        settings["url"],
        handlers=[refuse_async if settings["awaiting"] else refuse],
        subscriptions=[rules],
        publications=[Publication(Wish, topic=settings["channel"])],
        state_folder=settings["state"],
    )


if __name__ == "__main__":
    sys.exit(dispatcher(json.loads(sys.argv[1])).run())
