"""A streaming pull: Pub/Sub sends messages as they come, no more of them than there are permits for."""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from pump.clock import Clock
from pump.errors import PumpError, TransportError
from pump.transports.pubsub.connection import (
    PUBSUB,
    Call,
    PubSubConnection,
    PubSubMissing,
    PubSubThrottled,
    Request,
)
from pump.transports.pubsub.permits import PubSubPermits

HEARTBEAT_SECONDS: Final = 30.0
"""A stream on which nobody says anything is ended by Google."""
USUAL_SECONDS: Final = 1.0
"""One that lasted for so long has ended as streams do; the next one tells whether there is an outage."""
ENDS_SECONDS: Final = 1.0
"""How long to wait for a stream that was asked to end. What is on its way then comes again after its lease."""

Requests = queue.SimpleQueue[Request | None]


class PubSubStream:
    """One stream at a time, opened again when it ends. `keep` and `stop` are called by whoever receives.

    `here` says how many messages are here and not settled; `came` is called with those that come, and `ended` with the
    error that ended a stream, or None. Both are called on a thread of the stream's.
    """

    def __init__(
        self,
        connection: PubSubConnection,
        name: str,
        *,
        most: int,
        deadline: Callable[[], float],
        here: Callable[[], int],
        came: Callable[[Sequence[Any]], None],
        ended: Callable[[PumpError | None], None],
        clock: Clock,
    ) -> None:
        self._connection: Final = connection
        self._name: Final = name
        self._permits: Final = PubSubPermits(most)
        self._deadline: Final = deadline
        self._here: Final = here
        self._came: Final = came
        self._ended: Final = ended
        self._clock: Final = clock
        self._lock: Final = threading.Lock()
        self._call: Call | None = None
        self._requests: Requests = queue.SimpleQueue()
        self._over: Final = threading.Event()
        """Set while none is open."""
        self._over.set()
        self._began = self._told = 0.0
        self._ends_at: float | None = None
        """When a stream that was asked to end is cut off; None as long as it was not."""

    @property
    def is_open(self) -> bool:
        """Whether one is, or is about to end."""
        return self._call is not None

    def keep(self) -> None:
        """Have one open, with as many permits as there can be; without any, have none."""
        now = self._clock.monotonic()
        with self._lock:
            call = self._call
            if call is None:
                self._open(now)
            elif self._ends_at is not None:
                if now >= self._ends_at:
                    call.cancel()
            elif self._permits.should_replace(self._here()):
                self._end(now)
            elif now - self._told >= HEARTBEAT_SECONDS:
                self._told = now
                self._requests.put(PUBSUB["StreamingPullRequest"]())

    def _open(self, now: float) -> None:
        share = self._permits.open(self._here())
        if share == 0:
            return
        requests: Requests = queue.SimpleQueue()
        requests.put(
            PUBSUB["StreamingPullRequest"](
                subscription=self._name,
                stream_ack_deadline_seconds=round(self._deadline()),
                max_outstanding_messages=share,
            )
        )
        try:
            call = self._connection.stream(self._name, iter(requests.get, None))
        except PumpError:
            self._permits.closed()
            raise
        self._over.clear()
        self._call, self._requests, self._began, self._told, self._ends_at = call, requests, now, now, None
        threading.Thread(target=self._read, args=(call, requests), name="pump-pubsub-stream", daemon=True).start()

    def _end(self, now: float) -> None:
        """Let it end by itself: what is on its way still comes. A server need not do that."""
        self._ends_at = now + ENDS_SECONDS
        self._requests.put(None)

    def stop(self) -> None:
        """End the stream. What comes meanwhile is still told; if it goes on for long, the next call cuts it off."""
        now = self._clock.monotonic()
        with self._lock:
            if self._call is not None and self._ends_at is None:
                self._end(now)
            elif self._call is not None and self._ends_at is not None and now >= self._ends_at:
                self._call.cancel()

    def close(self, timeout: float) -> None:
        """The same, and wait for its end; what is on its way for longer comes again after its lease."""
        self.stop()
        if not self._over.wait(timeout):
            with self._lock:
                call = self._call
            if call is not None:
                call.cancel()

    def _read(self, call: Call, requests: Requests) -> None:
        error: PumpError | None = None
        try:
            for response in call:
                self._came(response.received_messages)
        except Exception as failure:
            error = self._connection.error_of(failure)
        requests.put(None)  # grpc has a thread that waits for the next request
        with self._lock:
            asked, lasted = self._ends_at is not None, self._clock.monotonic() - self._began
            self._call = None
            self._permits.closed()
            self._over.set()
        self._ended(None if asked or self._is_usual(error, lasted) else error)

    @staticmethod
    def _is_usual(error: PumpError | None, lasted: float) -> bool:
        says_why = isinstance(error, PubSubMissing | PubSubThrottled) or not isinstance(error, TransportError)
        return not says_why and lasted >= USUAL_SECONDS
