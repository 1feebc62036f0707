"""The URLs of requests: the parts of a path, and the query parameters."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from pump.queue import limits
from pump.queue.errors import BadRequest
from pump.queue.vocabulary import DEFAULT_GROUP, Filter, PopRequest, State
from pump.queue.wire.json_body import read_members
from pump.queue.wire.times import A_TIME, Time

LONGEST_WAIT_SECONDS: Final = 3600.0
MOST_LISTED: Final = 1000

Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**53)]
Query = TypeVar("Query", bound=Struct)
Row = TypeVar("Row")

_MOST_FIELDS: Final = 50
_WRONG: Final[Mapping[str, str]] = {
    "status": f"status must be one of {', '.join(State)}",
}


class PopQuery(Struct, rename="camel"):
    """`GET /api/v1/pop/…`."""

    batch: Count = 1
    wait: bool = False
    timeout: Number = 30_000
    auto_ack: bool = False
    consumer_group: str = DEFAULT_GROUP
    subscription_mode: str = "all"
    """`new` and `new-only` mean new; any other value means all, as in the original."""
    subscription_from: str | None = None
    partitions: Count = 1

    def pop_request(self, queue: str, partition: str | None, *, create_group: bool) -> PopRequest:
        """The request for the engine."""
        return PopRequest(
            queue=queue,
            partition=partition,
            group=self.consumer_group,
            limit=min(self.batch, limits.MOST_POPPED),
            partitions=min(self.partitions, limits.MOST_POPPED),
            auto_ack=self.auto_ack,
            subscribe_from=self._start(),
            create_group=create_group,
        )

    def wait_seconds(self) -> float:
        """How long the consumer is willing to wait; 0 if it is not."""
        return min(self.timeout / 1000, LONGEST_WAIT_SECONDS) if self.wait else 0.0

    def _start(self) -> float | str:
        if self.subscription_from is None:
            return "new" if self.subscription_mode in {"new", "new-only"} else "all"
        if self.subscription_from == "now":
            return "new"
        try:
            return Time.read(self.subscription_from)
        except ValueError:
            raise BadRequest(f"subscriptionFrom must be {A_TIME}") from None


class PageQuery(Struct, rename="camel"):
    """A page of a list."""

    limit: Number = 100
    offset: Number = 0

    def page(self) -> tuple[int, int]:
        """How many rows to list at most, and how many to skip."""
        return min(self.limit, MOST_LISTED), self.offset

    def part(self, rows: Sequence[Row]) -> Sequence[Row]:
        """The rows of this page."""
        most, first = self.page()
        return rows[first : first + most]


class QueuesQuery(PageQuery):
    """`GET …/resources/queues`."""

    limit: Number = MOST_LISTED
    search: str = ""


class NamesQuery(PageQuery):
    """A page of names or groups."""

    limit: Number = MOST_LISTED


class QueueQuery(PageQuery):
    """A page of items of one queue or of all queues."""

    queue: str | None = None


class DeadLettersQuery(QueueQuery):
    """A page of dead letters."""

    partition: str | None = None
    group: str | None = field(name="consumerGroup", default=None)
    state: State | None = field(name="status", default=None)
    since: Time | None = field(name="from", default=None)
    until: Time | None = field(name="to", default=None)

    def filter(self, queue: str | None = None) -> Filter:
        """The filter for the engine; a queue in the path replaces the one in the query."""
        return Filter(**{**asdict(self), "limit": self.page()[0], "queue": queue or self.queue})


class MessagesQuery(DeadLettersQuery):
    """A page of messages."""

    limit: Number = 200


class ClearQuery(Struct):
    """`DELETE …/clear`."""

    partition: str | None = None


class LaggingQuery(NamesQuery):
    """`GET …/consumer-groups/lagging`."""

    min_lag_seconds: Number = 3600


class DeleteGroupQuery(Struct, rename="camel"):
    """`DELETE …/consumer-groups/…`."""

    delete_metadata: bool = True


def read_query(text: bytes, kind: type[Query]) -> Query:
    """Read the query parameters; one that is given without a value counts as absent."""
    try:
        pairs = parse_qsl(text.decode(), errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError:  # a UnicodeDecodeError is one
        raise BadRequest("the query is not UTF-8, or has too many fields") from None
    for name, value in pairs:
        limits.check_text(name[:40], value)
    return read_members(dict(pairs), kind, _WRONG)


def path_part(text: str) -> str:
    """One part of a path, decoded."""
    try:
        decoded = unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8") from None
    limits.check_text("the path", decoded)
    return decoded
