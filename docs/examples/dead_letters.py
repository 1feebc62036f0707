"""Orders for an unknown product become dead letters. When the shop knows the product, they are posted again."""

from dataclasses import dataclass
from threading import Event

from pump import Command, Dispatcher, Publication, RejectMessageAction, RequestHandler, Subscription


@dataclass(frozen=True)
class PlaceOrder(Command):
    sku: str


products = {"tea"}
sold: list[str] = []
given_up: list[tuple[str, str]] = []
dead, done = Event(), Event()


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    def handle(self, order: PlaceOrder) -> None:
        if order.sku not in products:
            raise RejectMessageAction("unknown product")
        sold.append(order.sku)
        if len(sold) == 2:
            done.set()


class DeadLetters(RequestHandler[PlaceOrder]):
    def handle(self, order: PlaceOrder) -> None:
        given_up.append((order.sku, self.context.headers["pump-reason"]))
        products.add(order.sku)  # somebody has found the cause, and removed it
        own = {name: text for name, text in self.context.headers.items() if not name.startswith("pump-")}
        self.context.processor.post(order, headers=own)
        dead.set()


dispatcher = Dispatcher(
    "memory://",
    subscriptions=[
        Subscription(PlaceOrder, topic="orders", handlers=[PlaceOrderHandler]),
        Subscription(PlaceOrder, channel="orders.dead", handlers=[DeadLetters]),
    ],
    publications=[Publication(PlaceOrder, topic="orders")],
)

if __name__ == "__main__":
    with dispatcher:
        dispatcher.post(PlaceOrder("tea"))
        dispatcher.post(PlaceOrder("coffee"))
        assert dead.wait(10), "the second one is a dead letter, and its handler has it"
        assert done.wait(10), "posted again, it is handled"

    assert (sold, given_up) == (["tea", "coffee"], [("coffee", "unknown product")])
    print(f"sold {sold} after {given_up}")
