"""Looks for the topics of a channel, and creates them."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined, unused-ignore]

from pump.clock import Signal
from pump.errors import ConfigurationError, PumpError, SetupError, TransportError
from pump.subscription import Missing
from pump.transport_kit.destinations import Destinations
from pump.transports.kafka.client import as_ours, kafka_error, made

if TYPE_CHECKING:
    from pump.transports.kafka.transport import KafkaTransport

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
LOOK_SECONDS: Final = 0.05
ADVICE: Final = "; if the brokers create topics on first use, use the option create=on-use"


def checked(destinations: Destinations) -> Destinations:
    """The destinations, if all names can be names of topics; else ConfigurationError."""
    for name in (destinations.topic, destinations.channel, *destinations.dead_letters):
        check_name(name)
    return destinations


def check_name(name: str) -> None:
    """ConfigurationError if this cannot be the name of a topic."""
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        raise ConfigurationError(
            f"kafka: {name!r} cannot be the name of a topic: it may have letters, digits, '.', '_' and '-', up to 249"
        )


class RetryTopics:
    """The topics where copies wait that come again later: the channel has one for each of some delays.

    A copy waits in the topic of the shortest delay that is not shorter than its own, so none waits behind a copy with a
    much longer delay. A copy with a delay longer than all of them waits in the last topic several times.
    """

    def __init__(self, channel: str, delays: Sequence[float]) -> None:
        self._by_delay: Final = {delay: f"{channel}.retry-{delay:g}s" for delay in sorted(delays)}
        self.names: Final = tuple(self._by_delay.values())

    def place(self, delay: float) -> tuple[str, float]:
        """The topic for a delay, and how long to wait there."""
        for longest, name in self._by_delay.items():
            if delay <= longest:
                return name, delay
        longest = max(self._by_delay)
        return self._by_delay[longest], longest


class Topics:
    """Looks for topics and creates them, by a client of its own; used as a context manager."""

    def __init__(self, transport: "KafkaTransport") -> None:
        self._transport: Final = transport
        self._clock: Final = transport.clock
        self._errors: Final[list[KafkaError]] = []
        self._seconds: Final = transport.timeout
        settings = {**transport.cluster.settings(), "error_cb": self._errors.append}
        # A consumer, since another kind of client may create a topic by looking for it.
        self._looking: Final[Any] = made(
            Consumer, {**settings, "group.id": "message-pump", "allow.auto.create.topics": False}
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(KafkaException, RuntimeError):
            self._looking.close()

    def ensure(self, missing: Missing, names: Iterable[str], what: str) -> None:
        """Create topics that do not exist, or raise SetupError, as `missing` says."""
        absent = [name for name in dict.fromkeys(names) if missing != "assume" and not self.exists(name)]
        if absent and missing == "validate":
            raise SetupError(
                f"kafka: {what}: there is no topic {absent[0]!r}, and missing='validate' does not create it"
            )
        if absent:
            self._create(absent, what)

    def require(self, names: Iterable[str], what: str) -> None:
        """TransportError if a topic does not exist: it may be created later."""
        for name in names:
            if not self.exists(name):
                raise TransportError(f"kafka: {what}: there is no topic {name!r}")

    def exists(self, name: str) -> bool:
        """Whether there is a topic of that name."""
        topic = self._metadata(self._looking, name).topics.get(name)
        if topic is None or (topic.error is not None and topic.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
            return False
        if topic.error is not None and topic.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
            raise as_ours(topic.error, f"topic {name!r}")
        return bool(topic.partitions)

    def _metadata(self, client: Any, name: str) -> Any:  # noqa: ANN401 - the vendor's
        try:
            return client.list_topics(name, timeout=self._seconds)
        except KafkaException as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: KafkaException) -> PumpError:
        """The text of the error callback, which says more than that the time is over."""
        with suppress(KafkaException, RuntimeError):
            self._looking.poll(0)
        errors = [as_ours(each, str(self._transport.cluster)) for each in self._errors]
        refusals = [each for each in errors if isinstance(each, SetupError)]
        return next(iter(refusals or errors), None) or as_ours(error, str(self._transport.cluster))

    def _create(self, names: Sequence[str], what: str) -> None:
        admin = made(AdminClient, self._transport.cluster.settings())
        if self._transport.creates_on_use:
            for name in names:
                self._metadata(admin, name)
        else:
            self._ask_for(admin, names, what)
        deadline = self._clock.monotonic() + self._seconds
        for name in names:
            while not self.exists(name):
                if self._clock.monotonic() > deadline:
                    raise SetupError(
                        f"kafka: {what}: topic {name!r} was created, but the brokers do not show it in time"
                    )
                self._clock.wait(Signal(), LOOK_SECONDS)

    def _ask_for(self, admin: Any, names: Sequence[str], what: str) -> None:  # noqa: ANN401 - the vendor's
        wanted = [
            NewTopic(name, self._transport.partitions, self._transport.replicas, config={"cleanup.policy": "delete"})
            for name in names
        ]
        answers = admin.create_topics(wanted, request_timeout=self._seconds)
        for name, answer in answers.items():
            try:
                answer.result(self._seconds)
            except Exception as error:
                told = kafka_error(error)
                if told is not None and told.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue  # another process has created it meanwhile
                reason = told.str() if told is not None else error
                raise SetupError(f"kafka: {what}: topic {name!r} cannot be created: {reason}{ADVICE}") from error
