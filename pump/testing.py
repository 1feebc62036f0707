"""What tests are made with: the harness for handlers, and the contract for transports.

`pump_harness`, `memory_transport` and `manual_clock` are pytest fixtures, there wherever this package is installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pump.clock import ManualClock
from pump.testing_clock import SelfMovingClock
from pump.testing_harness import PumpHarness, memory_transport
from pump.testing_lane import Bus, Call, DeadLetter
from pump.testing_settings import SubscriptionOptions, Switchboard

if TYPE_CHECKING:
    from pump.testing_contract import TransportContract

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
    """The contract, which brings pytest along, for those alone who ask for it."""
    if name == "TransportContract":
        return import_module("pump.testing_contract").TransportContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
