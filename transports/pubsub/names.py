"""The names of topics and subscriptions at Pub/Sub."""

import re
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import quote

from pump.errors import ConfigurationError
from pump.subscription import Subscription
from pump.transport_kit.destinations import Destinations

RETRY: Final = ".retry"
"""The end of the names of a channel's retry topic and retry subscription, by which its messages come again."""
_ID: Final = re.compile(r"(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)
_FULL: Final = re.compile(r"projects/[^/]+/(topics|subscriptions)/[^/]+")


def resource(project: str, kind: str, name: str) -> str:
    """`projects/<project>/<kind>/<name>`; a name of this form, as of another project, is not changed."""
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
    """The full name of a topic, which may be one of dead letters."""
    return resource(project, "topics", name)


def channel_name(project: str, name: str) -> str:
    """The full name of a subscription. If its topic is one of another project, it is in that project."""
    found = _FULL.fullmatch(name)
    if found and found[1] == "topics":
        return name.replace("/topics/", "/subscriptions/")
    return resource(project, "subscriptions", name)


@dataclass(frozen=True, slots=True)
class PubSubNames:
    """The full names that one channel uses."""

    topic: str
    channel: str
    retry_topic: str
    retry: str
    """The subscription by which deferred messages come again."""

    @classmethod
    def of(cls, project: str, destinations: Destinations) -> Self:
        """The names of a channel."""
        channel = channel_name(project, destinations.channel)
        retry = channel + RETRY
        if not _ID.fullmatch(retry.rpartition("/")[2]):
            raise ConfigurationError(
                f"pubsub: channel {destinations.channel!r}: its name may have at most {255 - len(RETRY)} characters"
            )
        return cls(
            topic_name(project, destinations.topic), channel, retry.replace("/subscriptions/", "/topics/"), retry
        )


def destinations_of(subscription: Subscription) -> Destinations:
    """The names that a subscription uses, as they are written in the program."""
    return Destinations.of(subscription)
