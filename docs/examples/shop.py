# shop.py
from dataclasses import dataclass

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.handlers import DontAckOnError, FeatureSwitch, Retry


@dataclass(frozen=True)
class PlaceOrder(Command):
    sku: str
    quantity: int


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    @FeatureSwitch("orders.place", dont_ack=True)
    @DontAckOnError()
    @Retry(attempts=3)
    def handle(self, order: PlaceOrder) -> None:
        print(f"{order.quantity} × {order.sku}")


dispatcher = Dispatcher(
    "sqlite:///shop.db",  # or amqp://guest:guest@localhost/ · nats://localhost · redis://localhost · postgres://… · memory://
    handlers=[PlaceOrderHandler],
    subscriptions=[Subscription(PlaceOrder, topic="orders", performers=2, max_attempts=3)],
    publications=[Publication(PlaceOrder, topic="orders")],
)
