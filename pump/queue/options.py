"""What a queue may be told about itself; every field is checked when it is made."""

from dataclasses import dataclass, fields

from pump.queue.limits import check_count, check_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """All that can be configured of one queue. Durations are seconds; 0 of a limit is none."""

    ordered: bool = True
    """Whether a partition is FIFO, leased as a whole; else every message has a lease of its own."""
    lease_time: float = 300.0
    retry_limit: int | None = 3
    """Retries and crashes together after which a message is a dead letter; None leaves that to the consumer."""
    retry_delay: float = 1.0
    max_size: int = 0
    ttl: float = 3600.0
    priority: int = 0
    delayed_processing: float = 0.0
    """The age that a message must have before anybody gets it."""
    window_buffer: float = 0.0
    """A partition is withheld until its newest message is older than this."""
    dead_letter_queue: bool = True
    dead_letter_after_max_retries: bool = True
    """Without it a message that has used up its retries is tried for ever; it is never dropped."""
    max_wait_time: float = 0.0
    """A message that nobody settled for so long is a dead letter, unless it is leased just then."""
    retention_enabled: bool = False
    retention: float = 0.0
    """The age after which a message goes; where it is still pending for a group, as that group's dead letter."""
    completed_retention: float = 0.0
    """The age after which a message goes that all groups are done with."""
    encryption: bool = False

    def __post_init__(self) -> None:
        """BadRequest names the option that makes no sense."""
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(option.default, bool) or value is None:
                continue
            if isinstance(option.default, float):
                check_seconds(option.name, value)
            else:
                check_count(option.name, value)
