"""The options of `df.write.format("pump")` and `df.writeStream.format("pump")`, checked before anything is sent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from pump.errors import ConfigurationError
from pump.request import Document
from pump.spark.given import Given, of_choice, whole
from pump.subscription import Missing, Publication
from pump.transport_kit.protocol import Transport, transport_from

_WRITTEN: Final[Mapping[str, Callable[[str], Any]]] = {
    "url": str,
    "topic": str,
    "inFlight": whole,
    "missing": of_choice("create", "validate", "assume"),
}


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Where to post, and how much at a time. docs/spark-sink.md lists them as Spark's users write them."""

    url: str = field(repr=False)
    topic: str = ""
    in_flight: int = 1000
    missing: Missing = "create"

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """The options as Spark has them; ConfigurationError for the first that is wrong or missing."""
        given = Given("the sink", options, _WRITTEN)
        given.require("url")
        found = cls(**given.by_attribute())
        capabilities = found.transport().capabilities
        if not capabilities.between_processes:
            raise ConfigurationError(
                f"format('pump'): {capabilities.system} cannot be written to: its messages are in the memory of one "
                "process, and Spark writes in others. Use sqlite:////folder/queue.db, or a broker"
            )
        return found

    def transport(self) -> Transport:
        """The transport that the URL chooses."""
        return transport_from(self.url)

    def publication(self, topic: str) -> Publication:
        """What the broker needs for a topic."""
        return Publication(Document, topic=topic, missing=self.missing)
