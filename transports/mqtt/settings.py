"""Where an MQTT broker is and how to talk to it: read from a URL, or given as typed options."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self, TypeAlias

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.transport_kit.settings import Options, TransportURL, finite_seconds, one_of, only_with_tls

Version: TypeAlias = Literal["5", "3.1.1"]

FORM: Final = "mqtt://user:password@host:port?option=value"
PORT: Final = 1883
TLS_PORT: Final = 8883
SERVER_OPTIONS: Final[Options] = {
    **dict.fromkeys(("version", "ca_file", "cert_file", "key_file"), str),
    "timeout": float,
    "keepalive": int,
    "session_expiry": int,
    "largest_packet": int,
}
"""The options of a URL for the broker."""
LONGEST_KEEPALIVE: Final = 65_535
FOR_EVER: Final = 0xFFFFFFFF
"""The session expiry for sessions that never expire."""


@dataclass(frozen=True, kw_only=True)
class Will:
    """The message that the broker publishes, with QoS 1, when a consumer's connection breaks."""

    topic: str
    payload: bytes = b""


@dataclass(frozen=True, kw_only=True)
class MqttServer:
    """One MQTT broker, and how to talk to it. Checked when made."""

    host: str = "localhost"
    port: int = 0
    """0 means 1883, or 8883 with TLS."""
    user: str = ""
    password: str = field(default="", repr=False)
    version: Version = "5"
    """The version of MQTT: 5, or 3.1.1 for older brokers."""
    tls: bool = False
    ca_file: str | None = None
    """The authorities to trust; by default those that this machine trusts."""
    cert_file: str | None = None
    """Our own certificate, where the broker asks for one."""
    key_file: str | None = None
    timeout: Duration = 5.0
    """Seconds to wait for an answer."""
    keepalive: int = 5
    """After this many seconds of silence the broker is asked for an answer; it has as many seconds to give it."""
    session_expiry: int = FOR_EVER
    """How many seconds the broker keeps a consumer's session, with its messages, after the consumer is gone."""
    largest_packet: int | None = None
    """The largest packet that the broker takes, in bytes. A broker of MQTT 5 tells it, one of 3.1.1 does not."""

    def __post_init__(self) -> None:
        one_of("mqtt", "version", self.version, ("5", "3.1.1"))
        if not 0 <= self.port <= 65_535:  # noqa: PLR2004 - the highest port there is
            raise ConfigurationError(f"mqtt: port must be 0 to 65535, not {self.port}")
        finite_seconds("mqtt", "timeout", self.timeout)
        if not 1 <= self.keepalive <= LONGEST_KEEPALIVE:
            raise ConfigurationError(f"mqtt: keepalive must be 1 to {LONGEST_KEEPALIVE} s, not {self.keepalive}")
        if not 0 < self.session_expiry <= FOR_EVER:
            raise ConfigurationError(f"mqtt: session_expiry must be 1 to {FOR_EVER} s, not {self.session_expiry}")
        if self.password and not self.user:
            raise ConfigurationError("mqtt: a password needs a user")
        if not self.tls:
            files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
            only_with_tls("mqtt", "mqtts", files)

    @classmethod
    def from_url(cls, url: TransportURL) -> Self:
        """The broker that a URL describes."""
        if url.path:
            raise url.error("it must not have a path")
        given: dict[str, Any] = {"host": url.host, "port": url.port, "user": url.user, "password": url.password}
        given |= {name: value for name, value in url.options.items() if name in SERVER_OPTIONS}
        given = {name: value for name, value in given.items() if value is not None}
        return cls(tls=url.scheme == "mqtts", **given)

    @property
    def place(self) -> tuple[str, int]:
        """Host and port; a default port is filled in."""
        return self.host, self.port or (TLS_PORT if self.tls else PORT)

    @property
    def seconds(self) -> float:
        """How long to wait for an answer."""
        return seconds(self.timeout)

    def __str__(self) -> str:
        host, port = self.place
        return f"MQTT broker at {host}:{port}"
