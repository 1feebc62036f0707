"""Sending messages to Redis."""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from pump.capabilities import Capabilities
from pump.errors import ConfigurationError, PublishError, PumpError, SetupError
from pump.message import Message
from pump.transport_kit.sending import check_sizes, not_sent
from pump.transports.redis.connection import Connection, NotConnected
from pump.transports.redis.scripts import Command

AT_ONCE: Final = 500
"""How many messages are sent before the replies are read."""

MakeCommand: TypeAlias = Callable[[Message, float], Command]


class RedisProducer:
    """Sends to the topics in the messages' headers, on a connection of its own. From any thread."""

    def __init__(self, connection: Connection, capabilities: Capabilities, make_command: MakeCommand) -> None:
        """`make_command` gives the command that stores a message after a delay, or raises ValueError."""
        self._connection: Final = connection
        self._capabilities: Final = capabilities
        self._make_command: Final = make_command
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Return when the server has stored every message; a PublishError says what is known of the others."""
        if self._closed:
            raise not_sent("the producer is closed", retriable=True)
        commands = [self._command(message, delay) for message in messages]
        for start in range(0, len(commands), AT_ONCE):
            self._store(commands[start : start + AT_ONCE], is_first=start == 0)

    def close(self) -> None:
        """Disconnect."""
        self._closed = True
        self._connection.close()

    def _command(self, message: Message, delay: float) -> Command:
        try:
            check_sizes(message, self._capabilities)
            return self._make_command(message, delay)
        except (ValueError, ConfigurationError) as error:
            raise not_sent(f"message {message.id} cannot be written: {error}") from error

    def _store(self, commands: Sequence[Command], *, is_first: bool) -> None:
        try:
            replies = self._connection.execute_all(commands)
        except PumpError as error:
            nothing = is_first and isinstance(error, NotConnected | SetupError)
            raise _failure(error, sent=False if nothing else None) from error
        failures = [reply for reply in replies if isinstance(reply, PumpError)]
        if failures:
            nothing = is_first and len(failures) == len(replies)
            raise _failure(failures[0], sent=False if nothing else None) from failures[0]


def _failure(error: PumpError, *, sent: bool | None) -> PublishError:
    known = "nothing was sent" if sent is False else "not everything was confirmed"
    return PublishError(f"{known}: {error}", sent=sent, retriable=not isinstance(error, SetupError))
