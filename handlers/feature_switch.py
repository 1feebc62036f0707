"""Turn a handler off and on while the program runs."""

import logging
import threading
from collections.abc import Mapping

from pump.attribute import Attribute, Rest, Scope, Steps, SwitchProvider, is_decision
from pump.checks import refuse, wrong_switches, wrong_text
from pump.errors import DontAckAction


class FeatureSwitch(Attribute):
    """While the switch of this name is off, the handler does not run.

    Its messages are then acknowledged without being handled. With `dont_ack=True` they stay with the broker until the
    switch is on again; no attempt is counted, and a channel that has only this request receives nothing meanwhile. A
    switch that is not set has the state `default`, which is on. `provider`, or else `Dispatcher(switches=…)`, says
    which switches are on; while it fails, its last answer is used.
    """

    def __init__(
        self,
        name: str,
        *,
        dont_ack: bool = False,
        default: bool = True,
        provider: SwitchProvider | None = None,
    ) -> None:
        refuse("FeatureSwitch", name=wrong_text(name), provider=wrong_switches(provider))
        self.name = name
        self.dont_ack = dont_ack
        self.default = default
        self.provider = provider
        self.declares = frozenset({DontAckAction}) if dont_ack else frozenset()

    def prepare(self, scope: Scope) -> Attribute:
        """The switch for one pipeline, with the provider to ask."""
        return _Switched(self, scope)


class _Switched(Attribute):
    def __init__(self, options: FeatureSwitch, scope: Scope) -> None:
        self._options = options
        self._scope = scope
        provider = scope.switches if options.provider is None else options.provider
        self._ask = provider.get if isinstance(provider, Mapping) else provider
        self._lock = threading.Lock()
        self._on: bool | None = None
        self._fails = False

    def around(self, request: object, rest: Rest) -> Steps:
        if self._is_on():
            return (yield from rest(request))
        if self._options.dont_ack:
            raise DontAckAction(f"switch {self._options.name} is off", until=self._is_over)
        return rest.skip()

    def _is_on(self) -> bool:
        try:
            on = self._asked()
        except Exception as error:
            if is_decision(error):
                raise
            self._failed(error)
            on = self._options.default if self._on is None else self._on
        else:
            self._fails = False
        self._note(on=on)
        return on

    def _is_over(self) -> bool:
        """Whether the switch is on again. If the provider fails, True: then the next message asks once more."""
        try:
            on = self._asked()
        except Exception:
            return True
        self._note(on=on)
        return on

    def _asked(self) -> bool:
        answer = None if self._ask is None else self._ask(self._options.name)
        return self._options.default if answer is None else answer

    def _note(self, *, on: bool) -> None:
        with self._lock:  # when several pumps ask at once, only one reports the change
            before, self._on = self._on, on
        if on is not before and not (before is None and on):
            self._tell_change(on=on)

    def _failed(self, error: Exception) -> None:
        if not self._fails:
            self._fails = True
            text = f"The state of switch {self._options.name} could not be read; its last state is used"
            self._scope.log(logging.WARNING, text, error=error)

    def _tell_change(self, *, on: bool) -> None:
        fate = "not acknowledged" if self._options.dont_ack else "acknowledged without being handled"
        state = "on" if on else f"off: messages are {fate}"
        self._scope.log(logging.INFO if on else logging.WARNING, f"Switch {self._options.name} is {state}")
        where = {"channel": self._scope.channel, "handler": self._scope.handler}
        self._scope.telemetry.tell("switch", switch=self._options.name, on=on, **where)
