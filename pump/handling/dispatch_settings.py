"""What all dispatches of one dispatcher share."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pump.attribute import SwitchProvider
from pump.clock import Clock, SystemClock
from pump.mapping.mapper import Mapper, mapper_for
from pump.telemetry import Telemetry


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The settings a dispatcher was made with, for whatever runs handlers."""

    name: str = ""
    factory: Callable[[type], object] | None = None
    """Makes a handler of its class, for each message; without one the class is called."""
    mappers: Mapping[type, Mapper[Any]] = field(default_factory=dict)
    switches: SwitchProvider | None = None
    clock: Clock = field(default_factory=SystemClock)
    telemetry: Telemetry = field(default_factory=Telemetry)

    def mapper(self, request: Any) -> Mapper[Any]:  # noqa: ANN401 - a type may be any type form
        """The mapper given for a type, or the default one; a ConfigurationError where there can be none."""
        given = self.mappers.get(request) if isinstance(request, type) else None
        return given if given is not None else mapper_for(request)
