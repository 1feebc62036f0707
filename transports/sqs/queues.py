"""What is made on the broker: queues, SNS topics, and the subscriptions between them.

A channel is a queue. A topic is an SNS topic of its name if there is one, and else the queue of its name. An SNS topic
is made for a subscription whose channel is called otherwise than its topic, and for the publication of an Event.
"""

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pump.errors import ConfigurationError, SetupError
from pump.request import Event
from pump.subscription import Missing, Publication, Subscription
from pump.transport_kit.destinations import Destinations
from pump.transports.sqs.client import NoSuchQueue, SqsClients, SqsDenied, errors
from pump.transports.sqs.names import broker_name, place_of, topic_arn

log: Final = logging.getLogger("pump.transports.sqs")

RETENTION_SECONDS: Final = 14 * 86400
"""Of queues that are made here: the longest there is."""
DEFAULT_RETENTION_SECONDS: Final = 4 * 86400
ASSUMED_LIMIT: Final = 10
"""The maxReceiveCount of a queue that does not let us read its attributes."""
LOWEST_LIMIT: Final = 100
HIGHEST_LIMIT: Final = 1000
"""Of maxReceiveCount: the first one where a RedrivePolicy is made here, the second by the broker's own rule."""


class SqsQueue(NamedTuple):
    """One queue as a consumer needs to know it."""

    name: str
    url: str
    limit: int | None = None
    """After how many deliveries the broker itself gives a message up."""
    retention: float = DEFAULT_RETENTION_SECONDS
    """After how many seconds the broker removes a message."""


class SqsRoute(NamedTuple):
    """Where what is posted to a topic goes: to a queue, or to an SNS topic."""

    queue_url: str = ""
    topic_arn: str = ""
    is_heard: bool = True
    """Whether anything is subscribed to the SNS topic."""


class SqsQueues:
    """The queues and topics of one account. From any thread."""

    def __init__(self, clients: SqsClients, *, fifo: bool, default_dead_letter: str) -> None:
        self._clients: Final = clients
        self._fifo: Final = fifo
        self._default_dead_letter: Final = default_dead_letter
        self._lock: Final = threading.Lock()
        self._named: Final[dict[str, str]] = {}
        """What the names on the broker stand for."""
        self._told_no_topics = False

    # -- names

    def destinations(self, subscription: Subscription) -> Destinations:
        """The names that a subscription uses, as they are written in the program; two that become one are an error."""
        found = Destinations.of(subscription, self._default_dead_letter)
        names = (found.topic, found.channel, *found.dead_letters)
        own, dead = map(self.name, names[:2]), map(self.name, names[2:])
        if {*own} & {*dead}:
            raise ConfigurationError(f"Subscription {subscription} would receive its own dead letters")
        return found

    def name(self, name: str) -> str:
        """What a channel or topic is called on the broker; ConfigurationError if another one is called so as well."""
        made = broker_name(name, fifo=self._fifo)
        plain = name.replace(".fifo", "") if self._fifo else name
        with self._lock:
            first = self._named.setdefault(made, plain)
        if first != plain:
            raise ConfigurationError(f"sqs: {first!r} and {name!r} are both the queue {made!r}")
        return made

    # -- setting up

    def prepare_channel(self, subscription: Subscription) -> None:
        """Create or validate everything that a subscription needs, as it says."""
        if subscription.missing == "assume":
            return
        names = self.destinations(subscription)
        dead = [self._ensure(name, subscription.missing, names.channel) for name in names.dead_letters]
        policy = self._redrive_policy(subscription, dead) if names.dead_letter is not None else {}
        queue = self._ensure(names.channel, subscription.missing, names.channel, policy)
        self._prepare_topic_of(names, queue, subscription.missing)

    def prepare_topic(self, publication: Publication) -> None:
        """Create or validate where a publication goes, as it says. An Event goes to an SNS topic."""
        if publication.missing == "assume":
            return
        topic = publication.destination
        try:
            self.route(topic)
        except NoSuchQueue:
            if publication.missing == "validate":
                raise SetupError(
                    f"sqs: topic {topic!r}: there is neither a queue nor an SNS topic {self.name(topic)!r}, and "
                    "missing='validate' does not make one"
                ) from None
            if issubclass(publication.request, Event):
                self._create_topic(topic)
            else:
                self._create(topic, {})

    def open(self, subscription: Subscription) -> SqsQueue:
        """What a consumer needs to know of its queue, created or validated as its subscription says."""
        self.prepare_channel(subscription)
        name = self.name(self.destinations(subscription).channel)
        url = self.url(name)
        try:
            attributes = self._attributes(url, "RedrivePolicy", "MessageRetentionPeriod")
        except SqsDenied as error:
            text = "%s; queue %s: maxReceiveCount is taken to be %d"
            log.warning(text, error, name, ASSUMED_LIMIT)
            return SqsQueue(name, url, ASSUMED_LIMIT)
        retention = float(attributes.get("MessageRetentionPeriod", DEFAULT_RETENTION_SECONDS))
        return SqsQueue(name, url, _limit(attributes.get("RedrivePolicy", "")), retention)

    def url(self, name: str) -> str:
        """The URL of the queue that is called so on the broker; NoSuchQueue if there is none."""
        with errors(f"queue {name}"):
            return str(self._clients.sqs().get_queue_url(QueueName=name)["QueueUrl"])

    def _ensure(self, name: str, missing: Missing, channel: str, policy: Mapping[str, str] | None = None) -> str:
        """The URL of a queue, which is created if it is missing and may be."""
        try:
            return self.url(self.name(name))
        except NoSuchQueue:
            if missing == "create":
                return self._create(name, policy or {})
            raise SetupError(
                f"sqs: channel {channel!r}: there is no queue {self.name(name)!r}, and missing='validate' does not "
                "make it"
            ) from None

    def _create(self, name: str, more: Mapping[str, str]) -> str:
        attributes = {"MessageRetentionPeriod": str(RETENTION_SECONDS), **more}
        if self._fifo:
            attributes["FifoQueue"] = "true"
        own = self.name(name)
        with errors(f"queue {own} cannot be created"):
            try:
                return str(self._clients.sqs().create_queue(QueueName=own, Attributes=attributes)["QueueUrl"])
            except self._clients.sqs().exceptions.QueueNameExists:  # another has just made it, with other attributes
                return self.url(own)

    def _redrive_policy(self, subscription: Subscription, dead_letter_urls: Sequence[str]) -> Mapping[str, str]:
        """The pump's own budget comes first; this is for what ends one process after another.

        None where handlers may leave messages as often as they wish.
        """
        if subscription.may_block or subscription.max_attempts is None or not dead_letter_urls:
            return {}
        most = HIGHEST_LIMIT if self._fifo else min(HIGHEST_LIMIT, max(LOWEST_LIMIT, 10 * subscription.max_attempts))
        arn = self._attributes(dead_letter_urls[0], "QueueArn")["QueueArn"]
        return {"RedrivePolicy": json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": str(most)})}

    def _attributes(self, url: str, *names: str) -> Mapping[str, str]:
        with errors(f"the attributes of {url}"):
            reply = self._clients.sqs().get_queue_attributes(QueueUrl=url, AttributeNames=[*names])
        found: Mapping[str, str] = reply.get("Attributes", {})
        return found

    # -- topics

    def route(self, topic: str) -> SqsRoute:
        """Where what is posted to a topic goes; NoSuchQueue if there is nothing of that name."""
        name = self.name(topic)
        try:
            url = self.url(name)
        except NoSuchQueue:
            url = ""
        arn, is_heard = self._find_topic(name, url)
        if arn:
            return SqsRoute(topic_arn=arn, is_heard=is_heard)
        if url:
            return SqsRoute(queue_url=url)
        raise NoSuchQueue(f"sqs: there is neither a queue nor an SNS topic {name!r}")

    def subscribed_queues(self, arn: str) -> Sequence[str]:
        """The URLs of all queues that are subscribed to an SNS topic; SetupError if anything else is, too.

        A queue of another account or region is something else: the URL of its name here is another queue's.
        """
        urls = []
        for subscription in self._subscriptions(arn):
            protocol, endpoint = subscription["Protocol"], subscription["Endpoint"]
            if protocol != "sqs":
                raise SetupError(f"sqs: {protocol} is subscribed to {arn}")
            if place_of(endpoint) != place_of(arn):
                raise SetupError(f"sqs: {endpoint}, of another account or region, is subscribed to {arn}")
            urls.append(self.url(endpoint.rpartition(":")[2]))
        return urls

    def _prepare_topic_of(self, names: Destinations, queue_url: str, missing: Missing) -> None:
        """Have the queue receive what is posted to its topic.

        A queue that is called like the topic needs no SNS topic, but where there is one, it is subscribed to it.
        """
        topic = self.name(names.topic)
        if names.topic == names.channel:
            arn, _ = self._find_topic(topic, queue_url)
            if arn:
                self._subscribe(arn, queue_url, names.channel, missing)
            return
        try:
            namesake = self.url(topic)
        except NoSuchQueue:
            namesake = ""
        arn, _ = self._find_topic(topic, namesake or queue_url)
        if not arn:
            if missing == "validate":
                raise SetupError(
                    f"sqs: channel {names.channel!r}: there is no SNS topic {topic!r}, and missing='validate' does "
                    "not make it"
                )
            arn = self._create_topic(names.topic)
        self._subscribe(arn, queue_url, names.channel, missing)
        if namesake and missing == "create":  # until now what was posted went there directly
            self._subscribe(arn, namesake, names.topic, missing)

    def _find_topic(self, name: str, queue_url: str) -> tuple[str, bool]:
        """The ARN of the SNS topic, and whether anything is subscribed to it; "" if there is no such topic."""
        try:
            if queue_url:
                arn = topic_arn(self._attributes(queue_url, "QueueArn")["QueueArn"], name)
            else:
                arn = next((each for each in self._topics() if each.rpartition(":")[2] == name), "")
            if not arn:
                return "", False
            with errors(f"SNS topic {name}"):
                attributes = self._clients.sns().get_topic_attributes(TopicArn=arn)["Attributes"]
        except NoSuchQueue:
            return "", False
        except SqsDenied as error:
            if not self._told_no_topics:
                self._told_no_topics = True
                log.warning("%s: it is taken for granted that no topic is an SNS topic", error)
            return "", False
        return arn, attributes.get("SubscriptionsConfirmed", "1") != "0"

    def _topics(self) -> Iterator[str]:
        with errors("SNS topics cannot be listed"):
            for page in self._clients.sns().get_paginator("list_topics").paginate():
                yield from (each["TopicArn"] for each in page.get("Topics", ()))

    def _create_topic(self, topic: str) -> str:
        name = self.name(topic)
        attributes = {"FifoTopic": "true"} if self._fifo else {}
        with errors(f"SNS topic {name} cannot be created"):
            return str(self._clients.sns().create_topic(Name=name, Attributes=attributes)["TopicArn"])

    def _subscriptions(self, arn: str) -> Iterator[Mapping[str, Any]]:
        with errors(f"the subscriptions of {arn} cannot be listed"):
            pages = self._clients.sns().get_paginator("list_subscriptions_by_topic").paginate(TopicArn=arn)
            for page in pages:
                yield from page.get("Subscriptions", ())

    def _subscribe(self, arn: str, queue_url: str, channel: str, missing: Missing) -> None:
        attributes = self._attributes(queue_url, "QueueArn", "Policy")
        queue_arn = attributes["QueueArn"]
        if any(each["Endpoint"] == queue_arn for each in self._subscriptions(arn)):
            return
        if missing == "validate":
            raise SetupError(
                f"sqs: channel {channel!r} is not subscribed to {arn}, and missing='validate' does not subscribe it"
            )
        with errors(f"queue {channel} cannot be opened to {arn}"):
            self._clients.sqs().set_queue_attributes(
                QueueUrl=queue_url, Attributes={"Policy": _with_topic(attributes.get("Policy", ""), queue_arn, arn)}
            )
        with errors(f"queue {channel} cannot be subscribed to {arn}"):
            self._clients.sns().subscribe(
                TopicArn=arn,
                Protocol="sqs",
                Endpoint=queue_arn,
                Attributes={"RawMessageDelivery": "true"},
                ReturnSubscriptionArn=True,
            )


def _limit(policy: str) -> int | None:
    """The maxReceiveCount of a RedrivePolicy; None if there is none."""
    try:
        return int(json.loads(policy)["maxReceiveCount"]) if policy else None
    except (ValueError, TypeError, KeyError):
        return ASSUMED_LIMIT


def _with_topic(policy: str, queue_arn: str, arn: str) -> str:
    """A queue's access policy that lets the SNS topic send to it, beside whatever else it says."""
    try:
        document = json.loads(policy) if policy else {}
    except ValueError:
        document = {}
    statements = document.get("Statement", [])
    statements = statements if isinstance(statements, list) else [statements]
    own = {
        "Effect": "Allow",
        "Principal": {"Service": "sns.amazonaws.com"},
        "Action": "sqs:SendMessage",
        "Resource": queue_arn,
        "Condition": {"ArnEquals": {"aws:SourceArn": arn}},
    }
    return json.dumps({"Version": "2012-10-17", **document, "Statement": [*statements, own]})
