"""Pulling messages of a durable consumer: one request at a time, ended by a status message of the server.

A pull request has both `no_wait` and `expires`: the server sends the messages that it has and then says that there is
no more. If it has none, it waits for the first one, until the request expires. Either way it says when the request is
over. So no request outlives the receive that needed it, and none is cancelled, which could leave a message unhandled
until its lease ends. The status is the heartbeat too: a server that does not send it in time does not work.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from nats.aio.msg import Msg
from nats.js import api

from pump.clock import Clock
from pump.errors import TransportError
from pump.transports.nats.connection import NatsConnection

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

STALL_SECONDS: Final = 2.0
"""By how many seconds the server may be late to say that a request is over."""
LONGEST_SECONDS: Final = 1.0
"""The longest request, whatever the timeout of the receive is: closing a consumer waits for its end."""
PAUSE_SECONDS: Final = 0.1
"""The pause before the next request, if the server was too busy for the last one."""
BUSY_SECONDS: Final = 10.0
"""If the server refuses every request for this long, that is an error."""

_NO_MESSAGES: Final = frozenset({"404", "408"})
_NO_RESPONDERS: Final = "503"
_HEARTBEAT: Final = "100"
_CONFLICT: Final = "409"
_FINAL_CONFLICTS: Final = frozenset({"Consumer Deleted", "Consumer is push based"})
"""After these conflicts the consumer gets no more messages; after most others, the next request may work."""
_OVER_LIMIT: Final = "Exceeded MaxRequest"
"""The consumer's settings were changed, and must be read again."""


@dataclass(slots=True)
class _PullRequest:
    left: int
    """How many messages may still come."""
    sent_at: float
    """The server sent its messages after this time, so their leases are counted from it."""
    ends_at: float
    """When the server ends the request at the latest."""


class Puller:
    """The pull requests of one consumer, and the messages that they bring, on the loop of its connection."""

    def __init__(
        self,
        connection: NatsConnection,
        stream: str,
        durable: str,
        *,
        longest: float,
        largest: int | None = None,
        clock: Clock,
        on_change: Callable[[], None],
    ) -> None:
        """No request lasts longer than `longest` seconds, or asks for more than `largest` messages."""
        self.arrived: Final[deque[tuple[Msg, float]]] = deque()
        """Messages that were not taken yet, each with the time from which its lease is counted."""
        self.busy_until = 0.0
        """Not before this time may the next request be sent; set when the server was too busy for the last one."""
        self._connection: Final = connection
        self._subject: Final = f"{connection.api_prefix}.CONSUMER.MSG.NEXT.{stream}.{durable}"
        self._name: Final = f"the consumer {durable!r} of the stream {stream!r}"
        self._longest: Final = longest
        self._largest: Final = largest
        self._clock: Final = clock
        self._on_change: Final = on_change
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._reconnects = 0
        self._request: _PullRequest | None = None
        self._error: TransportError | None = None
        self._refused_since: float | None = None

    @property
    def pending(self) -> bool:
        """Whether a request is under way, so that messages may still come."""
        return self._request is not None

    @property
    def deadline(self) -> float:
        """The time by which a working server has ended the request."""
        return 0.0 if self._request is None else self._request.ends_at + STALL_SECONDS

    @property
    def overdue(self) -> bool:
        """Whether the server is late to say that the request is over."""
        return self._request is not None and self._clock.monotonic() >= self.deadline

    def forget(self) -> None:
        """Forget the request. A message that it still brings is taken all the same."""
        self._request, self.busy_until = None, self._clock.monotonic() + PAUSE_SECONDS

    async def request(self, limit: int, timeout: float) -> None:
        """Ask for up to `limit` messages. If it has none, the server waits up to `timeout` seconds for the first."""
        if self._subscription is None or self._reconnects != self._connection.reconnects:
            await self._subscribe()
        limit = limit if self._largest is None else min(limit, self._largest)
        expires = min(timeout, self._longest)
        options: dict[str, object] = {"batch": limit, "no_wait": True}
        if expires > 0:
            options["expires"] = int(expires * 1e9)
        now = self._clock.monotonic()
        self._request = _PullRequest(limit, now, now + expires)
        await self._connection.client.publish(self._subject, json.dumps(options).encode(), self._inbox)

    def check(self) -> None:
        """Raise the error that the server reported, or that it is silent. Forget a request whose connection is lost."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._request is None:
            return
        if not self._connection.alive or self._reconnects != self._connection.reconnects:
            self._request = None
        elif self._clock.monotonic() >= self.deadline:
            self._request = None
            raise TransportError(f"the NATS server does not answer requests for {self._name}")

    async def _subscribe(self) -> None:
        """Subscribe to a new inbox: the old one may still receive messages requested on an earlier connection."""
        previous, self._reconnects = self._subscription, self._connection.reconnects
        self._inbox = self._connection.client.new_inbox()
        self._subscription = await self._connection.client.subscribe(
            self._inbox, cb=self._on_message, pending_msgs_limit=0, pending_bytes_limit=0
        )  # no limits here: the request limits the messages
        if previous is not None:
            await previous.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        request = self._request
        if message.reply:
            self._refused_since = None
            self.arrived.append((message, self._clock.monotonic() if request is None else request.sent_at))
            if request is not None:
                request.left -= 1
                if not request.left:
                    self._request = None
        else:
            self._on_status(message.headers or {})
        self._on_change()

    def _on_status(self, headers: Mapping[str, str]) -> None:
        status, text = headers.get(api.Header.STATUS, ""), headers.get(api.Header.DESCRIPTION, "")
        if status == _HEARTBEAT:
            return
        self._request, now = None, self._clock.monotonic()
        if status == _NO_RESPONDERS:  # the cluster may be electing a leader
            self._on_refusal(now, STALL_SECONDS, f"{self._name} does not exist, or JetStream is not running")
        elif status in _NO_MESSAGES:
            self._refused_since = None
        elif status == _CONFLICT and text not in _FINAL_CONFLICTS and not text.startswith(_OVER_LIMIT):
            self._on_refusal(
                now, BUSY_SECONDS, f"the server has refused every request for {self._name} for a while: {text}"
            )
        else:
            self._error = TransportError(f"{self._name}: {text or status}")

    def _on_refusal(self, now: float, patience: float, error: str) -> None:
        """Note that the next request must wait; or the error, if the server has refused for `patience` seconds."""
        since = self._refused_since or now
        if now - since < patience:
            self._refused_since = since
            self.busy_until = now + PAUSE_SECONDS
        else:
            self._refused_since = None
            self._error = TransportError(error)
