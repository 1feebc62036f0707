"""Stop calling a handler for a while after several failures in a row; its messages stay with the broker."""

import logging
import threading
from collections import deque
from typing import Literal, TypeAlias

from pump.attribute import Attribute, Errors, Rest, Scope, Steps, consists_of, is_decision
from pump.checks import refuse, wrong_duration, wrong_errors, wrong_number
from pump.duration import Duration, seconds
from pump.errors import DontAckAction

Pass: TypeAlias = Literal["call", "trial"]


class CircuitBreaker(Attribute):
    """Opens after `failures` failures in a row within `window`. While open, no message is handled or acknowledged.

    After `reset_after` one message at a time is handled as a trial: its success closes the breaker, its failure opens
    it again. Errors of the types `on` are failures. Decisions and cancellation are neither success nor failure; so put
    this attribute beneath those that turn errors into decisions.
    """

    declares = frozenset({DontAckAction})

    def __init__(
        self,
        failures: int = 5,
        *,
        window: Duration = 60.0,
        reset_after: Duration = 30.0,
        on: Errors = Exception,
    ) -> None:
        refuse(
            "CircuitBreaker",
            failures=wrong_number(failures, 1),
            window=wrong_duration(window, zero=False),
            reset_after=wrong_duration(reset_after, zero=False),
            on=wrong_errors(on),
        )
        self.failures = failures
        self.window = seconds(window)
        self.reset_after = seconds(reset_after)
        self.on = on

    def acts_on(self) -> Errors:
        """The errors of the types `on`."""
        return self.on

    def prepare(self, scope: Scope) -> Attribute:
        """A closed breaker for one pipeline."""
        return _Breaking(self, scope)


class _Breaking(Attribute):
    """One breaker: closed, open, or half-open with one trial at a time. Threads may share it."""

    def __init__(self, options: CircuitBreaker, scope: Scope) -> None:
        self._options = options
        self._scope = scope
        self._lock = threading.Lock()
        self._failed_at: deque[float] = deque(maxlen=options.failures)
        self._opened_at: float | None = None
        self._on_trial = False

    def around(self, request: object, rest: Rest) -> Steps:
        admitted = self._admit(rest.clock.monotonic())
        if admitted is None:
            raise DontAckAction("circuit breaker is open")
        try:
            result = yield from rest(request)
        except BaseException as error:
            if is_decision(error) or not consists_of(error, self._options.on):
                self._neither(admitted)
            elif self._failed(admitted, rest.clock.monotonic()):
                self._tell("open", logging.WARNING, error)
            raise
        if self._succeeded(admitted):
            self._tell("closed", logging.INFO)
        return result

    def _tell(self, state: str, level: int, error: BaseException | None = None) -> None:
        self._scope.log(level, f"Circuit breaker is {state}", error=error)
        where = {"channel": self._scope.channel, "handler": self._scope.handler}
        self._scope.telemetry.tell("circuit_breaker", state=state, error=error, **where)

    def _admit(self, now: float) -> Pass | None:
        """Whether the handler may be called: as a normal call, as a trial, or not (None). Report how the call ended."""
        with self._lock:
            if self._opened_at is None:
                return "call"
            if self._on_trial or now - self._opened_at < self._options.reset_after:
                return None
            self._on_trial = True
            return "trial"

    def _succeeded(self, admitted: Pass) -> bool:
        """A call succeeded; returns whether that closed the circuit. A late success does not close an open one."""
        with self._lock:
            if admitted == "trial":
                self._on_trial = False
                self._opened_at = None
            if self._opened_at is None:
                self._failed_at.clear()
            return admitted == "trial"

    def _failed(self, admitted: Pass, now: float) -> bool:
        """A call failed; returns whether that opened the circuit."""
        with self._lock:
            if admitted == "call" and not self._is_too_much(now):
                return False
            if admitted == "trial":
                self._on_trial = False
            self._opened_at = now
            return True

    def _neither(self, admitted: Pass) -> None:
        """A call was neither success nor failure: if it was the trial, another one may follow."""
        with self._lock:
            if admitted == "trial":
                self._on_trial = False

    def _is_too_much(self, now: float) -> bool:
        if self._opened_at is not None:
            return False
        self._failed_at.append(now)
        return len(self._failed_at) == self._failed_at.maxlen and now - self._failed_at[0] <= self._options.window
