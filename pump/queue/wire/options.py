"""The options of a queue under the names that HTTP has for them, each with its kind, its unit and its range."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from pump.queue import limits as names
from pump.queue.errors import BadRequest
from pump.queue.options import QueueOptions
from pump.queue.wire import requests as wire


class _Option(NamedTuple):
    """One option: which field it is, and how many of its unit are one of the field's."""

    field: str
    per_unit: int = 1


OPTIONS: Final[Mapping[str, _Option]] = {
    "ordered": _Option("ordered"),
    "leaseTime": _Option("lease_time"),
    "retryLimit": _Option("retry_limit"),
    "retryDelay": _Option("retry_delay", 1000),
    "maxSize": _Option("max_size"),
    "ttl": _Option("ttl"),
    "priority": _Option("priority"),
    "deadLetterQueue": _Option("dead_letter_queue"),
    "dlqAfterMaxRetries": _Option("dead_letter_after_max_retries"),
    "delayedProcessing": _Option("delayed_processing"),
    "windowBuffer": _Option("window_buffer"),
    "maxWaitTimeSeconds": _Option("max_wait_time"),
    "retentionEnabled": _Option("retention_enabled"),
    "retentionSeconds": _Option("retention"),
    "completedRetentionSeconds": _Option("completed_retention"),
    "encryptionEnabled": _Option("encryption"),
}
"""Every option by its name on the wire; retryDelay is in milliseconds, the other times are in seconds."""

_KINDS: Final[Mapping[str, object]] = {field.name: field.default for field in fields(QueueOptions)}
_LEASE_TIME_OF_NONE: Final = 60.0
_LARGEST_WHOLE: Final = 2**31 - 1
_LONGEST_SECONDS: Final = 100 * 365 * 86_400


@dataclass(frozen=True, slots=True)
class Configuration:
    """A queue and all that it is told about itself."""

    queue: str
    namespace: str | None
    task: str | None
    options: QueueOptions


def configuration(body: bytes) -> Configuration:
    """What a request to configure says; what it leaves out returns to its default."""
    members = wire.members_of(body)
    queue = members.get("queue")
    if not isinstance(queue, str) or not queue:
        raise BadRequest("queue is required")
    given = members.get("options")
    if given is not None and not isinstance(given, dict):
        raise BadRequest("options must be an object")
    return Configuration(
        names.check_name("Queue", queue), _label(members, "namespace"), _label(members, "task"), read(given or {})
    )


def read(given: Mapping[str, object]) -> QueueOptions:
    """The options that are given, and the defaults of the others."""
    unknown = [name for name in given if name not in OPTIONS]
    if unknown:
        raise BadRequest(f"there is no option {unknown[0][:40]!r}")
    values = {OPTIONS[name].field: _value(name, value) for name, value in given.items() if value is not None}
    if values.get("lease_time") == 0:
        values["lease_time"] = _LEASE_TIME_OF_NONE
    return QueueOptions(**values)  # type: ignore[arg-type]  # each was checked against the kind of its field


def written(options: QueueOptions) -> dict[str, object]:
    """All options under their names on the wire."""
    return {name: _written(getattr(options, option.field), option) for name, option in OPTIONS.items()}


def _value(name: str, value: object) -> bool | float:
    option = OPTIONS[name]
    default = _KINDS[option.field]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise BadRequest(f"{name} must be true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number")
    if isinstance(default, float):
        return _seconds(name, value, option)
    return _whole(name, value)


def _seconds(name: str, value: float, option: _Option) -> float:
    if not 0 <= value <= _LONGEST_SECONDS * option.per_unit:
        raise BadRequest(f"{name} must be a length of time, 0 or more")
    if option.field == "lease_time" and value:
        wire.lease_seconds(name, value)
    return value / option.per_unit


def _whole(name: str, value: float) -> int:
    if not 0 <= value <= _LARGEST_WHOLE or value != int(value):
        raise BadRequest(f"{name} must be a whole number, 0 or more")
    return int(value)


def _written(value: object, option: _Option) -> object:
    if isinstance(value, float):
        scaled = value * option.per_unit
        return int(scaled) if scaled.is_integer() else scaled
    return value


def _label(members: Mapping[str, object], name: str) -> str | None:
    value = members.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a string")
    return names.check_name(name, value)
