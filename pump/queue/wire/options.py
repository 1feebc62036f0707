"""The options of a queue as HTTP has them, and as the engines have them."""

from typing import Final, NamedTuple

from msgspec.structs import asdict

from pump.queue import limits
from pump.queue.options import QueueOptions
from pump.queue.wire.json_body import ABSENT, Reader
from pump.queue.wire.requests import ConfigureRequest, OptionsRequest, lease_seconds

_MILLISECONDS: Final = 1000
_LEASE_TIME_OF_ZERO: Final = 60.0
_CONFIGURE: Final = Reader(
    ConfigureRequest,
    {"queue": "queue is required", "retryDelay": "retryDelay must be a number of milliseconds, 0 or more"},
)


class Configuration(NamedTuple):
    """A queue and all of its options."""

    queue: str
    namespace: str | None
    task: str | None
    options: QueueOptions


def configuration(body: bytes) -> Configuration:
    """A request to configure a queue; an option that it leaves out returns to its default."""
    request = _CONFIGURE.read(body)
    return Configuration(
        limits.check_name("Queue", request.queue),
        limits.check_name("namespace", request.namespace) if request.namespace else None,
        limits.check_name("task", request.task) if request.task else None,
        _options(request.options or OptionsRequest()),
    )


def _options(request: OptionsRequest) -> QueueOptions:
    given = {name: value for name, value in asdict(request).items() if value is not ABSENT and value is not None}
    if "lease_time" in given:
        given["lease_time"] = lease_seconds("leaseTime", given["lease_time"] or _LEASE_TIME_OF_ZERO)
    if "retry_delay" in given:
        given["retry_delay"] /= _MILLISECONDS
    return QueueOptions(**given)


def options_written(options: QueueOptions) -> OptionsRequest:
    """All options as HTTP has them."""
    values = {name: getattr(options, name) for name in OptionsRequest.__struct_fields__}
    values["retry_delay"] *= _MILLISECONDS
    whole = {name: int(value) for name, value in values.items() if isinstance(value, float) and value.is_integer()}
    return OptionsRequest(**{**values, **whole})
