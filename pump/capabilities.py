"""What a transport can do. Every difference between transports that anybody may rely on stands here, and is tested."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What one transport promises; the contract suite proves each field, and its absence."""

    system: str
    """The broker's name as OpenTelemetry knows it (`messaging.system`)."""
    nack: Literal["releases", "holds"]
    """Whether a nacked message goes back to the broker, or is kept here and presented again."""
    blocks: Literal["partition", "channel", "nothing"]
    """What waits behind a message that is not acknowledged."""
    requeue: Literal["same", "copy", "hold"]
    """How a message comes again later: the same message, a copy of it, or held here until due."""
    counts_deliveries: bool
    """Whether `deliveries` rises when a message comes again."""
    carries_attempts: bool
    """Whether a requeue leaves the attempts on the message, for whoever receives it next."""
    durable: bool
    """Whether messages outlive the broker's process."""
    durable_attempts: bool
    """Whether attempts outlive the consumer's process."""
    leases: bool
    """Whether a delivery lapses when it is not settled or extended in time."""
    delayed_publish: bool
    """Whether a message may be posted to arrive later."""
    between_processes: bool = True
    """Whether other processes reach the same messages."""
    default_dead_letter: str = "<channel>.dead"
    """Where rejected messages go when a subscription does not say, with the channel's name filled in."""
    purges: bool = True
    dead_letters: bool = True
    shards_by_key: bool = False
    """Whether several consumers of one channel keep the order of a key."""
    waits: bool = True
    """Whether receive waits for a message to arrive; where it does not, the pump waits between empty receives."""
    hands_back: Literal["each", "all"] = "each"
    """Whether single messages can go back, or only everything that a consumer has."""
    broker_limit: int | None = None
    """Deliveries after which the broker itself gives a message up, where that is the same for every channel."""
    longest_delay: float | None = None
    """In seconds; None is without limit."""
    largest_body: int | None = None
    """In bytes."""
    largest_headers: int | None = None
    """All header names and values together, in bytes."""
