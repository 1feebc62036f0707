"""An Intake for tests: messages have names, and the test decides what others would tell the Intake."""

from collections.abc import Iterable, Sequence
from typing import Any

from pump.message import Message
from pump.pumps.intake import Intake
from support.court import message


class Desk:
    """An Intake; the test decides the time, and what others would tell the Intake."""

    def __init__(self, **options: Any) -> None:
        self.now = 0.0
        self.suspects: set[str] = set()
        self.explained: set[str] = set()
        """The messages that certainly went back without having ended a process."""
        self.dues: dict[str, float] = {}
        self.dropped: list[str] = []
        self.intake = Intake(
            **{"largest": 8, **options},
            suspect=lambda each: each.identity in self.suspects,
            unknown=lambda each: each.identity not in self.explained,
            due=lambda each: self.dues.get(each.identity, 0.0),
            dropped=lambda each: self.dropped.append(each.identity),
        )

    def offer(self, *messages: Message | str) -> list[Message]:
        offered = [message(each) if isinstance(each, str) else each for each in messages]
        self.intake.offer(offered, self.now)
        return offered

    def take(self) -> str | None:
        taken = self.intake.take(self.now)
        return None if taken is None else taken.id

    def take_all(self) -> str:
        taken = []
        while (name := self.take()) is not None:
            taken.append(name)
        return " ".join(taken)

    def settle(self, name: str) -> None:
        self.intake.settled(self.in_hand(name))

    def in_hand(self, name: str) -> Message:
        return next(each for each in self.intake.in_hand if each.id == name)

    def handle(self, *names: str) -> None:
        """Offer these messages, handle each and settle it."""
        for name in names:
            self.offer(name)
            assert self.take() == name
            self.settle(name)

    def hold(self, name: str, due: float) -> None:
        self.intake.hold(self.in_hand(name), due)

    def release(self, name: str, due: float) -> str:
        return names(self.intake.release(self.in_hand(name), due))

    def hand_back(self) -> str:
        return names(self.intake.to_hand_back(self.now))

    @property
    def waiting(self) -> str:
        return names(self.intake.waiting)


def names(messages: Iterable[Message]) -> str:
    return " ".join(each.id for each in messages)


def of(key: str, *each: str) -> Sequence[Message]:
    return [message(name, key=key) for name in each]


def leased(name: str, delivery: int, **options: Any) -> Message:
    return message(name, receipt=delivery, deliveries=delivery, **{"lease_expires": 100.0, **options})
