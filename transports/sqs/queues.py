"""Creates and validates queues, SNS topics, and the subscriptions between them.

A channel is a queue. A topic is the SNS topic of its name if there is one, else the queue of its name. An SNS topic is
created for a subscription whose channel and topic have different names, and for the publication of an Event.
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
"""The retention of queues that are created here: the longest possible."""
DEFAULT_RETENTION_SECONDS: Final = 4 * 86400
ASSUMED_LIMIT: Final = 10
"""The assumed maxReceiveCount of a queue whose attributes may not be read."""
LOWEST_LIMIT: Final = 100
HIGHEST_LIMIT: Final = 1000
"""The highest maxReceiveCount: of a RedrivePolicy that is created here, and of any one."""


class SqsQueue(NamedTuple):
    """What a consumer must know about its queue."""

    name: str
    url: str
    limit: int | None = None
    """The number of deliveries after which the broker gives a message up."""
    retention: float = DEFAULT_RETENTION_SECONDS
    """The age in seconds at which the broker removes a message."""


class SqsRoute(NamedTuple):
    """Where messages for a topic go: to a queue or an SNS topic."""

    queue_url: str = ""
    topic_arn: str = ""
    is_heard: bool = True
    """Whether anything is subscribed to the SNS topic."""


class SqsQueues:
    """The queues and topics of one account. Any thread may use it."""

    def __init__(self, clients: SqsClients, *, fifo: bool, default_dead_letter: str) -> None:
        self._clients: Final = clients
        self._fifo: Final = fifo
        self._default_dead_letter: Final = default_dead_letter
        self._lock: Final = threading.Lock()
        self._named: Final[dict[str, str]] = {}
        """The names in the program, by the names on the broker."""
        self._told_no_topics = False

    # -- names

    def destinations(self, subscription: Subscription) -> Destinations:
        """The names that a subscription uses, as the program writes them. They must differ on the broker too."""
        found = Destinations.of(subscription, self._default_dead_letter)
        names = (found.topic, found.channel, *found.dead_letters)
        own, dead = map(self.name, names[:2]), map(self.name, names[2:])
        if {*own} & {*dead}:
            raise ConfigurationError(f"Subscription {subscription} would receive its own dead letters")
        return found

    def name(self, name: str) -> str:
        """The name of a channel or topic on the broker; ConfigurationError if another one has the same there."""
        made = broker_name(name, fifo=self._fifo)
        plain = name.replace(".fifo", "") if self._fifo else name
        with self._lock:
            first = self._named.setdefault(made, plain)
        if first != plain:
            raise ConfigurationError(
                f"sqs: {first!r} and {name!r} would both be the queue {made!r}: rename one of them"
            )
        return made

    # -- setting up

    def prepare_channel(self, subscription: Subscription) -> None:
        """Create or validate everything that a subscription needs."""
        if subscription.missing == "assume":
            return
        names = self.destinations(subscription)
        dead = [self._ensure(name, subscription.missing, names.channel) for name in names.dead_letters]
        policy = self._redrive_policy(subscription, dead) if names.dead_letter is not None else {}
        queue = self._ensure(names.channel, subscription.missing, names.channel, policy)
        self._prepare_topic_of(names, queue, subscription.missing)

    def prepare_topic(self, publication: Publication) -> None:
        """Create or validate the topic of a publication. An Event goes to an SNS topic."""
        if publication.missing == "assume":
            return
        topic = publication.destination
        try:
            self.route(topic)
        except NoSuchQueue:
            if publication.missing == "validate":
                raise SetupError(
                    f"sqs: topic {topic!r}: there is neither a queue nor an SNS topic {self.name(topic)!r}, and "
                    "missing='validate' does not create one"
                ) from None
            if issubclass(publication.request, Event):
                self._create_topic(topic)
            else:
                self._create(topic, {})

    def open(self, subscription: Subscription) -> SqsQueue:
        """Create or validate a consumer's queue; returns what the consumer must know about it."""
        self.prepare_channel(subscription)
        name = self.name(self.destinations(subscription).channel)
        url = self.url(name)
        try:
            attributes = self._attributes(url, "RedrivePolicy", "MessageRetentionPeriod")
        except SqsDenied as error:
            text = "sqs: the attributes of queue %s cannot be read, so its maxReceiveCount is assumed to be %d: %s"
            log.warning(text, name, ASSUMED_LIMIT, error)
            return SqsQueue(name, url, ASSUMED_LIMIT)
        retention = float(attributes.get("MessageRetentionPeriod", DEFAULT_RETENTION_SECONDS))
        return SqsQueue(name, url, _limit(attributes.get("RedrivePolicy", "")), retention)

    def url(self, name: str) -> str:
        """The URL of the queue of this name; NoSuchQueue if there is none."""
        with errors(f"queue {name}"):
            return str(self._clients.sqs().get_queue_url(QueueName=name)["QueueUrl"])

    def _ensure(self, name: str, missing: Missing, channel: str, policy: Mapping[str, str] | None = None) -> str:
        """The URL of a queue. A missing queue is created, if that is allowed."""
        try:
            return self.url(self.name(name))
        except NoSuchQueue:
            if missing == "create":
                return self._create(name, policy or {})
            raise SetupError(
                f"sqs: channel {channel!r}: there is no queue {self.name(name)!r}, and missing='validate' does not "
                "create it"
            ) from None

    def _create(self, name: str, more: Mapping[str, str]) -> str:
        attributes = {"MessageRetentionPeriod": str(RETENTION_SECONDS), **more}
        if self._fifo:
            attributes["FifoQueue"] = "true"
        own = self.name(name)
        with errors(f"queue {own} cannot be created"):
            try:
                return str(self._clients.sqs().create_queue(QueueName=own, Attributes=attributes)["QueueUrl"])
            except self._clients.sqs().exceptions.QueueNameExists:  # another process has created it differently
                return self.url(own)

    def _redrive_policy(self, subscription: Subscription, dead_letter_urls: Sequence[str]) -> Mapping[str, str]:
        """A policy for messages that kill one process after another; other messages are given up by the pump before.

        None if the subscription allows any number of nacks.
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
        """Where messages for a topic go; NoSuchQueue if nothing has that name."""
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
        """The URLs of all queues that are subscribed to an SNS topic; SetupError if anything else is subscribed.

        That includes a queue of another account or region: the URL for its name here would be another queue's.
        """
        urls = []
        for subscription in self._subscriptions(arn):
            protocol, endpoint = subscription["Protocol"], subscription["Endpoint"]
            if protocol != "sqs":
                raise SetupError(
                    f"sqs: a message for {arn} cannot be delayed: {protocol} is subscribed to it, not a queue"
                )
            if place_of(endpoint) != place_of(arn):
                raise SetupError(
                    f"sqs: a message for {arn} cannot be delayed: {endpoint} is in another account or region"
                )
            urls.append(self.url(endpoint.rpartition(":")[2]))
        return urls

    def _prepare_topic_of(self, names: Destinations, queue_url: str, missing: Missing) -> None:
        """Subscribe the queue to its topic.

        A queue with the topic's name needs no SNS topic, but if there is one, the queue is subscribed to it.
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
        if namesake and missing == "create":  # until now, messages were sent to that queue directly
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
                log.warning("sqs: no topic is assumed to be an SNS topic: %s", error)
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
    """The queue's access policy, extended so that the SNS topic may send to it."""
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
