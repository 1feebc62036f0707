"""Failures of the server or its database that make it refuse requests: each is logged once, then counted."""

import logging
from typing import Final

from pump.clock import Clock
from pump.queue.causes import OTHER, Fault
from pump.queue.http.metrics import Metrics

log: Final = logging.getLogger("pump.queue")

SILENT_SECONDS: Final = 60.0
"""A cause that comes again within this time after its end is not logged again."""


class _Outage:
    def __init__(self, cause: Fault, since: float) -> None:
        self.cause: Final = cause
        self.since: Final = since
        self.latest = since
        self.routes: Final[set[str]] = set()
        """The routes that failed and have not succeeded since."""
        self.refused = 0


class Outages:
    """Logs a line when a cause begins to make requests fail, and a line when it has ended. For the loop's thread."""

    def __init__(self, clock: Clock, metrics: Metrics) -> None:
        self._clock: Final = clock
        self._metrics: Final = metrics
        self._now: Final[dict[str, _Outage]] = {}
        self._ended: Final[dict[str, float]] = {}

    def failed(self, route: str, error: Exception) -> None:
        """Record that a request of this route was answered with 503."""
        cause: Fault = getattr(error, "cause", OTHER)
        name, now = cause.name, self._clock.monotonic()
        self._metrics.count("unavailable", cause=name)
        outage = self._now.get(name)
        if outage is None:
            outage = self._now[name] = _Outage(cause, now)
            if now - self._ended.get(name, -SILENT_SECONDS) >= SILENT_SECONDS:
                log.error("requests are refused, as the database cannot be used: %s", error)
        outage.refused += 1
        outage.latest = now
        outage.routes.add(route)

    def succeeded(self, route: str) -> None:
        """Record that a request of this route was carried out."""
        for name, outage in list(self._now.items()):
            outage.routes.discard(route)
            if not outage.routes:
                del self._now[name]
                now = self._clock.monotonic()
                if now - self._ended.get(name, -SILENT_SECONDS) >= SILENT_SECONDS:
                    log.info(
                        "the database can be used again, after %.0f s and %d refusals (%s)",
                        now - outage.since, outage.refused, name,
                    )  # fmt: skip
                self._ended[name] = now

    def lasting(self) -> str:
        """What is wrong, in words, if requests were refused lately for a cause that lasts until somebody mends it."""
        since = self._clock.monotonic() - SILENT_SECONDS
        return next((each.cause.words for each in self._now.values() if each.cause.lasts and each.latest > since), "")

    @property
    def any(self) -> bool:
        """Whether a cause makes requests fail now."""
        return bool(self._now)
