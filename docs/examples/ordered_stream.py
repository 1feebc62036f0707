"""A stream whose order matters. A message that fails blocks those behind it until it succeeds, and no longer."""

from dataclasses import dataclass
from threading import Event

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.handlers import DontAckOnError


@dataclass(frozen=True)
class Book(Command):
    """One movement on an account; the balance is right only if they are booked in order."""

    number: int
    cents: int


MOVEMENTS = [Book(1, 10_000), Book(2, -9_500), Book(3, -400), Book(4, 9_000)]
tried: list[int] = []
balances: list[int] = []
done = Event()


class BookHandler(RequestHandler[Book]):
    @DontAckOnError()
    def handle(self, movement: Book) -> None:
        tried.append(movement.number)
        if movement.number == 2 and tried.count(2) < 4:
            raise ConnectionError("the ledger's database is being restarted")
        balances.append(sum(balances[-1:]) + movement.cents)
        if len(balances) == len(MOVEMENTS):
            done.set()


dispatcher = Dispatcher(
    "memory://",
    handlers=[BookHandler],
    subscriptions=[Subscription(Book, topic="movements", ordered=True, dont_ack_delay=0.2)],
    publications=[Publication(Book, topic="movements")],
)

if __name__ == "__main__":
    with dispatcher:
        dispatcher.post_many(MOVEMENTS)
        assert done.wait(10), "the stream goes on once the message succeeds"

    assert tried == [1, 2, 2, 2, 2, 3, 4], "nothing behind it was tried before that"
    assert balances == [10_000, 500, 100, 9_100], "so the account was never overdrawn"
    print(f"tried {tried}, balances {balances}")
