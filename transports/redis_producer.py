"""Sending to Redis: all is confirmed, or a PublishError says what is known of it."""

from collections.abc import Sequence
from typing import Final

from pump.capabilities import Capabilities
from pump.errors import ConfigurationError, PublishError, PumpError, SetupError
from pump.message import Message
from pump.transports.redis_consumer import AT_ONCE, Layout
from pump.transports.redis_wire import Command, NotConnected, Reply, Wire


class RedisProducer:
    """Sends to the topics in the messages' headers, on a connection of its own. From any thread."""

    def __init__(self, layout: Layout, capabilities: Capabilities, wire: Wire) -> None:
        self._layout: Final = layout
        self._capabilities: Final = capabilities
        self._wire: Final = wire
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Store every message; a PublishError says what is known of those that were not confirmed."""
        if self._closed:
            raise PublishError("nothing was sent: the producer is closed", sent=False)
        commands = [self._written(message, delay) for message in messages]
        for start in range(0, len(commands), AT_ONCE):
            self._store(commands[start : start + AT_ONCE], nothing_before=start == 0)

    def close(self) -> None:
        """Let go of the connection."""
        self._closed = True
        self._wire.close()

    def _written(self, message: Message, delay: float) -> Command:
        try:
            _check(message, self._capabilities)
            return self._layout.command(message, delay)
        except (ValueError, ConfigurationError) as error:
            text = f"nothing was sent: message {message.id} cannot be written: {error}"
            raise PublishError(text, sent=False, retriable=False) from error

    def _store(self, commands: Sequence[Command], *, nothing_before: bool) -> None:
        replies: Sequence[Reply] = ()
        try:
            replies = self._wire.ask_all(commands)
        except (NotConnected, SetupError) as error:
            raise _failure(error, sent=False if nothing_before else None) from error
        except PumpError as error:
            raise _failure(error, sent=None) from error
        failures = [reply for reply in replies if isinstance(reply, PumpError)]
        if failures:
            nothing = nothing_before and len(failures) == len(replies)
            raise _failure(failures[0], sent=False if nothing else None) from failures[0]


def _failure(error: PumpError, *, sent: bool | None) -> PublishError:
    known = "nothing was sent" if sent is False else "not everything was confirmed"
    return PublishError(f"{known}: {error}", sent=sent, retriable=not isinstance(error, SetupError))


def _check(message: Message, capabilities: Capabilities) -> None:
    headers = sum(len(word.encode()) for pair in message.header.headers.items() for word in pair)
    sizes = (("body", len(message.body), capabilities.largest_body), ("headers", headers, capabilities.largest_headers))
    for what, size, limit in sizes:
        if limit is not None and size > limit:
            raise ValueError(f"its {what} has {size} bytes, and {limit} are allowed")
