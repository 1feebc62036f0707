"""A consumer cannot reach its database. Other consumers get its messages at once, and no attempt is counted."""

from dataclasses import dataclass
from threading import Event

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.handlers import DontAckOnError


@dataclass(frozen=True)
class Reserve(Command):
    sku: str


SKUS = [f"tea-{number}" for number in range(1, 11)]
failed: list[str] = []
reserved: dict[str, str] = {}
first_has_failed, done = Event(), Event()


class ReserveHandler(RequestHandler[Reserve]):
    def __init__(self, consumer: str, *, has_database: bool) -> None:
        self.consumer = consumer
        self.has_database = has_database

    @DontAckOnError(only=ConnectionError)
    def handle(self, request: Reserve) -> None:
        if not self.has_database:
            failed.append(request.sku)
            first_has_failed.set()
            raise ConnectionError("the database does not answer")
        reserved[request.sku] = self.consumer
        if len(reserved) == len(SKUS):
            done.set()


def consumer(name: str, *, has_database: bool) -> Dispatcher:
    return Dispatcher(
        "memory://warehouse",  # one bus for both, as two services share one broker
        handlers=[ReserveHandler(name, has_database=has_database)],
        subscriptions=[Subscription(Reserve, topic="stock", max_attempts=1, dont_ack_delay=5)],
        publications=[Publication(Reserve, topic="stock")],
    )


if __name__ == "__main__":
    with consumer("the first", has_database=False) as first:
        first.post_many(Reserve(sku) for sku in SKUS)
        assert first_has_failed.wait(10), "the first consumer does not acknowledge a message, and pauses"
        with consumer("the second", has_database=True):
            assert done.wait(4), "the second does not have to wait for that pause to end"

    assert set(failed) == {"tea-1"}, "the first tried once, and left the rest alone"
    assert reserved == dict.fromkeys(SKUS, "the second"), "none lost, though max_attempts is 1"
    print(f"{failed[0]} failed on the first; the second reserved all {len(reserved)}")
