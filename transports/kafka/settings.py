"""Where a Kafka cluster is and how to talk to it: read from a URL, or given as typed options."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pump.duration import Duration
from pump.errors import ConfigurationError
from pump.transport_kit.settings import Options, TransportURL, finite_seconds, only_with_tls

FORM: Final = "kafka://user:password@host:port,host:port?option=value"
CLUSTER_OPTIONS: Final[Options] = {
    **dict.fromkeys(("ca_file", "cert_file", "key_file", "mechanism"), str),
    "timeout": float,
}
"""The options of a URL for the cluster, without the settings of the client."""
PORT: Final = 9092
OURS: Final = frozenset(
    {
        "bootstrap.servers",
        "metadata.broker.list",
        "group.id",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "enable.idempotence",
        "acks",
        "request.required.acks",
        "allow.auto.create.topics",
        "auto.offset.reset",
        "message.timeout.ms",
        "delivery.timeout.ms",
    }
)
"""Settings of the client that the transport needs in order to lose nothing."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """One Kafka cluster, and how to talk to it. Checked when made."""

    servers: tuple[str, ...] = ("localhost:9092",)
    """Some of its brokers, as host:port; they tell the client about the others."""
    user: str = ""
    password: str = field(default="", repr=False)
    mechanism: str = "PLAIN"
    """The SASL mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    tls: bool = False
    ca_file: str | None = None
    """The authorities to trust; by default those that this machine trusts."""
    cert_file: str | None = None
    """Our own certificate, where the cluster asks for one."""
    key_file: str | None = None
    timeout: Duration = 10.0
    """Seconds to wait for an answer, or until a message is confirmed."""
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of the client library itself, under the names that librdkafka gives them."""

    def __post_init__(self) -> None:
        if not self.servers or not all(self.servers):
            raise ConfigurationError("kafka: servers needs at least one host:port")
        finite_seconds("kafka", "timeout", self.timeout)
        if not self.tls:
            files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
            only_with_tls("kafka", "kafka+tls", files)
        ours = sorted(OURS & set(self.config))
        if ours:
            raise ConfigurationError(f"kafka: {', '.join(ours)} cannot be set: the transport depends on it")

    @classmethod
    def from_url(cls, url: TransportURL) -> Self:
        """The cluster that a URL describes."""
        hosts = [(host, PORT if port is None else port) for host, port in url.hosts()]
        if url.path:
            raise url.error("it must not have a path")
        unknown = sorted(name for name in url.others if "." not in name)
        if unknown:
            raise url.error(f"it does not know {', '.join(unknown)}; settings of the client have a dot in their names")
        given: dict[str, Any] = {"user": url.user, "password": url.password}
        if hosts:
            given["servers"] = tuple(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts)
        given |= {name: value for name, value in url.options.items() if name in CLUSTER_OPTIONS}
        given = {name: value for name, value in given.items() if value is not None}
        return cls(tls=url.scheme == "kafka+tls", config=dict(url.others), **given)

    def settings(self) -> dict[str, Any]:
        """The settings that every client of the cluster gets."""
        safety = "sasl_" if self.user else ""
        settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.servers),
            "security.protocol": safety + ("ssl" if self.tls else "plaintext"),
            "log_level": 0,  # the callback for errors reports what happens, and logs it once
            "client.id": "message-pump",
            "socket.keepalive.enable": True,
            "socket.connection.setup.timeout.ms": 5000,
            "socket.timeout.ms": 10_000,
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 1000,
        }
        if self.user:
            settings |= {
                "sasl.mechanism": self.mechanism,
                "sasl.username": self.user,
                "sasl.password": self.password,
            }
        files = {
            "ssl.ca.location": self.ca_file,
            "ssl.certificate.location": self.cert_file,
            "ssl.key.location": self.key_file,
        }
        return {**settings, **{name: file for name, file in files.items() if file}, **self.config}

    def __str__(self) -> str:
        return f"Kafka at {','.join(self.servers)}"
