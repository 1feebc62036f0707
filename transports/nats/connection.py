"""One connection to NATS: opened within a time limit, kept through outages, closed within a time limit.

nats-py connects again by itself, and the deliveries of an earlier connection can still be settled on the next one: an
acknowledgement is a publish. So a link outlives its connections. It never sends late what could not be sent in time.
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

log: Final = logging.getLogger("pump.transports.nats")

CONNECT_SECONDS: Final = 2.0
"""For one server to answer."""
OPEN_SECONDS: Final = 3.0
"""For any server to answer."""
ANSWER_SECONDS: Final = 2.0
"""For the server to answer a request; after this it is taken for unreachable."""
RECONNECT_SECONDS: Final = 0.25
"""Between two tries to reach a server that was reached before."""
PING_SECONDS: Final = 5
"""A connection on which nothing answers is given up after three of these."""
CLOSE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the servers are, and as whom to connect. What is secret is not shown."""

    servers: Sequence[str] = ("nats://127.0.0.1:4222",)
    """URLs without a user."""
    name: str = "message-pump"
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = None
    """The path of a credentials file."""
    tls: SSLContext | None = None
    """When given, nothing is said to a server that does not encrypt."""
    domain: str | None = None
    client: Callable[[], Client] = Client

    def __str__(self) -> str:
        return ", ".join(self.servers)


class Link:
    """One connection, on the loop that opened it. `alive` may be read from any thread."""

    def __init__(self, address: Address, purpose: str) -> None:
        self.address: Final = address
        self.loop: Final = asyncio.get_running_loop()
        self.client: Final = address.client()
        self.changed: Callable[[], None] = nothing
        """Called on the loop when the connection was lost, has come back, or is closed for good."""
        self.refused: Callable[[str], None] = nothing
        """Called on the loop with what the server says when it permits something not."""
        self.reconnects = 0
        """How many connections there were before this one."""
        self._purpose: Final = purpose
        self._troubles: list[str] = []
        self._cut_at: float | None = None

    @classmethod
    async def open(cls, address: Address, purpose: str) -> Self:
        """Connect; SetupError where the server refuses us, TransportError where it cannot be reached."""
        link = cls(address, purpose)
        try:
            await asyncio.wait_for(link._connect(), OPEN_SECONDS)
        except (TimeoutError, nats.errors.Error, OSError, ValueError) as error:
            await link.close()
            raise link._why_not(error) from None  # the vendor's own frames tell nobody anything
        except BaseException:
            await link.close()
            raise
        return link

    @property
    def alive(self) -> bool:
        """Whether what is sent now leaves now."""
        return bool(self.client.is_connected)

    @property
    def closed(self) -> bool:
        """Whether it has ended for good."""
        return bool(self.client.is_closed)

    @property
    def cut_for(self) -> float:
        """For how long there has been no connection, in seconds."""
        return 0.0 if self._cut_at is None else self.loop.time() - self._cut_at

    @property
    def js(self) -> JetStreamContext:
        """The management of streams and consumers."""
        return self.client.jetstream(domain=self.address.domain, timeout=ANSWER_SECONDS)

    @property
    def prefix(self) -> str:
        """What the subjects of JetStream's own requests begin with."""
        return "$JS.API" if self.address.domain is None else f"$JS.{self.address.domain}.API"

    def must_be_alive(self, doing: str) -> None:
        """Raise a TransportError where nothing can be sent at present."""
        if not self.client.is_connected:
            raise TransportError(f"{doing} failed: not connected to {self.address}")

    async def ask(self, subject: str, request: Mapping[str, object]) -> dict[str, Any]:
        """What JetStream answers; its errors are nats-py's."""
        answer = await self.client.request(
            f"{self.prefix}.{subject}", json.dumps(request).encode(), timeout=ANSWER_SECONDS
        )
        data: dict[str, Any] = json.loads(answer.data)
        if "error" in data:
            nats.js.errors.APIError.from_error(data["error"])
        return data

    async def confirm(self, subject: str, body: bytes, timeout: float = ANSWER_SECONDS) -> Msg:
        """Send, and wait until the server has said that it took it."""
        self.must_be_alive("settling")
        try:
            return await self.client.request(subject, body, timeout=timeout)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise TransportError(f"settling failed: {said(error)}") from error

    async def close(self) -> None:
        """Send what is still to be sent, if that goes quickly, and let go of the connection."""
        try:
            await asyncio.wait_for(self.client.close(), CLOSE_SECONDS)
        except Exception as error:
            log.debug("closing the connection for %s: %s", self._purpose, said(error))
        finally:
            self._abort()

    def _abort(self) -> None:
        """A server that does not read would keep the socket open for as long as it is silent."""
        stream = getattr(getattr(self.client, "_transport", None), "_io_writer", None)
        if stream is not None:
            stream.transport.abort()

    async def _connect(self) -> None:
        address, client = self.address, self.client
        secret = address.password is not None or address.token is not None
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
            # What is sent while there is no connection fails at once. Kept, it would be sent after the next one is
            # made: an acknowledgement perhaps after its lease has lapsed, a publish after it was said to have failed.
            pending_size=0,
            error_cb=self._on_error,
            disconnected_cb=self._on_disconnected,
            reconnected_cb=self._on_reconnected,
            closed_cb=self._on_closed,
        )
        if address.tls is not None and not secret:
            self._must_encrypt()
        # To connect for the first time may fail; from now on it is tried for ever.
        client.options.update(max_reconnect_attempts=-1, reconnect_time_wait=RECONNECT_SECONDS)

    def _secret(self) -> str:
        """Asked for when it is about to be sent."""
        self._must_encrypt()
        return self.address.password or self.address.token or ""

    def _must_encrypt(self) -> None:
        if self.address.tls is not None and not self.client._server_info.get("tls_required"):  # noqa: SLF001 - nobody else tells before the password has been sent
            raise nats.errors.SecureConnWantedError

    def _why_not(self, error: BaseException) -> TransportError | SetupError:
        reason = self._troubles[-1] if self._troubles else said(error)
        said_so = " ".join((*self._troubles, said(error)))
        who = f" as {self.address.user!r}" if self.address.user is not None else ""
        if "authorization" in said_so.lower():
            return SetupError(f"the NATS server at {self.address} does not let us in{who}: check user and password")
        if isinstance(error, nats.errors.SecureConnWantedError) or "secure connection not available" in said_so:
            return SetupError(f"the NATS server at {self.address} does not encrypt, and TLS was asked for")
        if "certificate" in said_so.lower():
            return SetupError(f"the certificate of the NATS server at {self.address} is not trusted: {reason}")
        return TransportError(f"no NATS server answers at {self.address}: {reason}")

    # -- what nats-py tells

    async def _on_error(self, error: Exception) -> None:
        text = said(error)
        if "permissions violation" in text:
            log.error("NATS (%s): %s", self._purpose, text)
            self.refused(text)
        elif not self._troubles:
            log.debug("NATS (%s): %s", self._purpose, text)
        self._troubles = [*self._troubles[-3:], text]

    async def _on_disconnected(self) -> None:
        if not self.client.is_closed:
            log.warning("NATS (%s): the connection to %s is lost; trying again", self._purpose, self.address)
            self._cut_at = self.loop.time()
        self.changed()

    async def _on_reconnected(self) -> None:
        log.warning("NATS (%s): connected to %s again", self._purpose, self.address)
        self._troubles, self._cut_at = [], None
        self.reconnects += 1
        self.changed()

    async def _on_closed(self) -> None:
        self.changed()


def said(error: BaseException) -> str:
    """What an error says, and else what it is."""
    if isinstance(error, nats.js.errors.APIError) and error.description:
        return str(error.description)
    return str(error).removeprefix("nats: ") or type(error).__name__


def nothing(*_: object) -> None:
    """Nobody wants to know."""
