"""The options of `spark.readStream.format("pump")` and `spark.read.format("pump")`, checked before anything is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self, cast

from pump.errors import ConfigurationError
from pump.message import Message
from pump.request import Document
from pump.spark.given import Given, number, of_choice, truth, whole
from pump.spark.staging import folder_of
from pump.subscription import DEFAULT_DEAD_LETTER, Missing, Subscription
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.protocol import Transport, transport_from

_READ: Final[Mapping[str, Any]] = {
    "url": str,
    "channel": str,
    "topic": str,
    "stagingDir": str,
    "partitions": whole,
    "messagesPerPartition": whole,
    "bytesPerPartition": whole,
    "windowSeconds": number,
    "leaseSeconds": number,
    "missing": of_choice("create", "validate", "assume"),
    "deadLetter": str,
    "ordered": truth,
}


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What is read, and how much at a time. docs/spark-source.md lists them as Spark's users write them."""

    url: str = field(repr=False)
    channel: str
    topic: str = ""
    staging_dir: str = ""
    partitions: int = 2
    messages_per_partition: int = 10_000
    bytes_per_partition: int = 64 * 2**20
    window_seconds: float = 1.0
    lease_seconds: float | None = None
    missing: Missing = "create"
    dead_letter: str = DEFAULT_DEAD_LETTER
    ordered: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """The options as Spark has them; ConfigurationError for the first that is wrong or missing."""
        given = Given("the source", options, _READ)
        given.require("url", "channel")
        found = cls(**given.by_attribute())
        capabilities = found.transport().capabilities
        if not capabilities.between_processes:
            raise ConfigurationError(
                f"format('pump'): {capabilities.system} cannot be read: its messages are in the memory of one process, "
                "and Spark reads in others. Use sqlite:////folder/queue.db, or a broker"
            )
        found.subscription()  # raises for a mistake
        return found

    @property
    def staging(self) -> Path:
        """The folder of the staging log; ConfigurationError if it is not given."""
        if not self.staging_dir:
            raise ConfigurationError(
                "format('pump'): the source needs the option stagingDir, a folder that the driver and all executors "
                "share: messages are stored there before they are acknowledged"
            )
        return folder_of(self.staging_dir, "format('pump'): the option stagingDir")

    def transport(self) -> Transport:
        """The transport that the URL chooses."""
        return transport_from(self.url)

    def subscription(self, missing: Missing = "assume") -> Subscription:
        """The subscription of one reader, with the names that a dispatcher would give to its channel."""
        rules = Subscription(
            _any_request,
            topic=self.topic or self.channel,
            channel=self.channel,
            buffer_size=self.messages_per_partition,
            lease=self.lease_seconds,
            missing=missing,
            dead_letter=self.dead_letter,
            ordered=self.ordered,
            max_attempts=None,
        )
        default = self.transport().capabilities.default_dead_letter
        return replace(rules, dead_letter=Destinations.of(rules, default, checked=False).dead_letter)


def _any_request(_: Message) -> type:
    """A source reads messages of every type."""
    return cast("type", Document)
