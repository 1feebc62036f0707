"""What the blocking and the awaiting client of the queue share, but for what they say, which `client_calls` knows."""

from datetime import datetime
from typing import Final

import httpx

from pump.clock import Clock, SystemClock
from pump.duration import Duration, seconds
from pump.queue.client.calls import Calls
from pump.queue.client.consuming import Consuming, Wanted

TIMEOUT: Final = 30.0


def url_of(path: str, base: str) -> httpx.URL:
    """The path as it is written: a name in it may hold an encoded slash."""
    return httpx.URL(base + path)


def headers_of(token: str | None) -> dict[str, str]:
    """What every request says of who asks."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def kind_of(content: bytes | None) -> dict[str, str]:
    """What a request says of its body."""
    return {} if content is None else {"Content-Type": "application/json"}


class ClientBase:
    """What both clients are made with."""

    def __init__(self, url: str, *, clock: Clock | None, timeout: Duration) -> None:
        self.clock: Final[Clock] = SystemClock() if clock is None else clock
        self.base: Final = url.rstrip("/")
        self.timeout: Final = seconds(timeout)
        self.calls: Final = Calls(self.clock)

    def consuming(
        self,
        queue: str,
        *,
        group: str,
        partition: str | None,
        limit: int,
        partitions: int,
        start: str | datetime,
        renew_every: Duration | None,
        most: int | None,
        until_empty: bool,
    ) -> Consuming:
        """What goes on consuming, as it is asked."""
        wanted = Wanted(
            queue=queue,
            group=group,
            partition=partition,
            limit=limit,
            partitions=partitions,
            start=start if isinstance(start, str) else start.timestamp(),
            renew_every=None if renew_every is None else seconds(renew_every),
            most=most,
            until_empty=until_empty,
        )
        return Consuming(self.calls, wanted)
