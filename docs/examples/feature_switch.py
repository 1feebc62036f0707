"""A feature is switched off. Its messages wait, none is lost, and all are handled when it is switched on again."""

from collections.abc import Mapping
from dataclasses import dataclass
from threading import Event

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.handlers import FeatureSwitch, Switches


@dataclass(frozen=True)
class ShipParcel(Command):
    number: int


PARCELS = 5
shipped: list[int] = []
held, done = Event(), Event()


class ShipParcelHandler(RequestHandler[ShipParcel]):
    @FeatureSwitch("shipping", dont_ack=True)
    def handle(self, parcel: ShipParcel) -> None:
        shipped.append(parcel.number)
        if len(shipped) == PARCELS:
            done.set()


def watch(event: str, fields: Mapping[str, object]) -> None:
    if event == "nack":
        print(f"held: {fields['message']}")
        held.set()


switches = Switches({"shipping": False})
dispatcher = Dispatcher(
    "memory://",
    handlers=[ShipParcelHandler],
    subscriptions=[Subscription(ShipParcel, topic="parcels", dont_ack_delay=0.2)],
    publications=[Publication(ShipParcel, topic="parcels")],
    switches=switches,
    listeners=[watch],
)

if __name__ == "__main__":
    with dispatcher:
        for number in range(1, PARCELS + 1):
            dispatcher.post(ShipParcel(number))
        assert held.wait(10), "the first parcel is held"
        assert shipped == [], "and so are those behind it"

        switches.set("shipping", on=True)
        assert done.wait(10), "once the switch is on, they all leave"

    assert shipped == [1, 2, 3, 4, 5]
    print(f"shipped {shipped}: none lost, none twice, in order")
