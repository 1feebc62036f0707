"""How messages are written as Kafka records and read back. Any bytes can be read as a message.

The key of a message is the record's key. What else is known of it travels in headers whose names begin with `pump-`;
the sender's own headers keep their names. A copy has the headers of the original as they are, whatever they are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pump.dead_letter import PROVENANCE, Rejection, provenance
from pump.message import ATTEMPTS_HEADER, NO_RAW_HEADERS, Header, Message
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
_KIND: Final = "pump-kind"
_COPIES: Final = frozenset({IDENTITY, DUE, WAIT, ATTEMPTS_HEADER})
_RESERVED: Final = frozenset({*_HEADER_NAMES, _TIME, *_COPIES})
_FIELDS: Final[list[Any]] = list(Header(""))
_ID_PLACE, _TOPIC_PLACE, _KIND_PLACE, _KEY_PLACE, _TIME_PLACE, _HEADERS_PLACE = (
    Header._fields.index(name) for name in ("id", "topic", "kind", "key", "timestamp", "headers")
)
_PLACES: Final = {name: Header._fields.index(field) for name, field in _HEADER_NAMES.items() if name != _KIND}
"""The place in a Header of each of its texts that may be any text."""
_CREATED: Final = 1
"""The timestamp type of a record whose sender set the timestamp."""


class KafkaRecord(NamedTuple):
    """What is stored in a topic."""

    topic: str
    key: bytes | None
    value: bytes
    headers: RawHeaders


class KafkaMessage(Message):
    """A record that was received. Its receipt is the client's own record, which has key and headers as they were sent.

    What becomes of the delivery is noted here, so that to settle it takes no lock and no search.
    """

    __slots__ = ("assigned", "begun", "done", "due", "offset", "wait")

    assigned: "AssignedPartition"
    """The partition that it came from."""
    offset: int
    done: bool
    """Whether it is settled."""
    begun: bool | None
    """Whether a handler was given it since it was held here last; None if it never was held."""
    due: float
    """When it may be handled, in seconds since the epoch; 0 if it is not a copy."""
    wait: float
    """Until when it stays in its retry topic."""

    @property
    def first(self) -> "KafkaMessage":
        """The message as it was received: its copies are the same delivery."""
        return self

    @property
    def has_begun(self) -> bool:
        """Whether a handler was given it, and it has not been held since."""
        return bool(self.handler) if self.begun is None else self.begun

    @property
    def is_ours(self) -> bool:
        """Whether the delivery is not settled, and still this consumer's."""
        return not (self.done or self.lost)

    def bounded(self, now: float, longest: float) -> "KafkaMessage":
        """The same message, waiting no longer than its topic allows, whatever its headers say; 0 means not at all."""
        if not longest:
            self.due = self.wait = 0.0
        elif self.wait > now + longest:
            self.wait = now + longest
        return self

    def __copy__(self) -> "HeldMessage":
        """The same delivery, to be handled once more."""
        first = self.first
        other = HeldMessage.__new__(HeldMessage)
        other.first = first
        for name in _COPIED:
            setattr(other, name, getattr(self, name))
        first.begun, first.assigned.held = False, first
        return other


class HeldMessage(KafkaMessage):
    """A copy of a message, to be handled once more: whether it is lost, or runs, is known of the first one too."""

    __slots__ = ("first",)

    first: KafkaMessage

    @property
    def lost(self) -> bool:
        """Whether it is known that the message is lost to this consumer."""
        return self.first.lost

    @lost.setter
    def lost(self, lost: bool) -> None:
        self.first.lost = self.first.lost or lost

    @property
    def interrupt(self) -> Callable[[], None] | None:
        """Tells the handler that runs for it to end; None while none runs."""
        return self.first.interrupt

    @interrupt.setter
    def interrupt(self, interrupt: Callable[[], None] | None) -> None:
        self.first.interrupt = interrupt
        self.first.begun = self.first.begun or interrupt is not None


_COPIED: Final = (*(name for name in Message.__slots__ if name not in {"lost", "interrupt"}), "assigned", "offset")


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
    added = {
        **copy_headers(message, attempts, now),
        IDENTITY: message.identity,
        TOPIC: message.header.topic,
        DUE: repr(due),
        WAIT: repr(wait),
    }
    return KafkaRecord(topic, _key(message), message.body, _changed(_headers(message), added))


def dead_letter_records(
    message: Message, rejection: Rejection, topic: str, room: int
) -> Iterator[tuple[KafkaRecord, str]]:
    """The record of a dead letter, then smaller ones, for when the broker cannot take the last one.

    The first has all headers of the sender, the second has none. The others have a body that is cut to `room` bytes, to
    half of that, and so on; each comes with a text that says so.
    """
    texts = provenance(message, rejection)
    own = {TOPIC: message.header.topic, ID: message.id or message.identity}
    whole = _changed(_headers(message), {**texts, **own}, removed={*_COPIES, *PROVENANCE, *own})
    yield KafkaRecord(topic, _key(message), message.body, whole), ""
    short = {**{name: text for name, text in texts.items() if name in MINIMAL}, **own}
    yield KafkaRecord(topic, _key(message), message.body, _encoded(short)), ""
    for header, body, saying in cut_letters(Header("", headers=short), message.body, room):
        yield KafkaRecord(topic, None, body, _encoded(header.headers)), saying


def _encoded(texts: Mapping[str, str]) -> list[tuple[str, bytes]]:
    return [(name, text.encode()) for name, text in texts.items()]


def _key(message: Message) -> bytes | None:
    record: Any = message.receipt
    key: bytes | None = record.key()
    return key


def _headers(message: Message) -> RawHeaders:
    """As they were read; none where they cannot be."""
    headers = _raw_headers(message.receipt)
    return () if isinstance(headers, str) else headers


def _changed(
    headers: RawHeaders, added: Mapping[str, str], *, removed: frozenset[str] | set[str] = _COPIES
) -> list[tuple[str, bytes | None]]:
    kept = [(name, value) for name, value in headers if name not in removed and name not in added]
    return [*kept, *_encoded(added)]


# -- reading


class _OtherHeaders:
    """The headers of a record that are none of the common ones, parsed."""

    __slots__ = ("attempts", "due", "fault", "fields", "headers", "identity", "raw", "wait")

    def __init__(self, fields: list[Any]) -> None:
        self.fields: Final = fields
        """Those of the message's Header."""
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
        if name in _PLACES:
            self.fields[_PLACES[name]] = text
        elif name == _KIND:
            self._add_kind(text)
        elif name in _COPIES:
            self._add_of_copy(name, text)
        else:
            self.headers[name.removeprefix(ESCAPE)] = text

    def _add_kind(self, text: str) -> None:
        try:
            self.fields[_KIND_PLACE] = kind_of(_KIND, text)
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


def _seconds(text: str) -> float:
    """The number in a header, which anybody may have written: 0 if it is not a finite number."""
    with suppress(ValueError):
        return time_of(DUE, text)
    return 0.0


def _read_headers(headers: RawHeaders, fields: list[Any]) -> _OtherHeaders | None:
    """Set the fields of a Header from the headers of a record; returns what else they say, None if that is nothing.

    Every message passes here: the headers that each of ours has are read without an object for them.
    """
    others: _OtherHeaders | None = None
    for name, value in headers:
        place = _PLACES.get(name)
        if value is not None:
            try:
                if place is not None:
                    fields[place] = value.decode()
                    continue
                if name == _TIME:
                    fields[_TIME_PLACE] = time_of(name, value.decode())
                    continue
            except ValueError:  # not text, or not a number: kept with the others
                pass
        if others is None:
            others = _OtherHeaders(fields)
        others.add(name, value)
    if others is not None and others.headers:
        fields[_HEADERS_PLACE] = others.headers
    return others


def read_message(record: Any, assigned: "AssignedPartition", generation: int) -> KafkaMessage:  # noqa: ANN401 - vendor's
    """The message of a record. If it cannot be read, its fault says why."""
    fields, headers, fault = _FIELDS.copy(), _raw_headers(record), ""
    if isinstance(headers, str):
        fault, headers = headers, ()
    fields[_TOPIC_PLACE] = assigned.topic
    key, offset, (kind, milliseconds) = record.key(), record.offset(), record.timestamp()
    if key is not None:
        fields[_KEY_PLACE] = key.decode("utf-8", "backslashreplace")
    others = _read_headers(headers, fields)
    if kind == _CREATED and not fields[_ID_PLACE]:
        fields[_TIME_PLACE] = milliseconds / 1000
    position = f"{assigned.name}{offset}"
    message = KafkaMessage(
        Header._make(fields),
        record.value() or b"",
        # The time is included, since a topic that is deleted and created again begins with the same offsets.
        identity=f"{position}@{milliseconds}",
        receipt=record,
        generation=generation,
        partition=assigned.domain,
        position=position,
        fault=fault,
    )
    message.assigned, message.offset, message.done, message.begun = assigned, offset, False, None
    message.due = message.wait = 0.0
    if others is not None:
        _add_others(message, others)
    return message


def _add_others(message: KafkaMessage, others: _OtherHeaders) -> None:
    message.identity = others.identity or message.identity
    message.attempts = message.carried = others.attempts
    message.raw_headers = others.raw or NO_RAW_HEADERS
    message.fault = message.fault or others.fault
    message.due, message.wait = others.due, others.wait


def _raw_headers(record: Any) -> RawHeaders | str:  # noqa: ANN401 - the vendor's
    try:
        return record.headers() or ()
    except Exception as error:
        return f"its headers cannot be read: {error}"
