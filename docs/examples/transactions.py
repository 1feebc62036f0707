"""Each message has its own transaction: committed before the acknowledgement, rolled back if its handler fails."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription

connect = partial(sqlite3.connect, "file:shop?mode=memory&cache=shared", uri=True)
rows, done = list[tuple[str]](), Event()


@dataclass(frozen=True)
class PlaceOrder(Command):
    sku: str


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    def __init__(self, transaction: sqlite3.Connection) -> None:
        self.transaction = transaction

    def handle(self, order: PlaceOrder) -> None:
        self.transaction.execute("INSERT INTO orders VALUES (?)", [order.sku])
        assert order.sku != "unicorn", "we do not have any"
        done.set()


@contextmanager
def database() -> Iterator[None]:  # the lifespan: entered once in each process
    with closing(connect()) as connection:
        connection.execute("CREATE TABLE orders (sku)")
        yield
        rows.extend(connection.execute("SELECT sku FROM orders"))


@contextmanager
def handler(cls: type[PlaceOrderHandler]) -> Iterator[PlaceOrderHandler]:  # the factory: entered for each message
    with closing(connect()) as connection, connection:  # the second one commits, or rolls back
        yield cls(connection)


dispatcher = Dispatcher(
    "memory://",
    lifespan=database,
    factory=handler,
    handlers=[PlaceOrderHandler],
    subscriptions=[Subscription(PlaceOrder, topic="orders", max_attempts=1)],
    publications=[Publication(PlaceOrder, topic="orders")],
)

if __name__ == "__main__":
    with dispatcher:
        dispatcher.post_many([PlaceOrder("unicorn"), PlaceOrder("tea")])
        assert done.wait(10), "the second order is handled, whatever became of the first"
    assert rows == [("tea",)], "nothing is left of the order that failed"
    print(f"in the database: {rows}")
