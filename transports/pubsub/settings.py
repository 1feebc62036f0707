"""Where Pub/Sub is and how to talk to it: read from a URL, or given as typed options."""

import os
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.transport_kit.settings import Options, at_least, finite_seconds, only_with_tls, read_url, yes_or_no

FORM: Final = "pubsub://project?option=value"
EMULATOR: Final = "PUBSUB_EMULATOR_HOST"
"""The environment variable by which Google's tools say where their emulator is."""
SHORTEST_LEASE: Final = 10.0
LONGEST_LEASE: Final = 600.0
"""The longest acknowledgement deadline that Pub/Sub allows, in seconds."""
SHORTEST_PLAIN_LEASE: Final = 1.0
"""The shortest one that emulators allow."""
FEWEST_DELIVERIES: Final = 5
MOST_DELIVERIES: Final = 100
"""The limits of a dead-letter policy at Pub/Sub."""


def _pair(text: str) -> tuple[float, float]:
    first, longest = map(float, text.split(","))
    return first, longest


OPTIONS: Final[Options] = {
    **dict.fromkeys(("endpoint", "ca_file", "credentials_file"), str),
    **dict.fromkeys(("lease", "longest_lease", "timeout", "keepalive"), float),
    **dict.fromkeys(("plaintext", "release_on_nack", "exactly_once", "streaming"), yes_or_no),
    "delivery_limit": int,
    "retry_policy": _pair,
}


@dataclass(frozen=True, kw_only=True)
class PubSubSettings:
    """One project of Google Cloud, or of an emulator. Checked when made; making it opens nothing."""

    project: str
    endpoint: str = ""
    """`host:port`, as of a region; by default what PUBSUB_EMULATOR_HOST says, else Google's global one."""
    plaintext: bool = False
    """Whether the endpoint uses no TLS and asks for no credentials, like an emulator."""
    ca_file: str | None = None
    """The authorities to trust for the endpoint; by default those that gRPC brings."""
    credentials_file: str | None = field(default=None, repr=False)
    """Of a service account; by default the credentials that the environment gives."""
    credentials: Any = field(default=None, repr=False)
    """An object of google-auth, instead of a file."""
    lease: Duration = 60.0
    """The acknowledgement deadline, for subscriptions without their own: 10 s to 600 s."""
    longest_lease: Duration = 86_400.0
    """The longest time for which one delivery is extended; then it comes again, even if its handler still runs."""
    release_on_nack: bool = False
    """Whether a nacked message goes back to Pub/Sub at once (which counts a delivery), instead of being held here."""
    exactly_once: bool = False
    """Whether subscriptions are created with exactly-once delivery: each acknowledgement is then waited for."""
    streaming: bool = False
    """Whether messages are sent here as they come, up to twice as many as the buffer holds, instead of being pulled."""
    delivery_limit: int | None = MOST_DELIVERIES
    """For the dead-letter policy of subscriptions that are created: after this many deliveries Pub/Sub itself makes a
    message a dead letter. Pub/Sub counts deliveries only with such a policy. None: no policy."""
    retry_policy: tuple[Duration, Duration] | None = None
    """The first and the longest wait of Pub/Sub's own back-off, for subscriptions that are created; None: at once."""
    timeout: Duration = 5.0
    """Seconds to wait for an answer."""
    keepalive: Duration = 10.0
    """After this many seconds without data from the server it is asked for an answer, and has 5 s to give it."""

    def __post_init__(self) -> None:
        if not self.project or "/" in self.project:
            raise ConfigurationError(f"pubsub: {self.project!r} is not the id of a project; a URL has the form {FORM}")
        for name in ("longest_lease", "timeout", "keepalive"):
            finite_seconds("pubsub", name, getattr(self, name))
        self.lease_of(self.lease)
        if self.delivery_limit is not None and not FEWEST_DELIVERIES <= self.delivery_limit <= MOST_DELIVERIES:
            text = f"pubsub: delivery_limit must be {FEWEST_DELIVERIES} to {MOST_DELIVERIES}, or None"
            raise ConfigurationError(f"{text}, not {self.delivery_limit}")
        if self.retry_policy is not None:
            first, longest = map(seconds, self.retry_policy)
            if not 0 <= first <= longest <= LONGEST_LEASE:
                text = f"pubsub: retry_policy is (first, longest), at most 600 s, not {first, longest}"
                raise ConfigurationError(text)
        if self.plaintext:
            only_with_tls("pubsub", "pubsub", {"ca_file": self.ca_file, "credentials_file": self.credentials_file})
        at_least("pubsub", "keepalive", seconds(self.keepalive), 1)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The settings of pubsub://project?option=value; the fields of this class are the options."""
        read = read_url(url, FORM, OPTIONS, schemes=["pubsub"])
        if read.parts.path.strip("/"):
            raise read.error("it must not have a path")
        if read.user is not None or read.password is not None:
            raise read.error("it must not have a user: credentials come from the environment or from credentials_file")
        try:
            port = read.parts.port
        except ValueError:
            raise read.error("the project is not a name") from None
        if port is not None:
            raise read.error("it must not have a port: give the address of an emulator as the option endpoint")
        return cls(project=read.host or "", **read.options)

    def place(self) -> tuple[str, bool]:
        """Where to connect, and whether without TLS; the environment is asked now."""
        if self.endpoint:
            return self.endpoint, self.plaintext
        emulator = os.environ.get(EMULATOR, "")
        return (emulator, True) if emulator else ("", False)

    def lease_of(self, lease: Duration | None) -> float:
        """A subscription's lease, in whole seconds; ConfigurationError if Pub/Sub has no such deadline."""
        value = finite_seconds("pubsub", "lease", self.lease if lease is None else lease)
        shortest = SHORTEST_PLAIN_LEASE if self.place()[1] else SHORTEST_LEASE
        if not shortest <= value <= LONGEST_LEASE:
            raise ConfigurationError(f"pubsub: lease must be {shortest:g} s to {LONGEST_LEASE:g} s, not {value:g} s")
        return float(round(value))

    def __str__(self) -> str:
        endpoint, _ = self.place()
        return f"Pub/Sub project {self.project}" + (f" at {endpoint}" if endpoint else "")
