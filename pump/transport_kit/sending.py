"""What every producer checks and reports in the same way."""

from pump.capabilities import Capabilities
from pump.errors import PublishError
from pump.message import Message


def not_sent(why: str, *, retriable: bool = False) -> PublishError:
    """The error for messages of which none was stored."""
    return PublishError(f"nothing was sent: {why}", sent=False, retriable=retriable)


def check_sizes(message: Message, capabilities: Capabilities, headers_size: int | None = None) -> None:
    """PublishError if the body or the headers are larger than the transport allows.

    `headers_size` is that of the headers as they travel, in bytes; by default that of the sender's own.
    """
    body_limit, headers_limit = capabilities.largest_body, capabilities.largest_headers
    if body_limit is not None and len(message.body) > body_limit:
        raise not_sent(f"the body of message {message.id} has {len(message.body)} bytes, and {body_limit} are allowed")
    if headers_limit is None:
        return
    if headers_size is None:
        headers_size = sum(len(name.encode()) + len(text.encode()) for name, text in message.header.headers.items())
    if headers_size > headers_limit:
        raise not_sent(
            f"the headers of message {message.id} have {headers_size} bytes, and {headers_limit} are allowed"
        )
