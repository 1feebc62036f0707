"""Tools for tests: the harness for handlers, and the contract for transports.

Imports: everything in pump but `command`. `pump.pytest_plugin` has fixtures made of it.
Begin with: `harness` for handlers, `contract` for transports.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pump.clock import ManualClock
from pump.testing.clock import SelfMovingClock
from pump.testing.harness import PumpHarness, memory_transport
from pump.testing.records import Bus, Call, DeadLetter
from pump.testing.settings import SubscriptionOptions, Switchboard

if TYPE_CHECKING:
    from pump.testing.contract import TransportContract

__all__ = [
    "Bus",
    "Call",
    "DeadLetter",
    "ManualClock",
    "PumpHarness",
    "SelfMovingClock",
    "SubscriptionOptions",
    "Switchboard",
    "TransportContract",
    "memory_transport",
]


def __getattr__(name: str) -> object:
    """Import the contract, and pytest with it, only when it is asked for."""
    if name == "TransportContract":
        return import_module("pump.testing.contract").TransportContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
