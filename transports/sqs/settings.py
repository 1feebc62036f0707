"""Which account, region and endpoint to use, and how: read from a URL, or given as typed options."""

from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlsplit

from pump.duration import Duration
from pump.errors import ConfigurationError
from pump.transport_kit.settings import Options, TransportURL, finite_seconds

FORM: Final = "sqs://region?option=value, such as sqs://eu-central-1, or sqs:// for the region of the environment"
ACCOUNT_OPTIONS: Final[Options] = {
    **dict.fromkeys(("endpoint", "profile", "ca_file"), str),
    "timeout": float,
}
"""The options of a URL for the account."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """Where the queues are. boto3 finds everything that is not given here as usual, above all the credentials."""

    region: str | None = None
    endpoint: str | None = None
    """An address other than Amazon's own, such as http://localhost:4566."""
    profile: str | None = None
    """A profile of the shared configuration files."""
    ca_file: str | None = None
    """The authorities to trust; by default those that boto3 trusts."""
    timeout: Duration = 5.0
    """Seconds to wait for a connection and for an answer, in addition to the time that the broker was asked to wait."""

    def __post_init__(self) -> None:
        finite_seconds("sqs", "timeout", self.timeout)
        if self.endpoint is not None:
            _check_endpoint(self.endpoint)

    @classmethod
    def from_url(cls, url: TransportURL) -> Self:
        """The account that a URL describes."""
        if url.user is not None or url.password is not None:
            raise ConfigurationError(
                "sqs:// URLs have no user or password: credentials come from the environment, a profile or a role"
            )
        if url.port is not None or url.path:
            raise url.error("only a region may stand between // and ?")
        given: dict[str, Any] = {"region": url.host or None}
        given |= {name: value for name, value in url.options.items() if name in ACCOUNT_OPTIONS}
        return cls(**given)

    def __str__(self) -> str:
        return f"SQS at {self.endpoint or self.region or 'the default region'}"


def _check_endpoint(endpoint: str) -> None:
    """ConfigurationError, which does not show it, as it may contain a password."""
    try:
        parts = urlsplit(endpoint)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
        parts = urlsplit("")
    if not good:
        raise ConfigurationError("sqs: endpoint must be a URL such as http://localhost:4566")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("sqs: endpoint must not have a user or a password: requests are signed instead")
