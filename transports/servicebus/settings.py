"""Which namespace, and how to log in: by URL, connection string or credential. Keys are never shown."""

from dataclasses import dataclass, field, fields
from typing import Any, Final, Self

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError
from pump.transport_kit.settings import Options, at_least, finite_seconds, read_url, yes_or_no

FORM: Final = "servicebus://key_name:key@namespace.servicebus.windows.net/?option=value"
LARGEST_BODY: Final = 192 * 1024
"""What fits into a message of the Standard tier, 256 KiB, beside headers and the provenance of a dead letter."""
LARGEST_HEADERS: Final = 32 * 1024
EMULATOR_MANAGEMENT_PORT: Final = 5300
SHORTEST_LOCK: Final = 0.2
LONGEST_LOCK: Final = 300.0

_OPTIONS: Final[Options] = {
    **dict.fromkeys(("lease", "timeout", "session_idle"), float),
    **dict.fromkeys(("max_delivery_count", "largest_body", "management_port"), int),
    **dict.fromkeys(("emulator", "duplicate_detection"), yes_or_no),
}


@dataclass(frozen=True, kw_only=True)
class ServiceBusSettings:
    """One namespace, and how to talk to it. Checked when made."""

    namespace: str
    """Such as `shop.servicebus.windows.net`; of the emulator, with its port."""
    key_name: str = ""
    """The name of a shared access policy. Without one, `credential` logs in."""
    key: str = field(default="", repr=False)
    credential: object = field(default=None, repr=False)
    """A credential with a blocking `get_token`, such as those of the package azure-identity."""
    lease: Duration = 60.0
    """The lock duration of queues that are created; Azure allows 5 s to 5 minutes."""
    max_delivery_count: int = 2000
    """The max delivery count of queues that are created; Azure allows at most 2000."""
    duplicate_detection: bool = False
    """Whether queues and topics that are created drop messages whose id they have seen."""
    largest_body: int = LARGEST_BODY
    """In bytes. With the Premium tier it may be larger."""
    session_idle: Duration = 1.0
    """For how many seconds a session without messages is kept, in case that more comes. Only for sessions."""
    timeout: Duration = 10.0
    """How many seconds to wait for an answer."""
    emulator: bool = False
    """Whether this is an emulator, which is reached without TLS."""
    management_port: int | None = None
    """The port of an emulator's management; by default 5300."""

    def __post_init__(self) -> None:
        if not self.namespace or "/" in self.namespace:
            raise ConfigurationError("servicebus: namespace must be a host, such as shop.servicebus.windows.net")
        if bool(self.key_name) != bool(self.key):
            raise ConfigurationError("servicebus: a key_name needs its key, and a key its key_name")
        if not self.key and self.credential is None:
            raise ConfigurationError("servicebus: give key_name and key, or a credential")
        if self.credential is not None and not callable(getattr(self.credential, "get_token", None)):
            raise ConfigurationError("servicebus: a credential must have a method get_token")
        for name in ("timeout", "session_idle"):
            finite_seconds("servicebus", name, getattr(self, name))
        if not SHORTEST_LOCK <= seconds(self.lease) <= LONGEST_LOCK:
            raise ConfigurationError(f"servicebus: lease must be at most {LONGEST_LOCK:g} s, not {self.lease}")
        at_least("servicebus", "max_delivery_count", self.max_delivery_count, 1)
        at_least("servicebus", "largest_body", self.largest_body, 1)
        at_least("servicebus", "management_port", self.management_port, 1)

    @classmethod
    def from_url(cls, url: str, scheme: str = "servicebus") -> Self:
        """The settings of a URL of this scheme; a ConfigurationError never shows the URL."""
        parts = read_url(url, FORM, _OPTIONS, schemes=(scheme,))
        if parts.path:
            raise parts.error("it must not have a path")
        if not parts.host:
            raise parts.error("it has no host")
        if not parts.user or not parts.password:
            raise parts.error(
                "it has no key_name and key; for a login without a key give ServiceBusTransport a credential"
            )
        place = f"{parts.host}:{parts.port}" if parts.port else parts.host
        return cls(namespace=place, key_name=parts.user, key=parts.password, **parts.options)

    @classmethod
    def from_connection_string(cls, text: str, **options: Any) -> Self:  # noqa: ANN401 - the fields, checked
        """The settings of a connection string as the portal shows it; the options are this class's fields."""
        names = {name.strip().lower(): value for name, _, value in (part.partition("=") for part in text.split(";"))}
        known = {each.name for each in fields(cls)}
        unknown = sorted(set(options) - known)
        if unknown:
            raise ConfigurationError(f"servicebus: there is no option {', '.join(unknown)}")
        endpoint = names.get("endpoint", "").removeprefix("sb://").rstrip("/")
        if not endpoint or not names.get("sharedaccesskeyname") or not names.get("sharedaccesskey"):
            raise ConfigurationError(
                "servicebus: a connection string must have the form Endpoint=sb://…/;SharedAccessKeyName=…;SharedAccessKey=…"
            )
        if names.get("entitypath"):
            raise ConfigurationError(
                "servicebus: a connection string with EntityPath reaches only that entity: use the namespace's"
            )
        emulator = names.get("usedevelopmentemulator", "").lower() == "true"
        given = {"key_name": names["sharedaccesskeyname"], "key": names["sharedaccesskey"], "emulator": emulator}
        return cls(**{"namespace": endpoint, **given, **options})

    @property
    def host(self) -> str:
        """The namespace without a port."""
        return self.namespace.partition(":")[0]

    def connection_string(self, *, management: bool = False) -> str:
        """The login for the vendor's client; it must not be shown."""
        port = EMULATOR_MANAGEMENT_PORT if self.management_port is None else self.management_port
        place = f"{self.host}:{port}" if management and self.emulator else self.namespace
        ending = ";UseDevelopmentEmulator=true" if self.emulator else ""
        return f"Endpoint=sb://{place}/;SharedAccessKeyName={self.key_name};SharedAccessKey={self.key}{ending}"

    def __str__(self) -> str:
        return f"Service Bus at {self.namespace}"
