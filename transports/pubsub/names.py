"""What topics and subscriptions are called at Pub/Sub."""

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote

from pump.errors import ConfigurationError
from pump.subscription import Subscription
from pump.transport_kit.destinations import Destinations

RETRY: Final = ".retry"
"""At the end of the names of the topic and the subscription by which messages come again to one channel alone."""
_ID: Final = re.compile(r"(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)
_FULL: Final = re.compile(r"projects/[^/]+/(topics|subscriptions)/[^/]+")


def resource(project: str, kind: str, name: str) -> str:
    """`projects/<project>/<kind>/<name>`; a name that is written so already, as of another project, stays."""
    found = _FULL.fullmatch(name)
    if found and found[1] == kind:
        return name
    written = quote(name, safe="~+")
    if not _ID.fullmatch(written):
        raise ConfigurationError(
            f"pubsub: {name!r} cannot be the name of a {kind.removesuffix('s')}: it must begin with a letter, but not "
            "with goog, and have 3 to 255 characters"
        )
    return f"projects/{project}/{kind}/{written}"


def topic_name(project: str, name: str) -> str:
    """The topic of that name, or of the dead letters of that name."""
    return resource(project, "topics", name)


def channel_name(project: str, name: str) -> str:
    """The subscription of that name. For dead letters in a topic of another project it is in that project."""
    found = _FULL.fullmatch(name)
    if found and found[1] == "topics":
        return name.replace("/topics/", "/subscriptions/")
    return resource(project, "subscriptions", name)


@dataclass(frozen=True, slots=True)
class PubSubNames:
    """Everything that one channel uses, by its full name."""

    topic: str
    channel: str
    retry_topic: str
    retry: str
    """The subscription by which deferred messages come again."""

    @classmethod
    def of(cls, project: str, destinations: Destinations) -> Self:
        """Those of a channel."""
        channel = channel_name(project, destinations.channel)
        retry = channel + RETRY
        if not _ID.fullmatch(retry.rpartition("/")[2]):
            raise ConfigurationError(f"pubsub: the channel's name {destinations.channel!r} is too long by {len(RETRY)}")
        return cls(
            topic_name(project, destinations.topic), channel, retry.replace("/subscriptions/", "/topics/"), retry
        )


def destinations_of(subscription: Subscription) -> Destinations:
    """The names of a subscription as it says them."""
    return Destinations.of(subscription)
