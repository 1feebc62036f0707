"""One connection to NATS: opened within a time limit, kept through outages, closed within a time limit.

nats-py reconnects by itself, and a delivery of an earlier connection can still be settled on the next one, because an
acknowledgement is a publish. So a `NatsConnection` outlives its sockets. If it cannot send at once, it fails.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Final, Self

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from pump.errors import SetupError, TransportError
from pump.transports.nats.client import PumpClient

log: Final = logging.getLogger("pump.transports.nats")

CONNECT_SECONDS: Final = 2.0
"""How long to wait for one server."""
OPEN_SECONDS: Final = 3.0
"""How long to wait for any server."""
ANSWER_SECONDS: Final = 2.0
"""How long to wait for the answer to a request; after this time the server is treated as unreachable."""
RECONNECT_SECONDS: Final = 0.25
"""The time between two attempts to reconnect."""
PING_SECONDS: Final = 4
"""The time between two pings. A connection is given up when three pings had no answer."""
CLOSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Which servers to connect to, and as whom. Its text and repr show no secret."""

    servers: Sequence[str] = ("nats://127.0.0.1:4222",)
    """The servers' URLs, without user and password."""
    name: str = "message-pump"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = None
    """The path of a credentials file."""
    tls: SSLContext | None = None
    """If given, nothing is sent to a server that does not encrypt: no password, token or credentials, no message."""
    domain: str | None = None
    client: Callable[[], Client] = PumpClient

    def __str__(self) -> str:
        return ", ".join(self.servers)


class NatsConnection:
    """One connection, used on the loop that opened it; `alive` may be read from any thread."""

    def __init__(self, address: ServerAddress, purpose: str) -> None:
        self.address: Final = address
        self.loop: Final = asyncio.get_running_loop()
        self.client: Final = _encrypting(address.client(), self._check_encrypted)
        self.on_change: Callable[[], None] = ignore
        """Called on the loop when the connection is lost, has come back, or is closed for good."""
        self.on_refusal: Callable[[str], None] = ignore
        """Called on the loop with the server's text when the server does not permit a request."""
        self.reconnects = 0
        """How often nats-py has reconnected."""
        self._purpose: Final = purpose
        self._errors: list[str] = []
        self._lost_at: float | None = None

    @classmethod
    async def open(cls, address: ServerAddress, purpose: str) -> Self:
        """Connect; SetupError if the server refuses the login, TransportError if it cannot be reached."""
        connection = cls(address, purpose)
        try:
            await asyncio.wait_for(connection._connect(), OPEN_SECONDS)
        except (TimeoutError, nats.errors.Error, OSError, ValueError, ModuleNotFoundError) as error:
            await connection.close()
            raise connection._explain(error) from None  # nats-py's traceback would not help the user
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def alive(self) -> bool:
        """Whether there is a connection now, so that a message is sent at once.

        nats-py says so before it has subscribed again: what it is asked for by then is answered to nobody.
        """
        return bool(self.client.is_connected) and self._lost_at is None

    @property
    def closed(self) -> bool:
        """Whether the connection is closed for good."""
        return bool(self.client.is_closed)

    @property
    def lost_seconds(self) -> float:
        """For how many seconds there has been no connection."""
        return 0.0 if self._lost_at is None else self.loop.time() - self._lost_at

    @property
    def js(self) -> JetStreamContext:
        """nats-py's API for streams and consumers."""
        return self.client.jetstream(domain=self.address.domain, timeout=ANSWER_SECONDS)

    @property
    def api_prefix(self) -> str:
        """The subjects of requests to JetStream begin with this."""
        return "$JS.API" if self.address.domain is None else f"$JS.{self.address.domain}.API"

    def check_alive(self, action: str) -> None:
        """Raise a TransportError if nothing can be sent now."""
        if not self.alive:
            raise TransportError(f"{action} failed: not connected to {self.address}")

    async def request(self, subject: str, request: Mapping[str, object]) -> dict[str, Any]:
        """JetStream's answer to a request; raises nats-py's errors."""
        data = json.dumps(request).encode()
        answer = await self.client.request(f"{self.api_prefix}.{subject}", data, timeout=ANSWER_SECONDS)
        fields: dict[str, Any] = json.loads(answer.data)
        if "error" in fields:
            nats.js.errors.APIError.from_error(fields["error"])
        return fields

    async def confirm(self, subject: str, body: bytes, timeout: float = ANSWER_SECONDS) -> Msg:
        """Settle a delivery, and wait until the server has confirmed it."""
        self.check_alive("settling")
        try:
            return await self.client.request(subject, body, timeout=timeout)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise TransportError(f"settling failed: {error_text(error)}") from error

    async def close(self) -> None:
        """Send what is still buffered, for up to CLOSE_SECONDS, and close."""
        try:
            await asyncio.wait_for(self.client.close(), CLOSE_SECONDS)
        except Exception as error:
            log.debug("closing the connection for %s: %s", self._purpose, error_text(error))
        finally:
            stream = getattr(getattr(self.client, "_transport", None), "_io_writer", None)
            if stream is not None:
                stream.transport.abort()  # a server that does not read would keep the socket open

    async def _connect(self) -> None:
        address, client = self.address, self.client
        await client.connect(
            servers=list(address.servers),
            name=f"{address.name} ({self._purpose})",
            user=address.user,
            password=self._secret if address.password is not None else None,
            token=self._secret if address.token is not None else None,
            user_credentials=address.credentials,
            tls=address.tls,
            connect_timeout=CONNECT_SECONDS,  # type: ignore[arg-type]
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            ping_interval=PING_SECONDS,
            max_outstanding_pings=2,
            # Without a connection, publishing fails at once. With a buffer, it would be sent after the reconnect: an
            # acknowledgement perhaps after its lease has lapsed, a message after its posting was reported as failed.
            pending_size=0,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
        )
        self._check_encrypted()
        # The first connect may fail; from now on nats-py tries for ever.
        client.options.update(max_reconnect_attempts=-1, reconnect_time_wait=RECONNECT_SECONDS)

    def _secret(self) -> str:
        """The password or token. nats-py calls this just before it sends the login: a second check costs nothing."""
        self._check_encrypted()
        return self.address.password or self.address.token or ""

    def _check_encrypted(self) -> None:
        if self.address.tls is not None and not self.client._server_info.get("tls_required"):  # noqa: SLF001 - nothing public says it before the password is sent
            raise nats.errors.SecureConnWantedError

    def _explain(self, error: BaseException) -> TransportError | SetupError:
        reason = self._errors[-1] if self._errors else error_text(error)
        if isinstance(error, ModuleNotFoundError):
            return SetupError(f"credentials= needs the package {error.name}: pip install 'message-pump[nats]'")
        known = " ".join((*self._errors, error_text(error))).lower()
        who = f" as {self.address.user!r}" if self.address.user is not None else ""
        if "authorization" in known:
            return SetupError(f"the NATS server at {self.address} refused the login{who}: check user and password")
        if isinstance(error, nats.errors.SecureConnWantedError) or "secure connection not available" in known:
            return SetupError(f"the NATS server at {self.address} does not use TLS, which the URL asks for")
        if "certificate" in known:
            return SetupError(f"the certificate of the NATS server at {self.address} is not trusted: {reason}")
        return TransportError(f"no NATS server answers at {self.address}: {reason}")

    # -- nats-py's callbacks

    async def _on_error(self, error: Exception) -> None:
        text = error_text(error)
        if "permissions violation" in text:
            log.error("NATS (%s): %s", self._purpose, text)
            self.on_refusal(text)
        elif not self._errors:
            log.debug("NATS (%s): %s", self._purpose, text)
        self._errors = [*self._errors[-3:], text]

    async def _on_disconnected(self) -> None:
        if not self.client.is_closed:
            log.warning("NATS (%s): the connection to %s is lost; reconnecting", self._purpose, self.address)
            self._lost_at = self.loop.time() if self._lost_at is None else self._lost_at
        self.on_change()

    async def _on_reconnected(self) -> None:
        log.warning("NATS (%s): reconnected to %s", self._purpose, self.address)
        self._errors, self._lost_at = [], None
        self.reconnects += 1
        self.on_change()

    async def _on_closed(self) -> None:
        self.on_change()


def _encrypting(client: Client, check: Callable[[], None]) -> Client:
    """The client, which makes this check each time before it says who it is; nothing public comes early enough."""
    command = client._connect_command  # noqa: SLF001 - it makes the first line that is sent, tried on nats-py 2.16

    def checked() -> bytes:
        check()
        return command()

    client._connect_command = checked  # type: ignore[method-assign] # noqa: SLF001
    return client


def error_text(error: BaseException) -> str:
    """The text of an error, or else the name of its class."""
    if isinstance(error, nats.js.errors.APIError) and error.description:
        return str(error.description)
    return str(error).removeprefix("nats: ") or type(error).__name__


def ignore(*_: object) -> None:
    """The callback that does nothing."""
