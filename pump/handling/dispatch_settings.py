"""What everything that runs handlers needs of its dispatcher."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pump.attribute import SwitchProvider
from pump.clock import Clock, SystemClock
from pump.mapping.mapper import Mapper, mapper_for
from pump.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchSettings:
    """The options of a dispatcher that matter to handlers, their attributes and their mappers."""

    name: str = ""
    factory: Callable[[type], object] | None = None
    """Makes the handler of each message from its class; None calls the class without arguments."""
    mappers: Mapping[type, Mapper[Any]] = field(default_factory=dict)
    switches: SwitchProvider | None = None
    clock: Clock = field(default_factory=SystemClock)
    telemetry: Telemetry = field(default_factory=Telemetry)

    def mapper(self, request: Any) -> Mapper[Any]:  # noqa: ANN401 - a type may be any type form
        """The mapper given for a type, or the default one; a ConfigurationError if the type cannot be mapped."""
        given = self.mappers.get(request) if isinstance(request, type) else None
        return given if given is not None else mapper_for(request)
