"""The shop of `pump demo`, written as its users write theirs; only its attributes are found by name, not imported.

An order becomes a payment, and a payment a parcel. Whatever goes wrong, nothing is lost.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from pump.attribute import Attribute, Rest, Scope, Steps
from pump.clock import SystemClock
from pump.context import Context, current_context
from pump.errors import MessageAction
from pump.handling.handler import RequestHandler
from pump.program.dispatcher import Dispatcher
from pump.request import Command
from pump.subscription import Publication, Subscription
from pump.telemetry import Listener


def _by_name(name: str) -> Callable[..., Any]:
    """What pump.handlers has of that name: pump itself imports no handler."""
    found: Callable[..., Any] = getattr(import_module("pump.handlers"), name)
    return found


FeatureSwitch: Callable[..., Attribute] = _by_name("FeatureSwitch")
DeferMessageOnError: Callable[..., Attribute] = _by_name("DeferMessageOnError")
RejectMessageOnError: Callable[..., Attribute] = _by_name("RejectMessageOnError")

PRICES: Final = {"tea": 450, "coffee": 720, "cocoa": 610}
"""In cents."""
SHIPPING: Final = "shipping"
"""The switch without which no parcel leaves."""
_clock: Final = SystemClock()


# -- what is asked for


@dataclass(frozen=True)
class PlaceOrder(Command):
    """Somebody wants some packets of something, in so many parcels."""

    number: int
    item: str
    packets: int
    parcels: int = 1


@dataclass(frozen=True)
class TakePayment(Command):
    """An order has to be paid."""

    order: int
    cents: int


@dataclass(frozen=True)
class ShipParcel(Command):
    """What has been paid may leave."""

    order: int


@dataclass(frozen=True)
class OrderFromOldTill(Command):
    """What a forgotten till still sends; nobody understands it any more."""

    text: str


# -- what the shop has


class Shop:
    """What the handlers share: the bank, the time that work takes, and the books of what was posted."""

    def __init__(self, work_seconds: float = 0.0) -> None:
        self.bank_is_up = True
        self.posted: dict[str, int] = {}
        self._work_seconds: Final = work_seconds
        self._lock: Final = threading.Lock()

    def post(self, context: Context, request: Command) -> None:
        """Post a request on from a handler, and write it down."""
        context.processor.post(request)
        self.write_down(request)

    def write_down(self, request: Command) -> None:
        """Note that a request was posted, and where to."""
        with self._lock:
            topic = TOPICS[type(request)]
            self.posted[topic] = self.posted.get(topic, 0) + 1

    def charge(self, cents: int) -> None:
        """Take some money; a ConnectionError while the bank is down."""
        if not self.bank_is_up:
            raise ConnectionError(f"the bank does not answer: {cents} cents not taken")

    def work(self, context: Context) -> None:
        """Be busy for a moment."""
        _clock.wait(context.cancelled, self._work_seconds)


class Told(Attribute):
    """An attribute of the shop's own: tells the dispatcher's listeners how each handling ended."""

    def __init__(self, scope: Scope | None = None) -> None:
        self._scope = scope or Scope()

    def prepare(self, scope: Scope) -> Attribute:
        """The same, with somebody to tell."""
        return Told(scope)

    def around(self, request: object, rest: Rest) -> Steps:
        """Run the handler, and tell."""
        try:
            result = yield from rest(request)
        except MessageAction as decision:
            self._tell("decided", request, decision)
            raise
        except Exception as error:
            self._tell("failed", request, error)
            raise
        self._tell("handled", request)
        return result

    def _tell(self, event: str, request: object, error: Exception | None = None) -> None:
        message = current_context().message
        self._scope.telemetry.tell(event, channel=self._scope.channel, message=message, request=request, error=error)


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    """Takes orders. It has a bug: an order of no parcels."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    @Told()
    @RejectMessageOnError("no such item", only=KeyError)
    def handle(self, order: PlaceOrder) -> None:
        """Ask for the payment."""
        self._shop.work(self.context)
        cents = PRICES[order.item] * order.packets // order.parcels
        self._shop.post(self.context, TakePayment(order.number, cents))


class TakePaymentHandler(RequestHandler[TakePayment]):
    """Takes money, or tries again later while the bank is down."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    @Told()
    @DeferMessageOnError(only=ConnectionError)
    def handle(self, payment: TakePayment) -> None:
        """Have it paid, and shipped."""
        self._shop.work(self.context)
        self._shop.charge(payment.cents)
        self._shop.post(self.context, ShipParcel(payment.order))


class ShipParcelHandler(RequestHandler[ShipParcel]):
    """Sends parcels, while shipping is switched on."""

    def __init__(self, shop: Shop) -> None:
        self._shop = shop

    @Told()
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


def dispatcher(shop: Shop, switches: dict[str, bool], listener: Listener, *, patience: float) -> Dispatcher:
    """The shop on a bus in memory; `patience` is how long it waits before it tries again, in seconds."""
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
                requeue_backoff=(patience, 4 * patience),
                invalid="orders.invalid",
            ),
            Subscription(TakePayment, topic="payments", max_attempts=None, requeue_backoff=(patience, 2 * patience)),
            Subscription(ShipParcel, topic="parcels", dont_ack_delay=patience),
        ],
        publications=[Publication(request, topic=topic) for request, topic in TOPICS.items()],
        switches=switches,
        listeners=[listener],
    )
