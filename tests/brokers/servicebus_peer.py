"""A small Azure Service Bus: AMQP 1.0 by the Qpid Proton library, enough for the vendor's own client.

A program of its own: `python servicebus_peer.py SETTINGS`, in JSON. Beside AMQP it serves what the vendor's management
client asks for, and `POST /$test/<command>`, by which tests break things.
"""

import base64
import hashlib
import hmac
import json
import signal
import sys
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from proton import UNDESCRIBED, Array, Condition, Data, Delivery, Endpoint, Link, Message, Terminus, int32, symbol
from proton import timestamp as amqp_time
from proton.handlers import Handshaker
from proton.reactor import ApplicationEvent, Container, EventInjector

from brokers.servicebus_admin import Admin, Call
from brokers.servicebus_entities import DEAD, Namespace, Queue, Refused, Stored, lock_lost, session_lock_lost
from brokers.servicebus_message import parsed, split

TICK = 0.02
LARGEST = 1024 * 1024
MANAGEMENT = "/$management"
SESSION_FILTER = "com.microsoft:session-filter"
NEXT_SESSION_SECONDS = 60.0
SETTLED_AS = {
    Delivery.ACCEPTED: "complete",
    Delivery.RELEASED: "release",
    Delivery.MODIFIED: "abandon",
    Delivery.REJECTED: "dead",
}
DISPOSITIONS = {"completed": "complete", "abandoned": "abandon", "defered": "defer", "suspended": "dead"}
TRACKED = {symbol("com.microsoft:tracking-id"): "peer"}
"""More of an error. The client wants this field, and proton leaves it out where it is empty."""
CODES = {"amqp:not-found": 404, "com.microsoft:server-busy": 503, "amqp:unauthorized-access": 401}


def milliseconds(seconds: float) -> Any:
    return amqp_time(int(seconds * 1000))


def path_of(address: str | None) -> str:
    """The entity of an address such as sb://host:port/entity."""
    address = address or ""
    if "://" in address:
        address = address.partition("://")[2].partition("/")[2]
    return address.strip("/")


class Consuming:
    """What is known of a link that messages are sent on."""

    def __init__(self, link: Any, queue: Queue, session: str | None) -> None:
        self.link, self.queue, self.session = link, queue, session


class Broker(Handshaker):  # type: ignore[misc]
    """All connections, on one thread."""

    def __init__(self, settings: dict[str, Any], injector: EventInjector) -> None:
        super().__init__()
        self.port = settings["port"]
        self.idle_seconds = settings.get("idle_seconds", 240.0)
        self.keys: dict[str, dict[str, Any]] = settings["keys"]
        self.namespace = Namespace(Path(settings["journal"]))
        self.injector = injector
        self.consumers: dict[Any, Consuming] = {}
        self.waiting: dict[Any, tuple[Queue, float]] = {}
        """Links that wait for any session."""
        self.producers: dict[Any, str] = {}
        """The links on which messages come, and for which entity."""
        self.replies: dict[tuple[Any, str], Any] = {}
        self.claims: dict[Any, set[str]] = {}
        self.connections: list[Any] = []
        self.busy: Counter[str] = Counter()
        """How many of the next requests of a kind are refused as the server is busy."""
        self.seen: Counter[str] = Counter()
        """How often something was asked for."""

    # -- life

    def on_reactor_init(self, event: Any) -> None:
        self.container = event.reactor
        self.container.listen(f"127.0.0.1:{self.port}")
        self.container.selectable(self.injector)
        self.container.schedule(TICK, self)

    def on_timer_task(self, event: Any) -> None:
        now = time.time()
        for queue in self.namespace.everything():
            if not (queue.sessions or queue.locked or queue.scheduled or queue.ready):
                continue  # most are the queues of earlier tests
            for link, name in queue.expired_sessions(now):
                self._lose_session(link, queue, name)
            if queue.tick(now) or queue.ready:
                self.pump(queue)
        for link, (queue, until) in list(self.waiting.items()):
            self._accept_session(link, queue, until)
        self.container.schedule(TICK, self)

    def on_call(self, event: Any) -> None:
        """A request to the management, or a command of a test."""
        call: Call = event.subject
        call.answer(self)

    def on_connection_bound(self, event: Any) -> None:
        event.transport.idle_timeout = self.idle_seconds

    def on_connection_remote_open(self, event: Any) -> None:
        event.connection.container = "servicebus-peer"
        event.connection.open()
        self.connections.append(event.connection)

    def on_session_remote_open(self, event: Any) -> None:
        event.session.incoming_capacity = 64 * LARGEST
        event.session.open()

    def on_link_remote_close(self, event: Any) -> None:
        self.forget(event.link)
        event.link.close()

    def on_link_remote_detach(self, event: Any) -> None:
        self.forget(event.link)
        event.link.detach()

    def on_session_remote_close(self, event: Any) -> None:
        event.session.close()

    def on_connection_remote_close(self, event: Any) -> None:
        event.connection.close()

    def on_transport_closed(self, event: Any) -> None:
        connection = event.connection
        links = (*self.consumers, *self.waiting, *self.producers)
        for link in [each for each in links if each.connection == connection]:
            self.forget(link)
        self.replies = {key: link for key, link in self.replies.items() if link.connection != connection}
        self.claims.pop(connection, None)
        self.connections = [each for each in self.connections if each != connection]

    def forget(self, link: Any) -> None:
        """The link is gone. Locks of messages stay until they expire; that of a session goes with its link."""
        self.waiting.pop(link, None)
        self.producers.pop(link, None)
        consumer = self.consumers.pop(link, None)
        if consumer is not None and consumer.session is not None:
            queue = consumer.queue
            if queue.sessions.get(consumer.session, (None, 0))[0] == link:
                queue.end_session(consumer.session, counted=False)

    # -- links

    def on_link_remote_open(self, event: Any) -> None:
        link = event.link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.snd_settle_mode, link.rcv_settle_mode = link.remote_snd_settle_mode, link.remote_rcv_settle_mode
        path = path_of(link.remote_source.address if link.is_sender else link.remote_target.address)
        self.seen[f"attach {path}"] += 1
        try:
            self._attach(link, path)
        except Refused as refused:
            self.refuse(link, refused)

    def _attach(self, link: Any, path: str) -> None:
        lower = path.lower()
        if lower == "$cbs" or lower.endswith(MANAGEMENT):
            self._attach_requests(link, lower)
        elif link.is_sender:
            self._check_claim(link, "listen")
            self._check_busy("attach")
            queue = self.namespace.find(path)
            if queue is None or (queue.rules.forward and queue.dead is not None):
                raise self._absent(path)
            if not self._consume(link, queue):
                return
        else:
            self._check_claim(link, "send")
            if lower not in self.namespace.topics and lower not in self.namespace.queues:
                raise self._absent(path)
            self.producers[link] = lower
        if not link.is_sender:
            link.max_message_size = LARGEST
        link.open()
        if not link.is_sender:
            link.flow(1000)

    def _attach_requests(self, link: Any, lower: str) -> None:
        if lower != "$cbs":
            self._check_claim(link, "")
            entity = lower.removesuffix(MANAGEMENT)
            if not self.namespace.exists(entity):
                raise self._absent(entity)
        if link.is_sender:
            self.replies[link.session, lower] = link

    def _consume(self, link: Any, queue: Queue) -> bool:
        """Whether the link is open now; one that wants any session waits for it."""
        filters = _filters(link)
        if SESSION_FILTER not in filters:
            if queue.has_sessions:
                text = "It is not possible for an entity that requires sessions to create a non-sessionful receiver."
                raise Refused("amqp:not-allowed", text)
            self.consumers[link] = Consuming(link, queue, None)
            return True
        if not queue.has_sessions:
            raise Refused("amqp:not-allowed", "A sessionful receiver cannot be created on an entity without sessions.")
        session = filters[SESSION_FILTER]
        if session is None:
            self.waiting[link] = (queue, time.time() + _patience(link))
            self._accept_session(link, *self.waiting[link])
            return False
        if session in queue.sessions:
            raise Refused("com.microsoft:session-cannot-be-locked", f"The session {session} cannot be locked")
        self._give_session(link, queue, str(session))
        return True

    def _accept_session(self, link: Any, queue: Queue, until: float) -> None:
        session = queue.free_session()
        if session is not None:
            del self.waiting[link]
            self._give_session(link, queue, session)
            link.open()
        elif time.time() > until:
            del self.waiting[link]
            self.refuse(link, Refused("com.microsoft:timeout", "No session became available in time"))

    def _give_session(self, link: Any, queue: Queue, session: str) -> None:
        until = time.time() + queue.rules.lock
        queue.sessions[session] = (link, until)
        self.consumers[link] = Consuming(link, queue, session)
        self.seen["sessions"] += 1
        filters = Data()
        filters.put_map()
        filters.enter()
        filters.put_symbol(symbol(SESSION_FILTER))
        filters.put_string(session)
        filters.exit()
        link.source.filter.copy(filters)
        properties = {symbol("com.microsoft:locked-until-utc"): _ticks(until)}
        link.properties = properties

    def _lose_session(self, link: Any, queue: Queue, name: str) -> None:
        """Its lock has ended: its messages go back, and its link is closed."""
        self.consumers.pop(link, None)
        queue.end_session(name, counted=True)
        lost = session_lock_lost()
        link.condition = Condition(lost.condition, lost.text)
        link.close()

    def refuse(self, link: Any, refused: Refused) -> None:
        """An attach without source and target, then a detach that says why."""
        link.source.type = link.target.type = Terminus.UNSPECIFIED
        link.open()
        link.condition = Condition(refused.condition, refused.text)
        link.close()

    def entity_is_gone(self, path: str) -> None:
        """Somebody has removed it: everybody who uses it is told."""
        of = {path.lower(), path.lower() + DEAD}
        links = [link for link, consumer in self.consumers.items() if consumer.queue.name.lower() in of]
        links += [link for link, (queue, _) in self.waiting.items() if queue.name.lower() in of]
        links += [link for link, lower in self.producers.items() if lower in of]
        absent = self._absent(path)
        for link in links:
            self.forget(link)
            link.condition = Condition(absent.condition, absent.text)
            link.close()

    def _absent(self, path: str) -> Refused:
        text = f"The messaging entity 'sb://127.0.0.1/{path}' could not be found."
        return Refused("amqp:not-found", text, 404)

    def _check_claim(self, link: Any, claim: str) -> None:
        claims = self.claims.get(link.connection, set())
        if not claims or (claim and claim not in claims):
            text = f"Unauthorized access. '{claim.capitalize()}' claim(s) are required to perform this operation."
            raise Refused("amqp:unauthorized-access", text, 401)

    def _check_busy(self, kind: str) -> None:
        if self.busy[kind] > 0:
            self.busy[kind] -= 1
            raise Refused("com.microsoft:server-busy", "The request was terminated as the server is busy.", 503)

    # -- to consumers

    def on_link_flow(self, event: Any) -> None:
        link = event.link
        consumer = self.consumers.get(link)
        if consumer is not None:
            self.pump(consumer.queue)
        if link.is_sender and link.drain_mode:
            link.drained()

    def pump(self, queue: Queue) -> None:
        """Send what is ready to links with credit, one after another."""
        while queue.ready:
            sent = False
            for consumer in [each for each in self.consumers.values() if each.queue is queue]:
                link = consumer.link
                if link.credit <= 0 or not link.state & Endpoint.LOCAL_ACTIVE:
                    continue
                stored = queue.take(consumer.session)
                if stored is not None:
                    self._deliver(link, queue, stored)
                    sent = True
            if not sent:
                return

    def _deliver(self, link: Any, queue: Queue, stored: Stored) -> None:
        assert stored.token is not None
        at_most_once = link.remote_snd_settle_mode == Link.SND_SETTLED
        delivery = link.delivery(stored.token.bytes_le)
        link.stream(self.encoded(stored, locked=not at_most_once))
        link.advance()
        if at_most_once:
            queue.settle(stored.token, "complete")
            delivery.settle()
        else:
            delivery.context = (queue, stored, stored.token)

    def encoded(self, stored: Stored, *, locked: bool) -> bytes:
        more: dict[str, Any] = {
            "x-opt-sequence-number": stored.sequence,
            "x-opt-enqueued-time": milliseconds(stored.enqueued),
            "x-opt-message-state": int32(stored.state),
        }
        if locked:
            more["x-opt-locked-until"] = milliseconds(stored.until)
        return stored.parts.encoded(stored.count, more)

    # -- from clients

    def on_delivery(self, event: Any) -> None:
        delivery, link = event.delivery, event.link
        if link.is_receiver:
            if delivery.readable and not delivery.partial:
                self._take_transfer(delivery, link)
        elif delivery.updated:
            self._take_disposition(delivery)

    def _take_transfer(self, delivery: Any, link: Any) -> None:
        raw = bytes(link.recv(delivery.pending) or b"")
        link.advance()
        path = path_of(link.target.address)
        try:
            if path == "$cbs":
                self._put_token(link, raw)
            elif path.lower().endswith(MANAGEMENT):
                self._manage(link, path.lower(), raw)
            else:
                self._check_busy("send")
                self.publish(path, raw)
        except Refused as refused:
            delivery.local.condition = Condition(refused.condition, refused.text, TRACKED)
            delivery.update(Delivery.REJECTED)
        else:
            delivery.update(Delivery.ACCEPTED)
        delivery.settle()
        link.flow(1)

    def publish(self, path: str, raw: bytes) -> list[int]:
        if path.lower() not in self.namespace.topics and path.lower() not in self.namespace.queues:
            raise self._absent(path)
        kept: list[tuple[Queue, int]] = []
        for each in split(raw):
            parts = parsed(each)
            due = parts.annotations.get("x-opt-scheduled-enqueue-time", 0) / 1000
            kept += self.namespace.publish(path, parts, due)
        self.seen["messages"] += len(kept)
        for queue in {id(queue): queue for queue, _ in kept}.values():
            self.pump(queue)
        return [number for _, number in kept]

    def _take_disposition(self, delivery: Any) -> None:
        found = getattr(delivery, "context", None)
        how = SETTLED_AS.get(int(delivery.remote_state))
        if delivery.link not in self.consumers:
            return  # the link was closed here: nothing more is said on it
        if found is None or how is None:
            if delivery.settled:
                delivery.settle()
            return
        queue, _, token = found
        failed, undeliverable = how == "abandon", False
        if how == "abandon":
            undeliverable = bool(delivery.remote.undeliverable)
            failed = bool(delivery.remote.failed)
            how = "defer" if undeliverable else "abandon" if failed else "release"
        condition = delivery.remote.condition if how == "dead" else None
        said = {str(name): text for name, text in ((condition.info or {}) if condition else {}).items()}
        self.seen[how] += 1
        try:
            self._check_busy("settle")
            queue.settle(token, how, said.get("DeadLetterReason"), said.get("DeadLetterErrorDescription"))
        except Refused as refused:
            delivery.local.condition = Condition(refused.condition, refused.text, TRACKED)
            delivery.update(Delivery.REJECTED)
        else:
            delivery.local.failed, delivery.local.undeliverable = failed, undeliverable
            delivery.update(int(delivery.remote_state))
        delivery.settle()
        self.pump(queue)
        if how == "dead" and queue.dead is not None:
            self.pump(queue.dead)

    # -- requests

    def _reply(self, link: Any, path: str, request: Message, properties: dict[str, Any], body: object = None) -> None:
        reply = self.replies.get((link.session, path))
        if reply is None:
            return
        message = Message(body=body, correlation_id=request.id, properties=properties)
        message.inferred = False
        delivery = reply.delivery(uuid.uuid4().bytes)
        reply.stream(message.encode())
        reply.advance()
        delivery.settle()

    def _put_token(self, link: Any, raw: bytes) -> None:
        request = Message()
        request.decode(raw)
        claims = self.claims_of(str(request.body))
        if claims:
            self.claims[link.connection] = claims
            properties: dict[str, Any] = {"status-code": int32(202), "status-description": "Accepted"}
        else:
            text = "InvalidSignature: The token has an invalid signature."
            properties = {"status-code": int32(401), "status-description": text}
        self._reply(link, "$cbs", request, properties)

    def claims_of(self, token: str) -> set[str]:
        """What a token allows; nothing if it is not signed with one of the keys."""
        _, _, query = token.partition(" ")
        fields = {name: values[0] for name, values in parse_qs(query).items()}
        key = self.keys.get(fields.get("skn", ""))
        if key is None or float(fields.get("se", 0)) < time.time():
            return set()
        resource = parse_raw(query, "sr")
        expected = hmac.new(key["key"].encode(), f"{resource}\n{fields['se']}".encode(), hashlib.sha256).digest()
        return set(key["claims"]) if base64.b64encode(expected).decode() == fields.get("sig") else set()

    def _manage(self, link: Any, path: str, raw: bytes) -> None:
        request = Message()
        request.decode(raw)
        operation = request.properties["operation"].split(":")[-1]
        self.seen[operation] += 1
        body = {str(name): value for name, value in (request.body or {}).items()}
        try:
            self._check_busy(operation)
            code, answer = self._answer(operation, path.removesuffix(MANAGEMENT), body)
            properties: dict[str, Any] = {"statusCode": int32(code), "statusDescription": "OK"}
        except Refused as refused:
            answer = None
            properties = {
                "statusCode": int32(refused.code),
                "statusDescription": refused.text,
                "errorCondition": symbol(refused.condition),
            }
        self._reply(link, path, request, properties, answer)

    def _answer(self, operation: str, entity: str, body: dict[str, Any]) -> tuple[int, Any]:
        if operation == "schedule-message":
            numbers = [number for each in body["messages"] for number in self.publish(entity, bytes(each["message"]))]
            return 200, {"sequence-numbers": Array(UNDESCRIBED, Data.LONG, *numbers)}
        answer = getattr(self, f"_answer_{operation.replace('-', '_')}", None)
        if answer is None:
            raise Refused("amqp:not-implemented", operation, 501)
        found: tuple[int, Any] = answer(self._queue(entity), body)
        return found

    def _answer_cancel_scheduled_message(self, queue: Queue, body: dict[str, Any]) -> tuple[int, Any]:
        for number in _elements(body["sequence-numbers"]):
            if queue.scheduled.pop(number, None) is None:
                raise Refused("com.microsoft:message-not-found", "The message was not found.", 404)
            self.namespace.note("gone", queue.name, number)
        return 200, None

    def _answer_renew_lock(self, queue: Queue, body: dict[str, Any]) -> tuple[int, Any]:
        ends = [milliseconds(queue.renew(token)) for token in _elements(body["lock-tokens"])]
        return 200, {"expirations": Array(UNDESCRIBED, Data.TIMESTAMP, *ends)}

    def _answer_renew_session_lock(self, queue: Queue, body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"expiration": milliseconds(queue.renew_session(body["session-id"]))}

    def _answer_set_session_state(self, queue: Queue, body: dict[str, Any]) -> tuple[int, Any]:
        name, state = body["session-id"], body["session-state"]
        queue.renew_session(name)
        queue.states[name] = b"" if state is None else bytes(state)
        self.namespace.note("state", queue.name, name, queue.states[name])
        return 200, None

    def _answer_get_session_state(self, queue: Queue, body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"session-state": queue.states.get(body["session-id"]) or None}

    def _answer_update_disposition(self, queue: Queue, body: dict[str, Any]) -> tuple[int, Any]:
        how = DISPOSITIONS[body["disposition-status"]]
        for token in _elements(body["lock-tokens"]):
            self._check_busy("settle")
            queue.settle(token, how, body.get("deadletter-reason"), body.get("deadletter-description"))
            self.seen[how] += 1
        self.pump(queue)
        return 200, None

    def _answer_peek_message(self, queue: Queue, body: dict[str, Any]) -> tuple[int, Any]:
        found = [each for each in queue.everything if each.sequence >= body["from-sequence-number"]]
        if "session-id" in body:
            found = [each for each in found if each.parts.session == body["session-id"]]
        shown = [{"message": self.encoded(each, locked=False)} for each in found[: body["message-count"]]]
        return (200, {"messages": shown}) if shown else (204, None)

    def _answer_receive_by_sequence_number(self, queue: Queue, body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"messages": [self._take_deferred(queue, each) for each in _elements(body["sequence-numbers"])]}

    def _take_deferred(self, queue: Queue, number: int) -> dict[str, Any]:
        stored = queue.deferred.get(number)
        if stored is None:
            raise Refused("com.microsoft:message-not-found", "Failed to lock one or more specified messages.", 404)
        if stored.token is not None and stored.token in queue.locked:
            raise lock_lost()
        queue.lock(stored)
        return {"message": self.encoded(stored, locked=True), "lock-token": stored.token}

    # -- what tests command

    def command(self, name: str, given: dict[str, Any]) -> Any:
        command = getattr(self, f"_command_{name}", None)
        if command is None:
            raise Refused("amqp:not-implemented", name, 501)
        return command(given)

    def _command_detach(self, given: dict[str, Any]) -> int:
        """All consumers of an entity, or all there are."""
        queue = self.namespace.find(given.get("entity", ""))
        links = [each.link for each in self.consumers.values() if queue in {None, each.queue}]
        for link in links:
            self.forget(link)
            link.condition = Condition(given.get("condition", "amqp:link:detach-forced"), "as commanded")
            link.close()
        return len(links)

    def _command_close(self, given: dict[str, Any]) -> int:
        """All connections, with an error."""
        for link in [*self.consumers, *self.waiting]:
            self.forget(link)
        for connection in self.connections:
            connection.condition = Condition("amqp:connection:forced", "as commanded", TRACKED)
            connection.close()
        return len(self.connections)

    def _command_busy(self, given: dict[str, Any]) -> None:
        self.busy[given["kind"]] = given["count"]

    def _command_expire(self, given: dict[str, Any]) -> None:
        """All locks of an entity."""
        queue = self._queue(given["entity"])
        for stored in queue.locked.values():
            stored.until = 0.0
        for link, name in [(link, name) for name, (link, _) in queue.sessions.items()]:
            self._lose_session(link, queue, name)
        if queue.tick(time.time()):
            self.pump(queue)

    def _command_count(self, given: dict[str, Any]) -> dict[str, Any]:
        queue = self._queue(given["entity"])
        counts = [each.count for each in queue.everything]
        found = {"all": len(queue.everything), "locked": len(queue.locked), "counts": counts}
        return {**found, "sessions": sorted(queue.sessions)}

    def _command_seen(self, given: dict[str, Any]) -> dict[str, int]:
        return dict(self.seen)

    def _queue(self, path: str) -> Queue:
        queue = self.namespace.find(path)
        if queue is None:
            raise self._absent(path)
        return queue


def parse_raw(query: str, name: str) -> str:
    """A field of a query, as it stands there."""
    return next((value for part in query.split("&") for key, _, value in [part.partition("=")] if key == name), "")


def _elements(value: Any) -> list[Any]:
    return list(value.elements if isinstance(value, Array) else value)


def _ticks(seconds: float) -> int:
    return int(seconds * 10_000_000) + 621_355_968_000_000_000


def _patience(link: Any) -> float:
    """For how many seconds a link that wants any session waits for one: what it says itself, or a minute."""
    data = link.remote_properties
    said = {str(name): value for name, value in (data or {}).items()}
    return float(said.get("com.microsoft:timeout", NEXT_SESSION_SECONDS * 1000)) / 1000


def _filters(link: Any) -> dict[str, Any]:
    data = link.remote_source.filter
    data.rewind()
    if not data.next():
        return {}
    found = data.get_object() or {}
    return {str(name): getattr(value, "value", value) for name, value in found.items()}


def main() -> None:
    settings = json.loads(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    injector = EventInjector()
    broker = Broker(settings, injector)
    admin = Admin(settings["admin_port"], lambda call: injector.trigger(ApplicationEvent("call", subject=call)))
    admin.start()
    Container(broker).run()


if __name__ == "__main__":
    main()
