"""The options of a queue under the names that HTTP has for them, each with its kind, its unit and its range."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from msgspec import Raw

from pump.queue import limits
from pump.queue.errors import BadRequest
from pump.queue.options import QueueOptions
from pump.queue.wire.json_body import NULL, Reader, read_tree
from pump.queue.wire.requests import ConfigureRequest, lease_seconds


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
"""Every option by its name in HTTP; retryDelay is in milliseconds, the other times are in seconds."""

_DEFAULTS: Final[Mapping[str, object]] = {field.name: field.default for field in fields(QueueOptions)}
_LEASE_TIME_OF_ZERO: Final = 60.0
_LONGEST_SECONDS: Final = 100 * 365 * 86_400
_NO_QUEUE: Final = "queue is required"
_CONFIGURE: Final = Reader(ConfigureRequest, {"queue": _NO_QUEUE})


@dataclass(frozen=True, slots=True)
class Configuration:
    """A queue and all of its options."""

    queue: str
    namespace: str | None
    task: str | None
    options: QueueOptions


def configuration(body: bytes) -> Configuration:
    """What a request to configure says; an option that it leaves out returns to its default."""
    request = _CONFIGURE.read(body)
    if not request.queue:
        raise BadRequest(_NO_QUEUE)
    return Configuration(
        limits.check_name("Queue", request.queue),
        limits.check_name("namespace", request.namespace) if request.namespace else None,
        limits.check_name("task", request.task) if request.task else None,
        options_from(_given_options(request.options or NULL)),
    )


def _given_options(raw: Raw) -> Mapping[str, object]:
    given = read_tree(raw)
    if given is not None and not isinstance(given, dict):
        raise BadRequest("options must be an object")
    return given or {}


def options_from(given: Mapping[str, object]) -> QueueOptions:
    """The options that are given, and the defaults of the others."""
    unknown = [name for name in given if name not in OPTIONS]
    if unknown:
        raise BadRequest(f"there is no option {unknown[0][:40]!r}")
    values = {OPTIONS[name].field: _value(name, value) for name, value in given.items() if value is not None}
    if values.get("lease_time") == 0:
        values["lease_time"] = _LEASE_TIME_OF_ZERO
    return QueueOptions(**values)  # type: ignore[arg-type]  # each was checked against the kind of its field


def options_written(options: QueueOptions) -> dict[str, object]:
    """All options under their names in HTTP."""
    return {name: _written(getattr(options, option.field), option) for name, option in OPTIONS.items()}


def _value(name: str, value: object) -> bool | float:
    option = OPTIONS[name]
    default = _DEFAULTS[option.field]
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise BadRequest(f"{name} must be true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequest(f"{name} must be a number")
    if isinstance(default, float):
        return _seconds(name, value, option)
    if not 0 <= value <= limits.LARGEST_NUMBER or value != int(value):
        raise BadRequest(f"{name} must be a whole number, 0 or more")
    return int(value)


def _seconds(name: str, value: float, option: _Option) -> float:
    if not 0 <= value <= _LONGEST_SECONDS * option.per_unit:
        raise BadRequest(f"{name} must be a length of time, 0 or more")
    if option.field == "lease_time" and value:
        lease_seconds(name, value)
    return value / option.per_unit


def _written(value: object, option: _Option) -> object:
    if isinstance(value, float):
        scaled = value * option.per_unit
        return int(scaled) if scaled.is_integer() else scaled
    return value
