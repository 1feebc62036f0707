"""What other programs put on the server and still want, or put there twice: with whole dispatchers, in both pumps."""

from dataclasses import dataclass
from typing import Any

import pytest

from brokers.redis import Redis
from pump import Command, Dispatcher, RequestHandler, Subscription
from pump.transports.redis import streams as redis_streams
from support.waiting import eventually


@dataclass(frozen=True)
class Tick(Command):
    """A request that another program sent."""

    number: int = 0


class Count:
    """How many messages were handled."""

    def __init__(self) -> None:
        self.runs = 0


class CountTicks(RequestHandler[Tick]):
    def __init__(self, count: Count) -> None:
        self._count = count

    def handle(self, tick: Tick) -> None:
        self._count.runs += 1


class CountTicksAsync(RequestHandler[Tick]):
    def __init__(self, count: Count) -> None:
        self._count = count

    async def handle(self, tick: Tick) -> None:
        self._count.runs += 1


def counting(url: str, count: Count, key: str, *, awaiting: bool, **options: object) -> Dispatcher:
    """A dispatcher that counts the messages that it finds under that key."""
    rules: dict[str, object] = {"topic": key, "channel": key, "receive_timeout": 0.1, "buffer_size": 50, **options}
    return Dispatcher(
        url,
        handlers=[(CountTicksAsync if awaiting else CountTicks)(count)],
        subscriptions=[Subscription(Tick, **rules)],  # type: ignore[arg-type]
    )


def trims(client: Any) -> int:
    """How often a consumer has trimmed: each time it asks for the consumers of its two streams."""
    return int(client.info("commandstats")["cmdstat_xinfo|consumers"]["calls"])


@pytest.mark.parametrize("missing", ["create", "validate"])
def test_an_event_log_of_others_is_read_and_stays_as_it_is(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch, key: str, missing: str, *, awaiting: bool
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    count = Count()
    with redis_server.client() as client:
        for number in range(100):
            client.xadd(key, {"body": f'{{"number": {number}}}'})
        before = client.xrange(key)
        if missing == "validate":
            client.xgroup_create(key, key, "0")
            client.xgroup_create(key, "others", "$")
            client.xadd(f"{key}.dead", {"of": "others"})

        with counting(redis_server.url, count, key, awaiting=awaiting, missing=missing):
            eventually(lambda: count.runs == 100 and client.xpending(key, key)["pending"] == 0)
            looked = trims(client)
            eventually(lambda: trims(client) > looked + 2)

        assert client.xrange(key) == before


def test_equal_elements_are_as_many_messages_and_none_comes_again(
    redis_server: Redis, key: str, *, awaiting: bool
) -> None:
    url, count = redis_server.url.replace("redis://", "redis+list://"), Count()
    in_flight = 20 if awaiting else 1
    with redis_server.client() as client:
        client.rpush(key, *['{"number": 1}'] * 100)
        for _ in range(3):
            with counting(url, count, key, awaiting=awaiting, in_flight=in_flight):
                eventually(lambda: count.runs == 100 and not client.keys(f"*{key}*:held:*"))
            assert client.llen(key) == 0

    assert count.runs == 100
