"""Where the broker is and how to log in: an amqp:// URL, or typed options. The password is never shown."""

from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Literal, Self, TypeAlias, get_args

import pika

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.transport_kit.settings import Options, at_least, finite_seconds, one_of, only_with_tls, read_url, tls_context

QueueType: TypeAlias = Literal["quorum", "classic"]

_FORM: Final = "amqp://user:password@host:port/virtual_host?option=value"
_OPTIONS: Final[Options] = {
    **dict.fromkeys(("heartbeat", "timeout"), float),
    **dict.fromkeys(("prefetch", "broker_limit"), int),
    **dict.fromkeys(("connection_name", "queue_type", "management"), str),
    **dict.fromkeys(("ca_file", "cert_file", "key_file", "server_name"), str),
}


@dataclass(frozen=True, kw_only=True)
class RabbitMQSettings:
    """A RabbitMQ broker, a virtual host on it, and how to talk to it. The values are checked when it is made."""

    host: str = "localhost"
    port: int | None = None
    """By default 5672, or 5671 with TLS."""
    user: str = "guest"
    password: str = field(default="guest", repr=False)
    virtual_host: str = "/"
    tls: bool = False
    ca_file: str | None = None
    """A file with the certificates of trusted authorities; by default those that the system trusts."""
    cert_file: str | None = None
    """The client's own certificate, if the broker asks for one."""
    key_file: str | None = None
    server_name: str | None = None
    """The name in the broker's certificate, if it is not the host."""
    heartbeat: Duration = 10.0
    """A broker that is silent for longer than this many seconds is treated as lost; 0: never."""
    timeout: Duration = 10.0
    """How many seconds to wait for an answer from the broker."""
    connection_name: str = ""
    """The name of the connections in the broker's management; by default that of their channel."""
    queue_type: QueueType = "quorum"
    """The type of the queues that a pump makes; it assumes this type for the queues of others too."""
    prefetch: int | None = None
    """The most unsettled messages of one consumer; by default as many as its subscription's buffer asks for."""
    broker_limit: int | None = None
    """The delivery limit that a policy sets for all queues; by default none for ours, and 20 for those of others."""
    management: str = ""
    """The address of the management API, such as `http://localhost:15672`. Policies are read there, as this user."""

    def __post_init__(self) -> None:
        one_of("rabbitmq", "queue_type", self.queue_type, get_args(QueueType))
        for name in ("prefetch", "broker_limit", "port"):
            at_least("rabbitmq", name, getattr(self, name), 1)
        at_least("rabbitmq", "heartbeat", seconds(self.heartbeat), 0)
        finite_seconds("rabbitmq", "timeout", self.timeout)
        if self.management and not self.management.startswith(("http://", "https://")):
            raise ConfigurationError("rabbitmq: management must begin with http:// or https://")
        if "@" in self.management:
            raise ConfigurationError(
                "rabbitmq: management must not have a user and password: those of the broker are used"
            )
        if not self.tls:
            names = ("ca_file", "cert_file", "key_file", "server_name")
            only_with_tls("rabbitmq", "amqps", {name: getattr(self, name) for name in names})

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The settings of an amqp:// or amqps:// URL. A ConfigurationError never shows the URL."""
        parts = read_url(url, _FORM, _OPTIONS, schemes=("amqp", "amqps"))
        given: dict[str, Any] = {"host": parts.host, "user": parts.user, "password": parts.password}
        given |= {"virtual_host": parts.path or None, "port": parts.port}
        given = {name: value for name, value in given.items() if value is not None}
        return cls(tls=parts.scheme == "amqps", **given, **parts.options)

    def __str__(self) -> str:
        return f"RabbitMQ at {self.host}:{self.port_or_default}, virtual host {self.virtual_host!r}"

    @property
    def port_or_default(self) -> int:
        """The port to connect to."""
        return self.port or (5671 if self.tls else 5672)

    def parameters(self, name: str) -> pika.ConnectionParameters:
        """The settings as pika's parameters; ConfigurationError if a certificate cannot be read."""
        timeout = seconds(self.timeout)
        ssl_options = None
        if self.tls:
            context = tls_context("rabbitmq", ca_file=self.ca_file, cert_file=self.cert_file, key_file=self.key_file)
            ssl_options = pika.SSLOptions(context, self.server_name or self.host)
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
            ssl_options=ssl_options,
        )
