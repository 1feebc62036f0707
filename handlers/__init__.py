"""Attributes for handlers: feature switches, decisions on errors, retries, time limits and others.

Imports: the top level of `pump`; no transport.
Begin with: `dont_ack_on_error`, the shortest one.
"""

from pump.handlers.circuit_breaker import CircuitBreaker
from pump.handlers.defer_message_on_error import DeferMessageOnError
from pump.handlers.dont_ack_on_error import DontAckOnError
from pump.handlers.fallback import Fallback
from pump.handlers.feature_switch import FeatureSwitch
from pump.handlers.rate_limit import RateLimit
from pump.handlers.reject_message_on_error import RejectMessageOnError
from pump.handlers.request_logging import RequestLogging
from pump.handlers.retry import Retry
from pump.handlers.switches import EnvironmentSwitches, FileSwitches, Switches
from pump.handlers.timeout import Timeout
from pump.handlers.validate import Validate

__all__ = [
    "CircuitBreaker",
    "DeferMessageOnError",
    "DontAckOnError",
    "EnvironmentSwitches",
    "Fallback",
    "FeatureSwitch",
    "FileSwitches",
    "RateLimit",
    "RejectMessageOnError",
    "RequestLogging",
    "Retry",
    "Switches",
    "Timeout",
    "Validate",
]
