"""What a transport can do: every difference between transports that a program may rely on, proved by the contract."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What one transport promises. The contract proves that it can do what is declared here, and nothing else."""

    system: str
    """The broker's name as OpenTelemetry knows it (`messaging.system`)."""
    nack: Literal["releases", "holds"]
    """Whether a nacked message goes back to the broker, or is kept here and presented again."""
    blocks: Literal["partition", "channel", "nothing"]
    """What waits behind a message that is not acknowledged."""
    nack_keeps_place: bool = True
    """Whether a nacked message comes again before those behind it; if not, it is held here where order is kept."""
    requeue: Literal["same", "copy", "hold"]
    """How a message comes again later: the same message, a copy of it, or held here until due."""
    counts_deliveries: bool
    """Whether `deliveries` rises when a message comes again."""
    carries_attempts: bool
    """Whether a requeue stores the attempts on the message, for the consumer that receives it next."""
    keeps_held_attempts: bool = True
    """Whether a message that was held here keeps its attempts when it is handed back to its old place."""
    tells_apart: bool = True
    """Whether the broker names each message, so that the attempts of two messages with one id are counted apart."""
    durable: bool
    """Whether messages outlive the broker's process."""
    leases: bool
    """Whether a delivery goes back when it is not settled or extended in time."""
    delayed_publish: bool
    """Whether a message may be posted to arrive later."""
    between_processes: bool = True
    """Whether other processes reach the same messages."""
    default_dead_letter: str = "<channel>.dead"
    """Where rejected messages go if the subscription does not say; `<channel>` is the channel's name."""
    purges: bool = True
    """Whether everything that waits in a channel can be removed."""
    shards_by_key: bool = False
    """Whether several consumers of one channel keep the order of a key."""
    waits: bool = True
    """Whether receive waits for a message to arrive; where it does not, the pump waits between empty receives."""
    hands_back: Literal["each", "all"] = "each"
    """Whether a consumer can hand back single messages, or only all that it has."""
    longest_delay: float | None = None
    """In seconds; None is without limit."""
    largest_body: int | None = None
    """In bytes. A larger one is refused before it is sent, and is an invalid message where it is received."""
    largest_headers: int | None = None
    """All header names and values together, in bytes."""
