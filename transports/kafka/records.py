"""How messages are written as Kafka records and read back. Any bytes can be read as a message.

The key of a message is the record's key. What else is known of it travels in headers whose names begin with `pump-`;
the sender's own headers keep their names. A copy has the headers of the original as they are, whatever they are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pump.dead_letter import PROVENANCE, Rejection, provenance
from pump.message import ATTEMPTS_HEADER, NO_HEADERS, NO_RAW_HEADERS, Header, Message
from pump.transport_kit.dead_letters import MINIMAL, copy_headers, cut_letters
from pump.transport_kit.header_texts import is_count, kind_of, time_of

if TYPE_CHECKING:
    from pump.transports.kafka.partitions import AssignedPartition

RawHeaders: TypeAlias = Sequence[tuple[str, bytes | None]]

ID: Final = "pump-id"
TOPIC: Final = "pump-topic"
IDENTITY: Final = "pump-identity"
"""On a copy of a message: the identity of the original, which the copy keeps."""
DUE: Final = "pump-due"
"""On a copy that comes later: when it is due, in seconds since the epoch …"""
WAIT: Final = "pump-wait-until"
"""… and until when it stays in its retry topic, which may be earlier."""
ESCAPE: Final = "header:"
"""Stands before the name of a header that would otherwise be read as something else."""

_HEADER_NAMES: Final = {
    f"pump-{attribute.replace('_', '-')}": attribute
    for attribute in Header._fields
    if attribute not in {"key", "timestamp", "headers"}
}
"""The headers that are attributes of a Header, with the attributes' names."""
_TIME: Final = "pump-time"
_COPIES: Final = frozenset({IDENTITY, DUE, WAIT, ATTEMPTS_HEADER})
_RESERVED: Final = frozenset({*_HEADER_NAMES, _TIME, *_COPIES})
_CREATED: Final = 1
"""The timestamp type of a record whose sender set the timestamp."""


class KafkaRecord(NamedTuple):
    """What is stored in a topic."""

    topic: str
    key: bytes | None
    value: bytes
    headers: RawHeaders


class KafkaReceipt:
    """The transport's data about one delivery. All copies of the message share it."""

    __slots__ = ("begun", "headers", "interrupt", "key", "lost", "offset", "partition")

    def __init__(
        self, partition: "AssignedPartition", offset: int, key: bytes | None = None, headers: RawHeaders = ()
    ) -> None:
        self.partition: Final = partition
        self.offset: Final = offset
        self.key: Final = key
        self.headers: Final = headers
        """As they were read."""
        self.lost = False
        """Whether another consumer has the partition now."""
        self.begun = False
        """Whether a handler was given the message, and has not refused it since."""
        self.interrupt: Callable[[], None] | None = None
        """Tells the handler that runs for it to end; None while none runs."""


class KafkaMessage(Message):
    """A message that shares its loss with all of its copies: a held message is a copy of the received one."""

    __slots__ = ()

    def __copy__(self) -> "KafkaMessage":
        """The same delivery, to be handled once more."""
        receipt: KafkaReceipt = self.receipt  # type: ignore[assignment]
        other = KafkaMessage.__new__(KafkaMessage)
        other.receipt = receipt  # first, since others are kept there
        for name in Message.__slots__:
            setattr(other, name, getattr(self, name))
        receipt.begun = False
        receipt.partition.held = receipt
        return other

    @property
    def lost(self) -> bool:
        """Whether it is known that the message is lost to this consumer."""
        receipt: KafkaReceipt = self.receipt  # type: ignore[assignment]
        return receipt.lost

    @lost.setter
    def lost(self, lost: bool) -> None:
        receipt: KafkaReceipt = self.receipt  # type: ignore[assignment]
        receipt.lost = receipt.lost or lost

    @property
    def interrupt(self) -> Callable[[], None] | None:
        """Tells the handler that runs for it to end; None while none runs."""
        receipt: KafkaReceipt = self.receipt  # type: ignore[assignment]
        return receipt.interrupt

    @interrupt.setter
    def interrupt(self, interrupt: Callable[[], None] | None) -> None:
        receipt: KafkaReceipt = self.receipt  # type: ignore[assignment]
        receipt.interrupt = interrupt
        receipt.begun = receipt.begun or interrupt is not None


# -- writing


def new_record(message: Message) -> KafkaRecord:
    """The record of a message that is posted; ValueError if it cannot be written."""
    header = message.header
    key = None if header.key is None else header.key.encode()
    return KafkaRecord(
        header.topic, key, message.body, [*_own_headers(header, header.topic), *_senders_headers(header)]
    )


def _own_headers(header: Header, topic: str) -> list[tuple[str, bytes]]:
    default = Header("", topic)
    headers = [(ID, header.id.encode())]
    for name, attribute in _HEADER_NAMES.items():
        value = getattr(header, attribute)
        if name != ID and value != getattr(default, attribute):
            headers.append((name, value.encode()))
    if header.timestamp:
        headers.append((_TIME, repr(header.timestamp).encode()))
    return headers


def _senders_headers(header: Header) -> list[tuple[str, bytes]]:
    return [(_name(name), text.encode()) for name, text in header.headers.items()]


def _name(name: str) -> str:
    """The name of a sender's header in a record; ValueError if it cannot be written."""
    if "\0" in name:
        raise ValueError(f"a header cannot be named {name!r}")
    name.encode()  # with a name that it cannot write, the client would end the process
    return ESCAPE + name if name in _RESERVED or name.startswith(ESCAPE) else name


def copy_record(message: Message, topic: str, attempts: int, now: float, *, due: float, wait: float) -> KafkaRecord:
    """A copy that comes again to its channel: with its attempts, and when it is due."""
    receipt: KafkaReceipt = message.receipt  # type: ignore[assignment]
    added = {
        **copy_headers(message, attempts, now),
        IDENTITY: message.identity,
        TOPIC: message.header.topic,
        DUE: repr(due),
        WAIT: repr(wait),
    }
    return KafkaRecord(topic, receipt.key, message.body, _changed(receipt.headers, added))


def dead_letter_records(
    message: Message, rejection: Rejection, topic: str, room: int
) -> Iterator[tuple[KafkaRecord, str]]:
    """The record of a dead letter, then smaller ones, for when the broker cannot take the last one.

    The first has all headers of the sender, the second has none. The others have a body that is cut to `room` bytes, to
    half of that, and so on; each comes with a text that says so.
    """
    receipt: KafkaReceipt = message.receipt  # type: ignore[assignment]
    texts = provenance(message, rejection)
    own = {TOPIC: message.header.topic, ID: message.id or message.identity}
    whole = _changed(receipt.headers, {**texts, **own}, removed={*_COPIES, *PROVENANCE, *own})
    yield KafkaRecord(topic, receipt.key, message.body, whole), ""
    short = {**{name: text for name, text in texts.items() if name in MINIMAL}, **own}
    yield KafkaRecord(topic, receipt.key, message.body, _encoded(short)), ""
    for header, body, saying in cut_letters(Header("", headers=short), message.body, room):
        yield KafkaRecord(topic, None, body, _encoded(header.headers)), saying


def _encoded(texts: Mapping[str, str]) -> list[tuple[str, bytes]]:
    return [(name, text.encode()) for name, text in texts.items()]


def _changed(
    headers: RawHeaders, added: Mapping[str, str], *, removed: frozenset[str] | set[str] = _COPIES
) -> list[tuple[str, bytes | None]]:
    kept = [(name, value) for name, value in headers if name not in removed and name not in added]
    return [*kept, *_encoded(added)]


# -- reading


class _ParsedHeaders:
    """The headers of a record, parsed."""

    __slots__ = ("attempts", "attributes", "due", "fault", "headers", "identity", "raw", "wait")

    def __init__(self) -> None:
        self.attributes: Final[dict[str, Any]] = {}
        self.headers: Final[dict[str, str]] = {}
        self.raw: Final[dict[str, object]] = {}
        """Headers that are not text."""
        self.attempts = 0
        self.identity = ""
        self.due = self.wait = 0.0
        self.fault = ""

    def add(self, name: str, value: bytes | None) -> None:
        try:
            text = "" if value is None else value.decode()
        except UnicodeDecodeError:
            self.raw[name] = value
            if name in _RESERVED:
                self.fault = f"its header {name} is not text"
            return
        if value is None:
            self.raw[name] = None
        if name in _HEADER_NAMES:
            self._add_attribute(name, text)
        elif name in _COPIES:
            self._add_of_copy(name, text)
        elif name != _TIME or not self._add_time(text):
            self.headers[name.removeprefix(ESCAPE)] = text

    def _add_attribute(self, name: str, text: str) -> None:
        try:
            self.attributes[_HEADER_NAMES[name]] = kind_of(name, text) if name == "pump-kind" else text
        except ValueError as error:
            self.fault = str(error)

    def _add_of_copy(self, name: str, text: str) -> None:
        if name == IDENTITY:
            self.identity = text
        elif name == ATTEMPTS_HEADER:
            if is_count(text):
                self.attempts = int(text)
        elif name == DUE:
            self.due = _seconds(text)
        else:
            self.wait = _seconds(text)

    def _add_time(self, text: str) -> bool:
        with suppress(ValueError):
            self.attributes["timestamp"] = time_of(_TIME, text)
            return True
        return False


def _seconds(text: str) -> float:
    """The number in a header, which anybody may have written: 0 if it is not a finite number."""
    with suppress(ValueError):
        return time_of(DUE, text)
    return 0.0


class ReadRecord(NamedTuple):
    """A message that was read, and when it may be handled."""

    message: KafkaMessage
    due: float
    """In seconds since the epoch; 0 if it is not a copy."""
    wait: float
    """Until when it stays in its retry topic."""

    def bounded(self, now: float, longest: float) -> "ReadRecord":
        """The same, but waiting no longer than its topic allows, whatever its headers say; 0 means not at all."""
        if not (self.due or self.wait):
            return self
        if not longest:
            return self._replace(due=0.0, wait=0.0)
        return self._replace(wait=min(self.wait, now + longest))


def read_record(record: Any, partition: "AssignedPartition", generation: int) -> ReadRecord:  # noqa: ANN401 - vendor's
    """The message of a record. If it cannot be read, its fault says why."""
    parsed, raw_headers = _ParsedHeaders(), _raw_headers(record)
    if isinstance(raw_headers, str):
        parsed.fault, raw_headers = raw_headers, ()
    for name, value in raw_headers:
        parsed.add(name, value)
    offset, key, (kind, milliseconds) = record.offset(), record.key(), record.timestamp()
    attributes = parsed.attributes
    if "id" not in attributes and kind == _CREATED:
        attributes["timestamp"] = milliseconds / 1000
    header = Header(
        **{
            "id": "",
            "topic": partition.topic,
            "key": None if key is None else key.decode("utf-8", "backslashreplace"),
            "headers": parsed.headers or NO_HEADERS,
            **attributes,
        }
    )
    message = KafkaMessage(
        header,
        record.value() or b"",
        # The time is included, since a topic that is deleted and created again begins with the same offsets.
        identity=parsed.identity or f"{partition.topic}/{partition.number}/{offset}@{milliseconds}",
        receipt=KafkaReceipt(partition, offset, key, raw_headers),
        generation=generation,
        attempts=parsed.attempts,
        partition=partition.domain,
        position=f"{partition.topic}/{partition.number}/{offset}",
        raw_headers=parsed.raw or NO_RAW_HEADERS,
        fault=parsed.fault,
    )
    return ReadRecord(message, parsed.due, parsed.wait)


def _raw_headers(record: Any) -> RawHeaders | str:  # noqa: ANN401 - the vendor's
    try:
        return record.headers() or ()
    except Exception as error:
        return f"its headers cannot be read: {error}"
