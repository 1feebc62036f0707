"""The transports on SQS: on standard queues, and on FIFO queues."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Final, Self

from pump.capabilities import Capabilities
from pump.clock import Clock, SystemClock
from pump.duration import Duration
from pump.errors import ConfigurationError
from pump.subscription import Publication, Subscription
from pump.transport_kit.preparation import in_turn
from pump.transport_kit.protocol import new_generation
from pump.transport_kit.settings import Options, finite_seconds, read_url
from pump.transports.sqs.client import SqsClients
from pump.transports.sqs.consumer import SqsConsumer
from pump.transports.sqs.producer import SqsProducer
from pump.transports.sqs.queues import SqsQueues
from pump.transports.sqs.settings import ACCOUNT_OPTIONS, FORM, Account

LEASE_SECONDS: Final = 30.0
LONGEST_LEASE_SECONDS: Final = 43_200.0
POLL_SECONDS: Final = 1.0
LONGEST_POLL_SECONDS: Final = 20.0
LARGEST_MESSAGE: Final = 2**20
"""The most bytes of a message, body and attributes together."""
LARGEST_BODY: Final = 2**18
LARGEST_HEADERS: Final = 2**15
OPTIONS: Final[Options] = {
    **ACCOUNT_OPTIONS,
    **dict.fromkeys(("lease", "poll"), float),
    **dict.fromkeys(("largest_body", "largest_message"), int),
}


class SqsTransport:
    """Standard queues. Making one opens no connection."""

    capabilities: Capabilities = Capabilities(
        system="aws_sqs",
        nack="releases",
        nack_keeps_place=False,  # a standard queue has no order
        blocks="nothing",
        requeue="same",
        counts_deliveries=True,
        carries_attempts=False,
        durable=True,
        leases=True,
        delayed_publish=True,
        default_dead_letter="<channel>-dead",
        largest_body=LARGEST_BODY,
        largest_headers=LARGEST_HEADERS,
    )
    fifo: ClassVar[bool] = False
    schemes: ClassVar[tuple[str, ...]] = ("sqs",)

    def __init__(
        self,
        account: Account | None = None,
        *,
        lease: Duration = LEASE_SECONDS,
        poll: Duration = POLL_SECONDS,
        largest_body: int = LARGEST_BODY,
        largest_message: int = LARGEST_MESSAGE,
        clock: Clock | None = None,
    ) -> None:
        self.account: Final = Account() if account is None else account
        self.lease: Final = finite_seconds("sqs", "lease", lease)
        if self.lease > LONGEST_LEASE_SECONDS:
            raise ConfigurationError(f"sqs: lease must be at most {LONGEST_LEASE_SECONDS:g} s, not {lease}")
        self.poll: Final = 0.0 if poll == 0 else finite_seconds("sqs", "poll", poll)
        if self.poll > LONGEST_POLL_SECONDS:
            raise ConfigurationError(f"sqs: poll must be at most {LONGEST_POLL_SECONDS:g} s, not {poll}")
        if not 0 < largest_body <= largest_message <= LARGEST_MESSAGE:
            raise ConfigurationError(
                f"sqs: largest_body must be 1 to largest_message, and that at most {LARGEST_MESSAGE} bytes, not "
                f"{largest_body} and {largest_message}"
            )
        self.largest_message: Final = largest_message
        self.capabilities = replace(type(self).capabilities, largest_body=largest_body)
        self.clock: Final = SystemClock() if clock is None else clock
        self.generation: Final = new_generation()
        """The same for all consumers: a receipt outlives its connection."""
        self.clients: Final = SqsClients(self.account)
        self.queues: Final = SqsQueues(
            self.clients, fifo=self.fifo, default_dead_letter=self.capabilities.default_dead_letter
        )
        self._lock: Final = threading.Lock()
        self._unsent: Final[dict[str, dict[str, str]]] = {}

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of sqs://region?option=value; the constructor and Account have the options."""
        read = read_url(url, FORM, OPTIONS, schemes=cls.schemes)
        own = {name: value for name, value in read.options.items() if name not in ACCOUNT_OPTIONS}
        return cls(Account.from_url(read), **own)

    @property
    def place(self) -> str:
        """The endpoint or region."""
        return str(self.account)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.account}>"

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate what each one needs; SetupError names what is missing."""
        for subscription in subscriptions:
            self.queues.destinations(subscription)  # a wrong name is found before anything is created
        for each in in_turn(subscriptions, publications):
            if isinstance(each, Subscription):
                self.queues.prepare_channel(each)
            else:
                self.queues.prepare_topic(each)

    def consumer(self, subscription: Subscription) -> SqsConsumer:
        """Open a consumer of the subscription's channel, created or validated as the subscription says."""
        return SqsConsumer(self, subscription)

    def producer(self) -> SqsProducer:
        """A producer, which connects when it first sends."""
        return SqsProducer(self)

    def leave_unsent(self, url: str, acknowledgements: dict[str, str]) -> None:
        """Keep acknowledgements that a consumer could not send, for the next one of its queue."""
        with self._lock:
            self._unsent.setdefault(url, {}).update(acknowledgements)

    def take_unsent(self, url: str) -> dict[str, str]:
        """Remove and return the acknowledgements that a consumer of the queue could not send."""
        with self._lock:
            return self._unsent.pop(url, {})


class SqsFifoTransport(SqsTransport):
    """FIFO queues: the order of a key is kept, over nacks, deferrals and restarts too."""

    capabilities: Capabilities = replace(
        SqsTransport.capabilities,
        nack_keeps_place=True,
        blocks="partition",
        requeue="hold",
        keeps_held_attempts=False,
        delayed_publish=False,
        shards_by_key=True,
        longest_delay=None,
    )
    fifo = True
    schemes: ClassVar[tuple[str, ...]] = ("sqs+fifo",)
