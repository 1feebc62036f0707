"""Where the broker is and as whom we come: an amqp:// URL, or typed options. The password is never shown."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import pika

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError, SetupError

QueueType: TypeAlias = Literal["quorum", "classic"]

PORT: Final = 5672
TLS_PORT: Final = 5671
HEARTBEAT: Final = 10.0
TIMEOUT: Final = 10.0


@dataclass(frozen=True, kw_only=True)
class RabbitMQSettings:
    """One RabbitMQ, a virtual host on it, and how to talk to it. Checked when made."""

    host: str = "localhost"
    port: int | None = None
    """By default 5672, or 5671 with TLS."""
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    virtual_host: str = "/"
    tls: bool = False
    ca_file: str | None = None
    """Whom to trust; by default whom the system trusts."""
    cert_file: str | None = None
    """Our own certificate, where the broker asks for one."""
    key_file: str | None = None
    server_name: str | None = None
    """The name in the broker's certificate, where it is not the host."""
    heartbeat: Duration = HEARTBEAT
    """A peer that was silent for so long, in seconds, is taken for dead; 0 is never."""
    timeout: Duration = TIMEOUT
    """How long an answer of the broker is waited for, in seconds."""
    connection_name: str = ""
    """How the broker's operator sees us; by default by channel."""
    queue_type: QueueType = "quorum"
    """Of queues that are made here, and taken to be that of others."""
    prefetch: int | None = None
    """The most unsettled messages of one consumer; by default as many as its buffer asks for."""
    broker_limit: int | None = None
    """Deliveries after which the broker gives up a message of a queue that others made; by default 20 if quorum."""

    def __post_init__(self) -> None:
        if self.queue_type not in {"quorum", "classic"}:
            raise ConfigurationError(f"rabbitmq: queue_type is 'quorum' or 'classic', not {self.queue_type!r}")
        for name in ("prefetch", "broker_limit", "port"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigurationError(f"rabbitmq: {name} must be at least 1, not {value}")
        if not seconds(self.timeout) > 0 or not seconds(self.heartbeat) >= 0:
            raise ConfigurationError("rabbitmq: timeout must be longer than 0 s, and heartbeat not less than 0 s")
        if not self.tls and (self.ca_file or self.cert_file or self.key_file or self.server_name):
            raise ConfigurationError("rabbitmq: ca_file, cert_file, key_file and server_name need amqps://")

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The settings that an amqp:// or amqps:// URL says; a ConfigurationError never shows the URL."""
        try:
            parts = urlsplit(url)
            options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            return cls(**_place(parts), **_options(options))
        except ConfigurationError:
            raise
        except ValueError as error:
            raise ConfigurationError(f"this amqp:// URL makes no sense: {_first_words(error)}") from None

    def __str__(self) -> str:
        return f"RabbitMQ at {self.host}:{self.port_or_default}, virtual host {self.virtual_host!r}"

    @property
    def port_or_default(self) -> int:
        """The port to connect to."""
        return self.port or (TLS_PORT if self.tls else PORT)

    def parameters(self, name: str) -> pika.ConnectionParameters:
        """What pika wants to know; SetupError if a certificate cannot be read."""
        timeout = seconds(self.timeout)
        return pika.ConnectionParameters(
            host=self.host,
            port=self.port_or_default,
            virtual_host=self.virtual_host,
            credentials=pika.PlainCredentials(self.user, self.password, erase_on_connect=False),
            heartbeat=ceil(seconds(self.heartbeat)),
            blocked_connection_timeout=None,
            connection_attempts=1,
            socket_timeout=timeout,
            stack_timeout=timeout,
            client_properties={"connection_name": self.connection_name or name, "product": "message-pump"},
            ssl_options=pika.SSLOptions(self._context(), self.server_name or self.host) if self.tls else None,
        )

    def _context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.ca_file)
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file)
        except OSError as error:
            files = ", ".join(file for file in (self.ca_file, self.cert_file, self.key_file) if file)
            raise SetupError(f"rabbitmq: a certificate cannot be used ({files}): {error}") from error
        return context


def _place(parts: SplitResult) -> Mapping[str, Any]:
    if parts.scheme not in {"amqp", "amqps"} or parts.fragment:
        raise ValueError("it begins with amqp:// or amqps://, and has no #")
    place: dict[str, Any] = {"tls": parts.scheme == "amqps", "port": _port(parts)}
    if parts.hostname:
        place["host"] = unquote(parts.hostname)
    if parts.username is not None:
        place["user"] = unquote(parts.username)
    if parts.password is not None:
        place["password"] = unquote(parts.password)
    if parts.path not in {"", "/"}:
        place["virtual_host"] = unquote(parts.path[1:])
    return place


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError:  # its words show the URL's
        raise ValueError("its port is no number, or its password has a / that is not written as %2F") from None


_READS: Final[Mapping[str, Callable[[str], Any]]] = {
    "heartbeat": float,
    "timeout": float,
    "prefetch": int,
    "broker_limit": int,
    **dict.fromkeys(("connection_name", "queue_type", "ca_file", "cert_file", "key_file", "server_name"), str),
}


def _options(given: Mapping[str, str]) -> Mapping[str, Any]:
    unknown = sorted(set(given) - set(_READS))
    if unknown:
        raise ConfigurationError(f"amqp:// URLs take {', '.join(_READS)}, and not {', '.join(unknown)}")
    return {name: _read(name, text) for name, text in given.items()}


def _read(name: str, text: str) -> Any:  # noqa: ANN401 - as the option's type is
    try:
        return _READS[name](text)
    except ValueError:
        raise ConfigurationError(f"amqp:// URLs: {name} cannot be {text!r}") from None


def _first_words(error: ValueError) -> str:
    """What urllib says of it, without the URL that it may quote."""
    return str(error).split(":")[0]
