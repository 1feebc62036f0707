"""A Pub/Sub service for tests: google.pubsub.v1 over gRPC, as Google documents it, with faults on order.

As a program: `python pubsub_server.py '{"port": 8085, "journal": "/tmp/x"}'`. What it does beyond storing messages:

* an acknowledgement deadline per delivery; one that ends, or is set to 0, makes the message available again;
* ordering keys: one batch of a key is outstanding at a time, and when a message of a key comes again, those behind it
  that are outstanding do so too; all messages of one publish request have the same key;
* a dead-letter policy: `delivery_attempt`, and forwarding with Google's own attributes after the last one;
* a retry policy: exponential back-off after a delivery that failed; filters on attributes; seek to a time;
* exactly-once: acknowledgements and deadlines that come too late fail, each id with its reason;
* the limits: names, sizes, attributes, deadlines; and what is stored outlives the process, as it does at Google.

What it does not do: push, export, snapshots, schemas, retention (nothing is ever removed by its age), redelivery of
acknowledged messages of a key, and flow control by bytes.
"""

import base64
import contextlib
import heapq
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import any_pb2, empty_pb2
from google.pubsub_v1 import types
from google.rpc import code_pb2, error_details_pb2, status_pb2

CONTROL = "/pump.test.Control/Do"
"""The call that tells the server what should go wrong: JSON to JSON."""
NAME = re.compile(r"projects/[^/]+/(topics|subscriptions)/(?!goog)[A-Za-z][\w.~+%-]{2,254}")
LARGEST = 10_000_000
MOST_MESSAGES = 1000
MOST_ATTRIBUTES, LONGEST_NAME, LONGEST_VALUE, LONGEST_KEY = 100, 256, 1024, 1024
LONGEST_DEADLINE = 600
DEFAULT_ATTEMPTS = 5
LONGEST_PULL = 90.0
THREADS = 200

pb = {name: getattr(types, name).pb() for name in dir(types) if hasattr(getattr(types, name), "pb")}
REQUESTS = {
    "CreateTopic": "Topic",
    "CreateSubscription": "Subscription",
    **{
        name: f"{name}Request"
        for name in (
            "GetTopic",
            "DeleteTopic",
            "Publish",
            "ListTopics",
            "ListTopicSubscriptions",
            "GetSubscription",
            "UpdateSubscription",
            "DeleteSubscription",
            "Acknowledge",
            "ModifyAckDeadline",
            "Pull",
            "StreamingPull",
            "Seek",
        )
    },
}
OF_THE_PUBLISHER = {"CreateTopic", "GetTopic", "DeleteTopic", "Publish", "ListTopics", "ListTopicSubscriptions"}
Code = grpc.StatusCode


class Refused(Exception):  # noqa: N818 - it says what happened
    """The request is answered with an error."""

    def __init__(self, code: Any, text: str, details: bytes | None = None) -> None:
        super().__init__(text)
        self.code, self.text, self.details = code, text, details


class Stored:
    """One message on one subscription."""

    __slots__ = ("ack_id", "attempt", "message", "not_before", "number", "owner", "until")

    def __init__(self, message: Any, number: int) -> None:
        self.message, self.number = message, number
        self.attempt, self.ack_id, self.until, self.not_before = 0, "", 0.0, 0.0
        self.owner: object = None


def compiled(text: str) -> Callable[[Any], bool]:
    """A filter: terms on attributes, joined by AND, each of which may begin with NOT."""
    terms: list[Callable[[Any], bool]] = []
    for part in re.split(r"\s+AND\s+", text) if text else ():
        term = part.removeprefix("NOT ")
        negated = term != part
        if found := re.fullmatch(r'attributes\.([\w-]+)\s*(=|!=)\s*"([^"]*)"', term):
            name, operator, value = found.groups()
            terms.append(lambda a, n=name, o=operator, v=value, x=negated: ((a.get(n) == v) == (o == "=")) != x)  # type: ignore[misc]
        elif found := re.fullmatch(r'hasPrefix\(attributes\.([\w-]+),\s*"([^"]*)"\)', term):
            name, value = found.groups()
            terms.append(lambda a, n=name, v=value, x=negated: a.get(n, "").startswith(v) != x)  # type: ignore[misc]
        elif found := re.fullmatch(r"attributes:([\w-]+)", term):
            terms.append(lambda a, n=found[1], x=negated: (n in a) != x)  # type: ignore[misc]
        else:
            raise Refused(Code.INVALID_ARGUMENT, f"Invalid filter: {text}")
    return lambda attributes: all(term(attributes) for term in terms)


class Line:
    """One subscription and its messages."""

    def __init__(self, server: "Server", config: Any) -> None:
        self.server, self.config = server, config
        self.accepts = compiled(config.filter)
        self.changed = threading.Condition(server.lock)
        self.ready: deque[Stored] = deque()
        """In the order of publishing, without those of a key, which are in `keys`."""
        self.keys: dict[str, OrderedDict[int, Stored]] = {}
        """By ordering key, everything that is not acknowledged, in order."""
        self.key_turns: deque[str] = deque()
        self.out: dict[str, Stored] = {}
        self.ends: list[tuple[float, str]] = []
        self.later: list[tuple[float, int, Stored]] = []
        self.acknowledged = 0
        self.deleted = False

    @property
    def deadline(self) -> float:
        return float(self.config.ack_deadline_seconds or 10)

    @property
    def limit(self) -> int:
        policy = self.config.dead_letter_policy
        return (policy.max_delivery_attempts or DEFAULT_ATTEMPTS) if policy.dead_letter_topic else 0

    @property
    def unacknowledged(self) -> int:
        keyed = sum(map(len, self.keys.values()))
        return len(self.ready) + len(self.later) + keyed + sum(not self._keyed(each) for each in self.out.values())

    def _keyed(self, stored: Stored) -> bool:
        return bool(self.config.enable_message_ordering and stored.message.ordering_key)

    def add(self, stored: Stored) -> None:
        if self._keyed(stored):
            key = stored.message.ordering_key
            if key not in self.keys:
                self.keys[key] = OrderedDict()
                self.key_turns.append(key)
            self.keys[key][stored.number] = stored
        else:
            self.ready.append(stored)

    def take(self, most: int, deadline: float, owner: object = None) -> list[Stored]:
        """Deliver up to so many."""
        now = time.monotonic()
        self.expire(now)
        while self.later and self.later[0][0] <= now:
            self.ready.appendleft(heapq.heappop(self.later)[2])
        taken = self._take_keyed(most, now, owner)
        while self.ready and len(taken) < most:
            taken.append(self.ready.popleft())
        for each in taken:
            each.attempt += 1
            each.ack_id, each.owner = f"{self.server.number()}:{each.number}", owner
            each.until = now + deadline
            self.out[each.ack_id] = each
            heapq.heappush(self.ends, (each.until, each.ack_id))
        return taken

    def _take_keyed(self, most: int, now: float, owner: object) -> list[Stored]:
        """Of each key in turn, unless a batch of it is outstanding to somebody else, or to a pull."""
        taken: list[Stored] = []
        for _ in range(len(self.key_turns)):
            if len(taken) >= most:
                break
            key = self.key_turns.popleft()
            line = self.keys.get(key)
            if not line:
                self.keys.pop(key, None)
                continue
            self.key_turns.append(key)
            out = [each for each in line.values() if each.ack_id]
            if not out or (owner is not None and all(each.owner is owner for each in out)):
                waiting = (each for each in line.values() if not each.ack_id)
                ready = itertools.takewhile(lambda each: each.not_before <= now, waiting)
                taken += itertools.islice(ready, most - len(taken))
        return taken

    def next_change(self) -> float:
        """When something becomes available by itself."""
        found = [self.ends[0][0]] if self.ends else []
        found += [self.later[0][0]] if self.later else []
        found += [next(iter(line.values())).not_before for line in self.keys.values() if line]
        now = time.monotonic()
        return min((each for each in found if each > now), default=now + LONGEST_PULL)

    def expire(self, now: float) -> None:
        while self.ends and self.ends[0][0] <= now:
            until, ack_id = heapq.heappop(self.ends)
            stored = self.out.get(ack_id)
            if stored is not None and stored.until <= until:
                self.fail(stored, now)

    def fail(self, stored: Stored, now: float) -> None:
        """A delivery that ended without an acknowledgement."""
        self.out.pop(stored.ack_id, None)
        stored.ack_id = ""
        if self.limit and stored.attempt >= self.limit and self._forward(stored):
            return
        policy = self.config.retry_policy
        least, most = (each.seconds + each.nanos / 1e9 for each in (policy.minimum_backoff, policy.maximum_backoff))
        wait = min(most or 600.0, (least or 0.0) * 2 ** min(stored.attempt - 1, 60)) if least or most else 0.0
        stored.not_before = now + wait
        if self._keyed(stored):
            for other in self.keys[stored.message.ordering_key].values():
                if other.number > stored.number and other.ack_id:
                    self.out.pop(other.ack_id, None)
                    other.ack_id = ""
        elif wait:
            heapq.heappush(self.later, (stored.not_before, stored.number, stored))
        else:
            place = next((n for n, each in enumerate(self.ready) if each.number > stored.number), len(self.ready))
            self.ready.insert(place, stored)

    def _forward(self, stored: Stored) -> bool:
        topic = self.config.dead_letter_policy.dead_letter_topic
        if topic not in self.server.topics:
            return False
        old, (_, project, _, name) = stored.message, self.config.name.split("/")
        attributes = dict(old.attributes)
        attributes["CloudPubSubDeadLetterSourceDeliveryCount"] = str(stored.attempt)
        attributes["CloudPubSubDeadLetterSourceSubscription"] = name
        attributes["CloudPubSubDeadLetterSourceSubscriptionProject"] = project
        copy = pb["PubsubMessage"](data=old.data, attributes=attributes, ordering_key=old.ordering_key)
        self._remove(stored)
        self.server.store(topic, [copy])
        return True

    def acknowledge(self, ack_id: str) -> bool:
        stored = self.out.get(ack_id)
        if stored is None or stored.until <= time.monotonic():
            return False
        del self.out[ack_id]
        stored.ack_id = ""
        self._remove(stored)
        return True

    def _remove(self, stored: Stored) -> None:
        self.acknowledged += 1
        self.server.note("acknowledged", subscription=self.config.name, id=stored.message.message_id)
        if self._keyed(stored):
            self.keys[stored.message.ordering_key].pop(stored.number, None)

    def modify(self, ack_id: str, seconds: float) -> bool:
        stored, now = self.out.get(ack_id), time.monotonic()
        if stored is None or stored.until <= now:
            return False
        if seconds == 0:
            self.fail(stored, now)
        else:
            stored.until = now + seconds
            heapq.heappush(self.ends, (stored.until, ack_id))
        return True

    def received(self, taken: Iterable[Stored]) -> list[Any]:
        counts = bool(self.limit)
        return [
            pb["ReceivedMessage"](ack_id=s.ack_id, message=s.message, delivery_attempt=s.attempt if counts else 0)
            for s in taken
        ]

    def seek(self, moment: datetime) -> None:
        """What was published before counts as acknowledged."""
        limit = moment.timestamp()
        for stored in [*self.ready, *(s for _, _, s in self.later), *self.out.values(), *self._all_keyed()]:
            if stored.message.publish_time.ToMicroseconds() / 1e6 < limit:
                self.out.pop(stored.ack_id, None)
                stored.ack_id, stored.not_before = "gone", 0.0
                self._remove(stored)
        self.ready = deque(each for each in self.ready if each.ack_id != "gone")
        self.later = [each for each in self.later if each[2].ack_id != "gone"]
        heapq.heapify(self.later)

    def _all_keyed(self) -> list[Stored]:
        return [each for line in self.keys.values() for each in line.values()]


class Fault:
    """Something that goes wrong with calls of one method."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.method = order["method"]
        self.code = getattr(Code, order["code"]) if order.get("code") else None
        self.left = order.get("times", 1)
        self.after = order.get("after", False)
        """Whether the call is carried out all the same, and only its answer is lost."""
        self.seconds = order.get("seconds", 0.0)
        self.containing = order.get("containing", "")
        """Only requests that name this resource."""


class Server:
    """Topics, subscriptions, and what goes wrong."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.lock = threading.RLock()
        self.topics: dict[str, Any] = {}
        self.lines: dict[str, Line] = {}
        self.shortest_deadline = settings.get("shortest_deadline", 10)
        self.faults: list[Fault] = []
        self.calls: dict[str, int] = {}
        self._ids = itertools.count(1)
        self._numbers = itertools.count(int(time.time() * 1000))
        self._journal: Any = None
        if settings.get("journal"):
            self._load(Path(settings["journal"]))

    def number(self) -> int:
        return next(self._numbers)

    # -- what outlives the process

    def _load(self, file: Path) -> None:
        entries = list(_entries(file))
        done = {(each["subscription"], each["id"]) for each in entries if each["what"] == "acknowledged"}
        for entry in entries:
            if entry["what"] == "topic":
                config = pb["Topic"].FromString(base64.b64decode(entry["config"]))
                self.topics[config.name] = config
            elif entry["what"] == "subscription":
                config = pb["Subscription"].FromString(base64.b64decode(entry["config"]))
                self.lines[config.name] = Line(self, config)
            elif entry["what"] == "deleted":
                self.topics.pop(entry["name"], None)
                self.lines.pop(entry["name"], None)
            elif entry["what"] == "published":
                self._load_message(entry, done)
        self._journal = file.open("a")

    def _load_message(self, entry: dict[str, Any], done: set[tuple[str, str]]) -> None:
        message = pb["PubsubMessage"].FromString(base64.b64decode(entry["message"]))
        number = int(message.message_id)
        self._ids = itertools.count(number + 1)
        for line in self._lines_of(entry["topic"], message):
            if (line.config.name, message.message_id) not in done:
                line.add(Stored(message, number))

    def note(self, what: str, **fields: Any) -> None:
        if self._journal is not None:
            self._journal.write(json.dumps({"what": what, **fields}) + "\n")

    def flush(self) -> None:
        if self._journal is not None:
            self._journal.flush()

    def _note_config(self, what: str, config: Any) -> None:
        self.note(what, config=base64.b64encode(config.SerializeToString()).decode())

    # -- storing

    def _lines_of(self, topic: str, message: Any) -> list[Line]:
        return [line for line in self.lines.values() if line.config.topic == topic and line.accepts(message.attributes)]

    def store(self, topic: str, messages: Iterable[Any]) -> list[str]:
        ids = []
        now = time.time()
        for given in messages:
            number = next(self._ids)
            message = pb["PubsubMessage"]()
            message.CopyFrom(given)
            message.message_id = str(number)
            message.publish_time.FromMicroseconds(int(now * 1e6))
            if self._journal is not None:
                text = base64.b64encode(message.SerializeToString()).decode()
                self.note("published", topic=topic, message=text)
            ids.append(message.message_id)
            for line in self._lines_of(topic, message):
                line.add(Stored(message, number))
                line.changed.notify_all()
        return ids

    # -- checks

    def _line(self, name: str) -> Line:
        if name not in self.lines:
            raise Refused(Code.NOT_FOUND, f"Resource not found (resource={name.rsplit('/', maxsplit=1)[-1]}).")
        return self.lines[name]

    def _topic(self, name: str) -> Any:
        if name not in self.topics:
            raise Refused(Code.NOT_FOUND, f"Resource not found (resource={name.rsplit('/', maxsplit=1)[-1]}).")
        return self.topics[name]

    def _check_name(self, name: str, known: Any, kind: str) -> None:
        if not NAME.fullmatch(name):
            raise Refused(Code.INVALID_ARGUMENT, f"Invalid [{kind}s] name: (name={name})")
        if name in known:
            raise Refused(Code.ALREADY_EXISTS, f"Resource already exists in the project (resource={name}).")

    def _check_config(self, config: Any) -> None:
        deadline = config.ack_deadline_seconds
        if deadline and not self.shortest_deadline <= deadline <= LONGEST_DEADLINE:
            raise Refused(Code.INVALID_ARGUMENT, f"Invalid ack deadline given (ack_deadline_secs={deadline}).")
        attempts = config.dead_letter_policy.max_delivery_attempts
        if attempts and not DEFAULT_ATTEMPTS <= attempts <= 100:
            raise Refused(Code.INVALID_ARGUMENT, f"max_delivery_attempts must be 5 to 100, not {attempts}.")

    def _check_message(self, message: Any) -> None:
        attributes = message.attributes
        wrong = ""
        if not message.data and not attributes:
            wrong = "Some messages in the publish request are empty. Each message must contain data or attributes."
        elif len(attributes) > MOST_ATTRIBUTES:
            wrong = "The request contains a message with too many attributes."
        elif len(message.ordering_key.encode()) > LONGEST_KEY:
            wrong = "The ordering key is too long."
        for name, value in attributes.items():
            if not name or len(name.encode()) > LONGEST_NAME or name.startswith("goog"):
                wrong = f"The attribute key {name[:40]!r} is not allowed."
            elif len(value.encode()) > LONGEST_VALUE:
                wrong = f"The attribute value of {name} is too long."
        if wrong:
            raise Refused(Code.INVALID_ARGUMENT, wrong)

    # -- the publisher's side

    def CreateTopic(self, request: Any, _: Any) -> Any:  # noqa: N802 - the names of the interface
        self._check_name(request.name, self.topics, "topic")
        self.topics[request.name] = request
        self._note_config("topic", request)
        return request

    def GetTopic(self, request: Any, _: Any) -> Any:  # noqa: N802
        return self._topic(request.topic)

    def DeleteTopic(self, request: Any, _: Any) -> Any:  # noqa: N802
        self._topic(request.topic)
        del self.topics[request.topic]
        self.note("deleted", name=request.topic)
        for line in self.lines.values():
            if line.config.topic == request.topic:
                line.config.topic = "_deleted-topic_"
        return empty_pb2.Empty()

    def ListTopics(self, request: Any, _: Any) -> Any:  # noqa: N802
        return pb["ListTopicsResponse"](topics=[t for t in self.topics.values() if t.name.startswith(request.project)])

    def ListTopicSubscriptions(self, request: Any, _: Any) -> Any:  # noqa: N802
        self._topic(request.topic)
        names = [name for name, line in self.lines.items() if line.config.topic == request.topic]
        return pb["ListTopicSubscriptionsResponse"](subscriptions=names)

    def Publish(self, request: Any, _: Any) -> Any:  # noqa: N802
        self._topic(request.topic)
        if request.ByteSize() > LARGEST:
            raise Refused(Code.INVALID_ARGUMENT, "Request payload size exceeds the limit: 10000000 bytes.")
        if not 0 < len(request.messages) <= MOST_MESSAGES:
            raise Refused(Code.INVALID_ARGUMENT, "A publish request has 1 to 1000 messages.")
        if len({each.ordering_key for each in request.messages}) > 1:
            raise Refused(Code.INVALID_ARGUMENT, "All messages of a publish request must have the same ordering key.")
        for message in request.messages:
            self._check_message(message)
        return pb["PublishResponse"](message_ids=self.store(request.topic, request.messages))

    # -- the subscriber's side

    def CreateSubscription(self, request: Any, _: Any) -> Any:  # noqa: N802
        self._check_name(request.name, self.lines, "subscription")
        self._topic(request.topic)
        self._check_config(request)
        if not request.ack_deadline_seconds:
            request.ack_deadline_seconds = 10
        self.lines[request.name] = Line(self, request)
        self._note_config("subscription", request)
        return request

    def GetSubscription(self, request: Any, _: Any) -> Any:  # noqa: N802
        return self._line(request.subscription).config

    def UpdateSubscription(self, request: Any, _: Any) -> Any:  # noqa: N802
        line = self._line(request.subscription.name)
        for path in request.update_mask.paths:
            if path in {"topic", "name", "filter", "enable_message_ordering"}:
                raise Refused(Code.INVALID_ARGUMENT, f"The field {path} cannot be changed.")
            line.config.ClearField(path)
            value = getattr(request.subscription, path)
            if hasattr(value, "CopyFrom"):
                getattr(line.config, path).CopyFrom(value)
            else:
                setattr(line.config, path, value)
        self._check_config(line.config)
        return line.config

    def DeleteSubscription(self, request: Any, _: Any) -> Any:  # noqa: N802
        line = self._line(request.subscription)
        line.deleted = True
        del self.lines[request.subscription]
        self.note("deleted", name=request.subscription)
        line.changed.notify_all()
        return empty_pb2.Empty()

    def Acknowledge(self, request: Any, _: Any) -> Any:  # noqa: N802
        line = self._settling(request)
        bad = [ack_id for ack_id in request.ack_ids if not line.acknowledge(ack_id)]
        line.changed.notify_all()
        self._report(line, bad)
        return empty_pb2.Empty()

    def ModifyAckDeadline(self, request: Any, _: Any) -> Any:  # noqa: N802
        line = self._settling(request)
        if not 0 <= request.ack_deadline_seconds <= LONGEST_DEADLINE:
            raise Refused(Code.INVALID_ARGUMENT, f"Invalid ack deadline: {request.ack_deadline_seconds}.")
        bad = [each for each in request.ack_ids if not line.modify(each, request.ack_deadline_seconds)]
        line.changed.notify_all()
        self._report(line, bad)
        return empty_pb2.Empty()

    def _settling(self, request: Any) -> Line:
        line = self._line(request.subscription)
        if not request.ack_ids:
            raise Refused(Code.INVALID_ARGUMENT, "No ack ids specified.")
        if request.ByteSize() > 524_288:
            raise Refused(Code.INVALID_ARGUMENT, "Request payload size exceeds the limit: 524288 bytes.")
        return line

    def _report(self, line: Line, bad: list[str]) -> None:
        """Only with exactly-once delivery does anybody learn that an id was void."""
        if not bad or not line.config.enable_exactly_once_delivery:
            return
        text = "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids "
        text += "have expired or the acknowledgement ids were malformed."
        reasons = dict.fromkeys(bad, "PERMANENT_FAILURE_INVALID_ACK_ID")
        raise Refused(Code.INVALID_ARGUMENT, text, _details(reasons, text))

    def Pull(self, request: Any, context: Any) -> Any:  # noqa: N802
        if request.max_messages <= 0:
            raise Refused(Code.INVALID_ARGUMENT, "max_messages must be positive.")
        line = self._line(request.subscription)
        left = context.time_remaining()
        until = time.monotonic() + min(LONGEST_PULL if left is None else left, LONGEST_PULL)
        taken = self._wait(line, lambda: request.max_messages, context, until)
        return pb["PullResponse"](received_messages=line.received(taken))

    def _wait(
        self,
        line: Line,
        most: Callable[[], int],
        context: Any,
        until: float,
        owner: object = None,
        deadline: Callable[[], float] | None = None,
    ) -> list[Stored]:
        while context.is_active() and not line.deleted and self.lines.get(line.config.name) is line:
            taken = line.take(most(), line.deadline if deadline is None else deadline(), owner)
            now = time.monotonic()
            if taken or now >= until:
                return taken
            line.changed.wait(max(0.0, min(until, line.next_change()) - now) + 0.001)
        if context.is_active():
            raise Refused(Code.NOT_FOUND, f"Resource not found (resource={line.config.name.split('/')[-1]}).")
        return []

    def StreamingPull(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        first = next(requests)
        with self.lock:
            line = self._line(first.subscription)
        owner, most = object(), first.max_outstanding_messages or 1000
        seconds = [float(first.stream_ack_deadline_seconds or line.deadline)]

        def read() -> None:
            for request in requests:
                with self.lock:
                    if request.stream_ack_deadline_seconds:
                        seconds[0] = float(request.stream_ack_deadline_seconds)
                    for ack_id in request.ack_ids:
                        line.acknowledge(ack_id)
                    modified = zip(request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=True)
                    for ack_id, deadline in modified:
                        line.modify(ack_id, deadline)
                    line.changed.notify_all()

        def room() -> int:
            return max(0, most - sum(each.owner is owner for each in line.out.values()))

        threading.Thread(target=read, daemon=True).start()
        while context.is_active():
            with self.lock:
                taken = self._wait(line, room, context, time.monotonic() + 1.0, owner, lambda: seconds[0])
                found = line.received(taken)
            if found:
                yield pb["StreamingPullResponse"](received_messages=found)

    def Seek(self, request: Any, _: Any) -> Any:  # noqa: N802
        line = self._line(request.subscription)
        line.seek(request.time.ToDatetime(tzinfo=UTC))
        line.changed.notify_all()
        return pb["SeekResponse"]()

    # -- what goes wrong

    def control(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do what a test asks for."""
        with self.lock:
            match order["do"]:
                case "fault":
                    self.faults.append(Fault(order))
                case "heal":
                    self.faults.clear()
                case "expire":  # every deadline ends now
                    line = self._line(order["subscription"])
                    for stored in list(line.out.values()):
                        stored.until = 0.0
                        line.fail(stored, time.monotonic())
                    line.changed.notify_all()
                case "lose":  # the service has forgotten one delivery, and nobody is told
                    line = self._line(order["subscription"])
                    stored = list(line.out.values())[order.get("place", 0)]
                    line.fail(stored, time.monotonic())
                case "state":
                    return self._state(order["subscription"])
                case "calls":
                    return {"calls": dict(self.calls)}
                case _:
                    raise ValueError(order["do"])
        return {}

    def _state(self, name: str) -> dict[str, Any]:
        line = self.lines.get(name)
        if line is None:
            return {"exists": False}
        line.expire(time.monotonic())
        return {
            "exists": True,
            "unacknowledged": line.unacknowledged,
            "outstanding": len(line.out),
            "acknowledged": line.acknowledged,
        }

    def fault(self, method: str, request: Any) -> Fault | None:
        """The fault that hits this call."""
        with self.lock:
            self.calls[method] = self.calls.get(method, 0) + 1
            for each in self.faults:
                if each.method == method and (not each.containing or each.containing in str(request)):
                    each.left -= 1
                    if each.left == 0:
                        self.faults.remove(each)
                    return each
        return None


def _entries(file: Path) -> Iterator[dict[str, Any]]:
    """What the journal says; its end may be cut off, where the process was killed."""
    for line in file.read_text().splitlines() if file.exists() else ():
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _details(reasons: dict[str, str], text: str) -> bytes:
    info = error_details_pb2.ErrorInfo(
        reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=reasons
    )
    packed = any_pb2.Any()
    packed.Pack(info)
    return bytes(status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message=text, details=[packed]).SerializeToString())


def _abort(context: Any, error: Refused) -> None:
    if error.details is not None:
        context.set_trailing_metadata((("grpc-status-details-bin", error.details),))
    context.abort(error.code, error.text)


def _unary(server: Server, name: str) -> Callable[[Any, Any], Any]:
    method = getattr(server, name)

    def call(request: Any, context: Any) -> Any:
        answer: Any = None
        fault = server.fault(name, request)
        if fault is not None:
            time.sleep(fault.seconds)
            if fault.code is not None and not fault.after:
                context.abort(fault.code, f"{name} fails because a test says so")
        try:
            with server.lock:
                if name == "Pull":
                    line = server.lines.get(request.subscription)
                    if line is not None:
                        context.add_callback(lambda: _wake(line))
                answer = method(request, context)
                server.flush()
        except Refused as error:
            _abort(context, error)
        if fault is not None and fault.code is not None:
            context.abort(fault.code, f"the answer to {name} is lost because a test says so")
        return answer

    return call


def _wake(line: Line) -> None:
    with line.changed:
        line.changed.notify_all()


def _streaming(server: Server) -> Callable[[Any, Any], Any]:
    def call(requests: Any, context: Any) -> Iterator[Any]:
        fault = server.fault("StreamingPull", "")
        if fault is not None and fault.code is not None:
            context.abort(fault.code, "StreamingPull fails because a test says so")
        try:
            yield from server.StreamingPull(requests, context)
        except Refused as error:
            _abort(context, error)

    return call


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc,unused-ignore] # where there are no types for it
    """All calls, by their paths."""

    def __init__(self, server: Server) -> None:
        self._handlers: dict[str, Any] = {
            CONTROL: grpc.unary_unary_rpc_method_handler(
                lambda order, _: json.dumps(server.control(json.loads(order))).encode()
            )
        }
        for name, request in REQUESTS.items():
            service = "Publisher" if name in OF_THE_PUBLISHER else "Subscriber"
            make = grpc.unary_unary_rpc_method_handler
            act = _unary(server, name)
            if name == "StreamingPull":
                make, act = grpc.stream_stream_rpc_method_handler, _streaming(server)
            self._handlers[f"/google.pubsub.v1.{service}/{name}"] = make(
                act,
                request_deserializer=pb[request].FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )

    def service(self, details: Any) -> Any:
        return self._handlers.get(details.method)


def serve(settings: dict[str, Any]) -> None:
    """Serve until SIGTERM."""
    server = Server(settings)
    pool = futures.ThreadPoolExecutor(THREADS)
    service = grpc.server(
        pool,
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_ping_strikes", 0),
        ],
    )
    service.add_generic_rpc_handlers((Handlers(server),))
    address = f"127.0.0.1:{settings['port']}"
    if settings.get("certificate"):
        pair = (Path(settings["key"]).read_bytes(), Path(settings["certificate"]).read_bytes())
        service.add_secure_port(address, grpc.ssl_server_credentials([pair]))
    else:
        service.add_insecure_port(address)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    service.start()
    while not ended.wait(0.2):
        pass
    service.stop(0)
    server.flush()
    os._exit(0)  # pulls that still wait need not be waited for


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
