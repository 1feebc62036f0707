"""The pump that blocks: one thread, one message at a time. `pump.pumps.proactor` is its twin."""

from collections.abc import Callable
from typing import Final

from pump.duration import seconds
from pump.message import Message
from pump.pumps.channel import Channel


class Reactor:
    """Takes messages from a channel, one after another, and carries out the judge's verdict on each."""

    def __init__(self, channel: Channel, dispatch: Callable[[Message], object], *, empty_delay: float = 0.0) -> None:
        self.channel: Final = channel
        self.judge: Final = channel.judge
        self._dispatch: Final = dispatch
        self._clock: Final = self.judge.clock
        self._receive_timeout: Final = seconds(self.judge.rules.receive_timeout)
        self._grace: Final = seconds(self.judge.rules.grace)
        self._empty_delay: Final = empty_delay

    def run(self) -> None:
        """Pump until the judge stops it. Nothing else ends it."""
        judge = self.judge
        try:
            while judge.running:
                try:
                    message = self.channel.take()
                    if message is None and self.channel.fill(self._receive_timeout):
                        continue  # the pump may have been stopped meanwhile
                except Exception as error:
                    self._clock.wait(judge.stopping, judge.disconnected(error))
                    continue
                if message is not None:
                    self._turn(message)
                elif self._empty_delay:
                    self._clock.wait(judge.stopping, self._empty_delay)
            self.channel.finish(self._grace)
        finally:
            self.channel.close()

    def _turn(self, message: Message) -> None:
        judge = self.judge
        verdict = judge.arrived(message)
        if verdict is None:
            place = judge.begins(message)
            try:
                self._dispatch(message)
            except BaseException as error:
                verdict = judge.failed(message, error)
            else:
                verdict = judge.handled(message)
            judge.ends(place, message, verdict)
        try:
            verdict.settle(self.channel, message)
        except Exception as error:
            judge.unsettled(message, verdict, error)
        else:
            judge.settled(message, verdict)
        if verdict.pause:
            self._clock.wait(judge.stopping, verdict.pause)
