"""The shop of `pump demo`: an order leads to a payment, and a payment to a parcel.

It is written like a user's program, except for the built-in attributes: they are found by name, because pump imports
no handler.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from pump.attribute import Attribute, Rest, Steps
from pump.clock import SystemClock
from pump.context import Context, current_context
from pump.handling.registry import RequestHandler
from pump.program.dispatcher import Dispatcher
from pump.request import Command
from pump.subscription import Publication, Subscription
from pump.telemetry import Listener

_attributes: Any = import_module("pump.handlers")
FeatureSwitch: Callable[..., Attribute] = _attributes.FeatureSwitch
DeferMessageOnError: Callable[..., Attribute] = _attributes.DeferMessageOnError
RejectMessageOnError: Callable[..., Attribute] = _attributes.RejectMessageOnError

PRICES: Final = {"tea": 450, "coffee": 720, "cocoa": 610}
"""In cents."""
SHIPPING: Final = "shipping"
"""The feature switch for parcels."""
_clock: Final = SystemClock()


# -- requests


@dataclass(frozen=True)
class PlaceOrder(Command):
    """Somebody orders some packets of an item, in one or more parcels."""

    number: int
    item: str
    packets: int
    parcels: int = 1


@dataclass(frozen=True)
class TakePayment(Command):
    """Collect the money for an order."""

    order: int
    cents: int


@dataclass(frozen=True)
class ShipParcel(Command):
    """Send an order that is paid."""

    order: int


@dataclass(frozen=True)
class OrderFromOldTill(Command):
    """A request that an old till sends; no handler takes it."""

    text: str


# -- handlers


class Shop:
    """The state that the handlers share: the bank, how long work takes, and the number of posts to each topic."""

    def __init__(self, work_seconds: float = 0.0) -> None:
        self.bank_is_up = True
        self.posted: dict[str, int] = {}
        self._work_seconds: Final = work_seconds
        self._lock: Final = threading.Lock()

    def post(self, context: Context, request: Command) -> None:
        """Post a request from a handler, and count it."""
        context.processor.post(request)
        self.count_posted(request)

    def count_posted(self, request: Command) -> None:
        """Count a request that was posted."""
        with self._lock:
            topic = TOPICS[type(request)]
            self.posted[topic] = self.posted.get(topic, 0) + 1

    def set_bank(self, *, up: bool) -> None:
        """Let the bank go down, or come up again."""
        self.bank_is_up = up

    def charge(self, cents: int) -> None:
        """Collect money; ConnectionError while the bank is down."""
        if not self.bank_is_up:
            raise ConnectionError(f"the bank does not answer: {cents} cents not taken")

    def work(self, context: Context) -> None:
        """Be busy for a moment."""
        _clock.wait(context.cancelled, self._work_seconds)


class ReportOutcome(Attribute):
    """An attribute of the shop's own: tells the dispatcher's listeners how the handler ended."""

    def around(self, request: object, rest: Rest) -> Steps:
        """Run the handler, and report."""
        raised: BaseException | None = None
        try:
            return (yield from rest(request))
        except BaseException as error:
            raised = error
            raise
        finally:
            fields = {"message": current_context().message, "request": request, "error": raised}
            rest.scope.telemetry.tell("handler_ended", channel=rest.scope.channel, **fields)


class ShopHandler:
    """The base of the three handlers."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop


class PlaceOrderHandler(ShopHandler, RequestHandler[PlaceOrder]):
    """Takes orders. It has a bug: it fails on an order without parcels."""

    @ReportOutcome()
    @RejectMessageOnError("no such item", only=KeyError)
    def handle(self, order: PlaceOrder) -> None:
        """Request the payment."""
        self._shop.work(self.context)
        cents = PRICES[order.item] * order.packets // order.parcels
        self._shop.post(self.context, TakePayment(order.number, cents))


class TakePaymentHandler(ShopHandler, RequestHandler[TakePayment]):
    """Takes money, or tries again later while the bank is down."""

    @ReportOutcome()
    @DeferMessageOnError(only=ConnectionError)
    def handle(self, payment: TakePayment) -> None:
        """Collect the money, and request the parcel."""
        self._shop.work(self.context)
        self._shop.charge(payment.cents)
        self._shop.post(self.context, ShipParcel(payment.order))


class ShipParcelHandler(ShopHandler, RequestHandler[ShipParcel]):
    """Sends parcels while shipping is switched on."""

    @ReportOutcome()
    @FeatureSwitch(SHIPPING, dont_ack=True)
    def handle(self, parcel: ShipParcel) -> None:
        """Send it."""
        self._shop.work(self.context)


TOPICS: Final[dict[type, str]] = {
    PlaceOrder: "orders",
    OrderFromOldTill: "orders",
    TakePayment: "payments",
    ShipParcel: "parcels",
}


def dispatcher(shop: Shop, switches: dict[str, bool], listener: Listener, *, retry_seconds: float) -> Dispatcher:
    """The shop on a bus in memory; `retry_seconds` is how long it waits before it tries again."""
    backoff = (retry_seconds, 4 * retry_seconds)
    return Dispatcher(
        "memory://",
        name="shop",
        handlers=[PlaceOrderHandler(shop), TakePaymentHandler(shop), ShipParcelHandler(shop)],
        subscriptions=[
            Subscription(
                PlaceOrder,
                topic="orders",
                performers=2,
                max_attempts=3,
                requeue_backoff=backoff,
                invalid="orders.invalid",
            ),
            Subscription(TakePayment, topic="payments", max_attempts=None, requeue_backoff=backoff),
            Subscription(ShipParcel, topic="parcels", dont_ack_delay=retry_seconds),
        ],
        publications=[Publication(request, topic=topic) for request, topic in TOPICS.items()],
        switches=switches,
        listeners=[listener],
    )
