"""The options of a queue; every field is checked when the object is made."""

from dataclasses import dataclass, fields

from pump.queue.limits import check_count, check_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """All options of one queue. Durations are seconds; a limit of 0 means no limit."""

    ordered: bool = True
    """If true, a partition is FIFO and leased as a whole; otherwise every message has a lease of its own."""
    lease_time: float = 300.0
    retry_limit: int | None = 3
    """The number of retries and crashes after which a message is a dead letter; None leaves that to the consumer."""
    retry_delay: float = 1.0
    max_size: int = 0
    ttl: float = 3600.0
    priority: int = 0
    delayed_processing: float = 0.0
    """The age that a message must have before it is handed out."""
    window_buffer: float = 0.0
    """A partition is not handed out until its newest message is older than this."""
    dead_letter_queue: bool = True
    dead_letter_after_max_retries: bool = True
    """If false, a message that has used up its retries is tried for ever; it is never dropped."""
    max_wait_time: float = 0.0
    """A message not settled within this time becomes a dead letter, unless it is leased at that moment."""
    retention_enabled: bool = False
    retention: float = 0.0
    """The age at which a message is removed; it becomes a dead letter of each group for which it is pending."""
    completed_retention: float = 0.0
    """The age at which a message that all groups have settled is removed."""
    encryption: bool = False

    def __post_init__(self) -> None:
        """BadRequest if an option is wrong; the error names it."""
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(option.default, bool) or value is None:
                continue
            if isinstance(option.default, float):
                check_seconds(option.name, value)
            else:
                check_count(option.name, value)
