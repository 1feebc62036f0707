"""A transport on a folder of files: durable, for any number of processes on one machine.

A channel is a folder. A message is a file in its folder `ready`; the name begins with the time when it may be
received. A consumer that renames the file into `claimed` has the message until the time in its new name; if several
try, one succeeds. A topic is a folder with one empty file for each channel that gets a copy of its messages.
"""

import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote
from uuid import uuid4

from pump.capabilities import Capabilities
from pump.clock import Clock, Signal, SystemClock
from pump.dead_letter import Rejection, dead_letter
from pump.duration import Duration, seconds
from pump.errors import LeaseLost, PublishError, SetupError, TransportError
from pump.message import Header, Message
from pump.subscription import Publication, Subscription
from pump.transport_kit.dead_letters import report_gone
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.protocol import new_generation
from pump.transport_kit.sending import not_sent
from pump.transport_kit.settings import finite_seconds, read_url

log: Final = logging.getLogger("pump.transports.files")

LEASE_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 0.02
"""How many seconds to wait before an empty channel is looked at again."""
LONGEST_DELAY_SECONDS: Final = 10 * 365 * 86400.0


class FileName(NamedTuple):
    """Everything that changes while a message waits and is received. The order of these names is that of receiving."""

    due: int
    """When the message may be received, in nanoseconds since the epoch."""
    file_id: str
    """It stays the same as long as the message is in the channel."""
    deliveries: int = 0
    attempts: int = 0
    crashes: int = 0
    """Deliveries after which nobody settled the message or handed it back."""
    expires: int = 0
    """When the claim ends; 0 in `ready`."""

    def __str__(self) -> str:
        return f"{self.due:020}.{self.file_id}.{self.deliveries}.{self.attempts}.{self.crashes}.{self.expires}"

    @classmethod
    def of(cls, file: Path) -> "FileName":
        """The parts of a file's name."""
        due, file_id, *numbers = file.name.split(".")
        return cls(int(due), file_id, *map(int, numbers))


class Folder:
    """The transport's folder: it makes channels and stores messages."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.clock: Final = clock
        self._root: Final = root
        self._last_due = 0

    def channel(self, name: str) -> Path:
        """The folder with the messages of a channel."""
        return self._root / "channels" / _file_name(name)

    def channels_of(self, topic: str) -> Sequence[Path]:
        """The channels that get a copy of the messages sent to a topic."""
        return [self._root / "channels" / file.name for file in (self._root / "topics" / _file_name(topic)).glob("*")]

    def create(self, topic: str, channel: str) -> None:
        """Make a channel, and bind it to a topic."""
        for part in ("new", "ready", "claimed"):
            (self.channel(channel) / part).mkdir(parents=True, exist_ok=True)
        binding = self._root / "topics" / _file_name(topic) / _file_name(channel)
        binding.parent.mkdir(parents=True, exist_ok=True)
        binding.touch()

    def now(self) -> int:
        """The time in nanoseconds since the epoch."""
        return int(self.clock.wall() * 1e9)

    def due_after(self, delay: float) -> int:
        """When a message is due. No two results are equal, so that messages of this process keep their order."""
        self._last_due = max(self.now(), self._last_due + 1)
        return self._last_due + int(min(delay, LONGEST_DELAY_SECONDS) * 1e9)

    def store(self, contents: Iterable[tuple[Path, bytes]], delay: float = 0.0) -> None:
        """Store each in its channel. Nothing can be received before everything is safely on the disk."""
        files = []
        for channel, content in contents:
            file = channel / "new" / str(FileName(self.due_after(delay), uuid4().hex))
            file.write_bytes(content)
            _sync(file)
            files.append(file)
        ready = [file.rename(file.parents[1] / "ready" / file.name) for file in files]
        for folder in {file.parent for file in ready}:
            _sync(folder)


class FilesConsumer:
    """One consumer of one channel."""

    broker_limit: int | None = None

    def __init__(self, folder: Folder, subscription: Subscription, lease: float) -> None:
        self.generation: Final = new_generation()
        self._folder: Final = folder
        self._clock: Final = folder.clock
        self._destinations: Final = Destinations.of(subscription)
        self._ready: Final = folder.channel(self._destinations.channel) / "ready"
        self._claimed: Final = folder.channel(self._destinations.channel) / "claimed"
        self._lease: Final = lease if subscription.lease is None else seconds(subscription.lease)
        self._claims: Final[dict[str, FileName]] = {}
        """The messages that are this consumer's, by the ids of their files."""
        self._interrupted: Final = Signal()
        self._closed = False

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Look into the folder until there is something, the time is over, or somebody interrupts."""
        deadline = self._clock.monotonic() + timeout
        while True:
            with _outages():
                self._end_old_claims()
                messages = self._claim_ready(limit)
            left = deadline - self._clock.monotonic()
            if messages or left <= 0 or self._clock.wait(self._interrupted, min(left, LOOK_SECONDS)):
                self._interrupted.clear()
                return messages

    def acknowledge(self, message: Message) -> None:
        """Remove the file."""
        with self._settling(message) as file:
            file.unlink()

    def nack(self, message: Message) -> None:
        """Rename the file back. It keeps its due time, so it comes before all messages that were sent later.

        If the message was run while it was held here, its new number of attempts goes into the name.
        """
        risen = {"attempts": message.attempts, "crashes": 0} if message.attempts > message.carried else {}
        with self._settling(message) as file:
            self._make_ready(file, **risen)

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Rename the file back with a new due time. The attempts are in its name, so they outlive this process."""
        with self._settling(message) as file:
            self._make_ready(file, due=self._folder.due_after(delay), attempts=attempts, crashes=0)

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Store the dead letter first, then remove the original: a crash in between makes a duplicate, no loss."""
        destination = self._destinations.for_rejected(rejection.kind)
        with self._settling(message) as file:
            file.stat()  # if the lease was lost, there must not be a dead letter either
            if destination is not None:
                content = _encode(dead_letter(message, rejection), message.body)
                with _outages():
                    self._folder.store([(self._folder.channel(destination), content)])
            file.unlink()
        if destination is None:
            report_gone(log, message, self._destinations.channel, rejection)

    def extend(self, message: Message) -> None:
        """Rename the file: the end of the claim is in its name."""
        with self._settling(message) as file:
            claim = FileName.of(file)._replace(expires=self._folder.now() + int(self._lease * 1e9))
            message.lease_expires = self._clock.monotonic() + self._lease
            file.rename(self._claimed / str(claim))
            self._claims[claim.file_id] = claim

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Return each message to its old place."""
        for message in messages:
            with suppress(LeaseLost):  # the message went back already
                self.nack(message)

    def purge(self) -> int:
        """Remove all files that nobody has claimed."""
        with _outages():
            files = list(self._ready.iterdir())
            for file in files:
                file.unlink(missing_ok=True)
        return len(files)

    def interrupt(self) -> None:
        """Make the current receive, or the next one, return: the signal stays set until a receive has seen it."""
        self._interrupted.set()

    def close(self) -> None:
        """End all claims. A handler may have run, so each counts as a delivery that ended without a verdict."""
        self._closed = True
        for claim in list(self._claims.values()):
            with suppress(OSError):
                self._make_ready(self._claimed / str(claim), crashes=claim.crashes + 1)
        self._claims.clear()

    def _end_old_claims(self) -> None:
        """Return messages whose claim has ended: a consumer did not settle them in time, or was killed."""
        if self._closed:
            raise TransportError("the consumer is closed")
        for file in list(self._claimed.iterdir()):
            claim = FileName.of(file)
            if claim.expires <= self._folder.now():
                with suppress(FileNotFoundError):  # another was faster
                    self._make_ready(file, crashes=claim.crashes + 1)

    def _claim_ready(self, limit: int) -> Sequence[Message]:
        messages: list[Message] = []
        for file in sorted(self._ready.iterdir()):
            if len(messages) == limit or FileName.of(file).due > self._folder.now():
                break
            with suppress(FileNotFoundError):  # another was faster
                messages.append(self._claim(file))
        return messages

    def _claim(self, file: Path) -> Message:
        lease_expires, expires = self._clock.monotonic() + self._lease, self._folder.now() + int(self._lease * 1e9)
        waiting = FileName.of(file)
        claim = waiting._replace(deliveries=waiting.deliveries + 1, expires=expires)
        content = file.rename(self._claimed / str(claim)).read_bytes()
        self._claims[claim.file_id] = claim
        header, body, fault = _decode(content, self._destinations.topic)
        return Message(
            header,
            body,
            identity=header.id or claim.file_id,
            receipt=claim.file_id,
            generation=self.generation,
            deliveries=claim.deliveries,
            attempts=claim.attempts,
            unexplained=claim.crashes,
            lease_expires=lease_expires,
            position=claim.due,
            fault=fault,
        )

    @contextmanager
    def _settling(self, message: Message) -> Iterator[Path]:
        """The file of a message, to be settled in the block; LeaseLost if the file is not there any more."""
        claim = self._claims.pop(str(message.receipt), None)
        lost = LeaseLost(f"message {message.id} of {self._destinations.channel} no longer belongs to this consumer")
        if claim is None:
            raise lost
        try:
            yield self._claimed / str(claim)
        except FileNotFoundError:
            raise lost from None
        except (OSError, TransportError) as error:
            self._claims[claim.file_id] = claim  # the pump tries again
            raise TransportError(f"message {message.id} could not be settled: {error}") from error

    def _make_ready(self, file: Path, **changes: Any) -> None:  # noqa: ANN401 - as _replace has it
        file.rename(self._ready / str(FileName.of(file)._replace(expires=0, **changes)))


class FilesProducer:
    """Sends messages to all channels of their topics."""

    def __init__(self, folder: Folder) -> None:
        self._folder: Final = folder
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Return when every message is on the disk."""
        if self._closed:
            raise not_sent("the producer is closed")
        contents = []
        for message in messages:
            channels = self._folder.channels_of(message.header.topic)
            if not channels:
                raise not_sent(f"no channel is bound to the topic {message.header.topic!r}")
            contents += [(channel, _encode(message.header, message.body)) for channel in channels]
        try:
            self._folder.store(contents, delay)
        except OSError as error:
            raise PublishError(f"not everything was stored: {error}") from error

    def close(self) -> None:
        """Send nothing more."""
        self._closed = True


class FilesTransport:
    """Messages in a folder."""

    capabilities: Capabilities = Capabilities(
        system="files",
        nack="releases",
        blocks="channel",
        requeue="same",
        counts_deliveries=True,
        carries_attempts=True,
        durable=True,
        leases=True,
        delayed_publish=True,
        longest_delay=LONGEST_DELAY_SECONDS,
    )

    def __init__(self, root: Path | str, *, lease: Duration = LEASE_SECONDS, clock: Clock | None = None) -> None:
        self._lease: Final = finite_seconds("files", "lease", lease)
        self._folder: Final = Folder(Path(root), SystemClock() if clock is None else clock)

    @classmethod
    def from_url(cls, url: str) -> Self:
        """The transport of `files:///folder?lease=seconds`."""
        parts = read_url(url, "files:///folder?lease=seconds", {"lease": float}, schemes=["files"])
        return cls(parts.name, **parts.options)

    def prepare(self, subscriptions: Sequence[Subscription], publications: Sequence[Publication]) -> None:
        """Create or validate the folders that each one needs."""
        with _outages():
            for subscription in subscriptions:
                self._prepare_channel(subscription)
            for publication in publications:
                self._prepare_topic(publication)

    def consumer(self, subscription: Subscription) -> FilesConsumer:
        """Open a consumer."""
        self.prepare([subscription], [])
        return FilesConsumer(self._folder, subscription, self._lease)

    def producer(self) -> FilesProducer:
        """Open a producer."""
        return FilesProducer(self._folder)

    def _prepare_channel(self, subscription: Subscription) -> None:
        names = Destinations.of(subscription)
        if subscription.missing == "create":
            self._folder.create(names.topic, names.channel)
            for name in names.dead_letters:
                self._folder.create(name, name)
        for name in (names.channel, *names.dead_letters):
            if subscription.missing == "validate" and not self._folder.channel(name).exists():
                raise SetupError(f"there is no channel {name!r}")

    def _prepare_topic(self, publication: Publication) -> None:
        topic = publication.destination
        if publication.missing == "assume" or self._folder.channels_of(topic):
            return
        if publication.missing == "validate":
            raise SetupError(f"no channel is bound to the topic {topic!r}")
        self._folder.create(topic, topic)  # keeps messages that are sent before there is a consumer


def _encode(header: Header, body: bytes) -> bytes:
    """A line of JSON, then the body as it is."""
    return json.dumps(header._replace(headers=dict(header.headers))._asdict()).encode() + b"\n" + body


def _decode(content: bytes, topic: str) -> tuple[Header, bytes, str]:
    """Header, body, and fault. A message that cannot be read is kept whole, as a dead letter."""
    line, _, body = content.partition(b"\n")
    try:
        return Header(**json.loads(line)), body, ""
    except (TypeError, ValueError) as error:
        return Header("", topic=topic), content, f"its first line is not a header: {error}"


def _sync(path: Path) -> None:
    """Make sure that a file's content, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _outages() -> Iterator[None]:
    """Errors of the file system are outages: the pump waits, and tries again with a new consumer."""
    try:
        yield
    except OSError as error:
        raise TransportError(f"the folder cannot be used: {error}") from error


def _file_name(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E")
