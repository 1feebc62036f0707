"""Uses private parts of the vendor's client, which it may change. If one is missing, the transport works without it.

Tried on azure-servicebus 7.15.0.
"""

from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusConnectionError

GAP_SECONDS: Final = 0.05
"""How long a receive waits after its first messages for more."""
LONG: Final = "LONG"
_SMALLEST, _LARGEST = -(2**31), 2**31 - 1


def hurry(receiver: ServiceBusReceiver) -> None:
    """Have a receive return 50 ms after its first messages, not 200 ms. Without that, a receive only takes longer."""
    if isinstance(getattr(receiver, "_further_pull_receive_timeout", None), float):
        receiver._further_pull_receive_timeout = GAP_SECONDS  # noqa: SLF001 - see above


async def take_back_credit(receiver: ServiceBusReceiver) -> None:
    """Tell Azure to send no more messages. Without that, the client releases late ones itself, after five seconds."""
    handler, transport = getattr(receiver, "_handler", None), getattr(receiver, "_amqp_transport", None)
    link = getattr(handler, "_link", None)
    reset = getattr(transport, "reset_link_credit_async", None)
    if link is not None and reset is not None and getattr(link, "current_link_credit", 0) > 0:
        await reset(handler, 0)


async def release(receiver: ServiceBusReceiver, raw: ServiceBusReceivedMessage) -> bool:
    """Give a message back without counting a delivery, as the client does with those that it fetched ahead.

    False, and nothing is done, where that is not possible. Nobody confirms it.
    """
    settle = getattr(getattr(receiver, "_handler", None), "settle_messages_async", None)
    number, tag = getattr(raw, "_delivery_id", None), getattr(raw, "_delivery_tag", None)
    if settle is None or number is None or tag is None:
        return False
    try:
        await settle(number, tag, "released")
    except Exception:
        return False
    return True


def connection_of(receiver: object) -> object:
    """What holds a receiver's connection. The client forgets it open if it is cut off while it connects."""
    return getattr(receiver, "_handler", None)


def was_not_sent(error: Exception) -> bool:
    """Whether the client reports that a frame was not sent, as on a connection that broke while it was idle."""
    return isinstance(error, ServiceBusConnectionError) and "not send frame" in str(error)


def sendable_number(number: int) -> Any:  # noqa: ANN401 - a number, or what the client takes for a long one
    """An integer of any size, as the client can send it; by itself, it sends every integer with 32 bits."""
    if _SMALLEST <= number <= _LARGEST:
        return number
    return {"TYPE": LONG, "VALUE": max(-(2**63), min(number, 2**63 - 1))}
