"""Turns errors of the client library into ours, and logs outages. No other module reads the library's error codes."""

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from pump.clock import Clock
from pump.errors import ConfigurationError, PublishError, PumpError, SetupError, TransportError
from pump.telemetry import log

PROBE_SECONDS: Final = 1.0
"""How often to look whether an outage is over."""

_REFUSALS: Final = frozenset(
    {
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - the library's public names of its own errors begin so
        KafkaError._SSL,  # noqa: SLF001 - the same
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
    }
)
"""Errors that last until somebody changes something."""
_NEVER_STORED: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - as above
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - as above
        KafkaError._INVALID_ARG,  # noqa: SLF001 - as above
    }
)
"""Errors with which the same record is not stored, until somebody changes something."""
_TOO_LARGE: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
    }
)
"""The record itself is refused; a smaller one may be taken."""
_MISSING: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - as above
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
    }
)
_OUTAGES: Final = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 - as above
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - as above
        KafkaError._SSL,  # noqa: SLF001 - as above
        KafkaError.SASL_AUTHENTICATION_FAILED,
    }
)


def kafka_error(error: BaseException) -> KafkaError | None:
    """The client library's own error; None if this is another exception."""
    first = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return first if isinstance(first, KafkaError) else None


def as_ours(error: BaseException | KafkaError, doing: str) -> PumpError:
    """The error as a SetupError, if somebody has to change something first; else as a TransportError."""
    told = error if isinstance(error, KafkaError) else kafka_error(error)
    text = f"kafka: {doing}: {told.str() if told is not None else error}"
    failure = SetupError(text) if told is not None and told.code() in _REFUSALS else TransportError(text)
    failure.__cause__ = error if isinstance(error, BaseException) else KafkaException(error)
    return failure


def not_stored(error: KafkaError, topic: str) -> PublishError:
    """The error for a message that was not confirmed."""
    never = error.code() in _NEVER_STORED
    known = "it was not stored" if never else "it was not confirmed"
    text = f"kafka: {topic}: {known}: {error.str()}"
    failure = PublishError(text, sent=False if never else None, retriable=not never)
    failure.__cause__ = KafkaException(error)
    return failure


def is_too_large(error: PumpError) -> bool:
    """Whether a smaller record could be stored where this one was not."""
    told = None if error.__cause__ is None else kafka_error(error.__cause__)
    return told is not None and told.code() in _TOO_LARGE


def ends_consuming(error: KafkaError) -> bool:
    """Whether the client cannot recover, so that a new one must be made."""
    return error.fatal() or error.code() in _MISSING


def made(make: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:  # noqa: ANN401 - a client of any kind
    """A client; ConfigurationError if it does not know a setting, or its value."""
    try:
        return make(settings)
    except (KafkaException, ValueError, TypeError) as error:
        told = kafka_error(error)
        raise ConfigurationError(f"kafka: {told.str() if told is not None else error}") from None


class Outage:
    """Logs one line when the cluster cannot be reached, and one when it can be again. For one thread."""

    def __init__(self, who: str, clock: Clock) -> None:
        self._who: Final = who
        self._clock: Final = clock
        self._began: float | None = None
        self._probe_at = 0.0

    def note(self, error: KafkaError) -> None:
        """Note an error that the client library reports; most of them end by themselves."""
        if error.code() in _OUTAGES and self._began is None:
            self._began = now = self._clock.monotonic()
            self._probe_at = now + PROBE_SECONDS
            log.warning("kafka: %s: the cluster cannot be reached: %s", self._who, error.str())

    def should_probe(self) -> bool:
        """Whether it is time to look if the outage is over."""
        now = self._clock.monotonic()
        if self._began is None or now < self._probe_at:
            return False
        self._probe_at = now + PROBE_SECONDS
        return True

    def is_over(self) -> None:
        """The cluster has answered."""
        if self._began is not None:
            seconds = self._clock.monotonic() - self._began
            self._began = None
            log.warning("kafka: %s: the cluster can be reached again, after %.1f s", self._who, seconds)
