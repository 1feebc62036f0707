"""The HTTP side of the Service Bus peer: the management of entities, in Atom and XML, and what tests command.

It runs on threads of its own and asks the broker's thread, where everything is done.
"""

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

from brokers.servicebus_entities import Refused, Rules

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
KINDS = {"QueueDescription": "queue", "TopicDescription": "topic", "SubscriptionDescription": "subscription"}
DEFAULTS = {"LockDuration": "PT1M", "MaxDeliveryCount": "10", "RequiresSession": "false"}
EMPTY = f'<feed xmlns="{ATOM}"><title type="text">Publicly Listed Services</title></feed>'
TAKES_SECONDS = 30.0


class Call:
    """One request, answered on the broker's thread."""

    def __init__(self, method: str, path: str, token: str, body: bytes) -> None:
        self.method, self.path, self.token, self.body = method, path, token, body
        self.result: Future[tuple[int, str]] = Future()

    def answer(self, broker: Any) -> None:
        """Called by the broker."""
        try:
            self.result.set_result(self._answered(broker))
        except Refused as refused:
            text = f"<Error><Code>{refused.code}</Code><Detail>{refused.text}</Detail></Error>"
            self.result.set_result((refused.code, text))
        except Exception as error:
            self.result.set_exception(error)

    def _answered(self, broker: Any) -> tuple[int, str]:
        if self.path.startswith("$test/"):
            return 200, json.dumps(broker.command(self.path.removeprefix("$test/"), json.loads(self.body or b"{}")))
        claims = broker.claims_of(self.token)
        if not claims:
            raise Refused("amqp:unauthorized-access", "401 SubCode=40103: Invalid authorization token signature.", 401)
        if "manage" not in claims:
            raise Refused("amqp:unauthorized-access", "Manage claim is required for this operation.", 401)
        namespace = broker.namespace
        described = namespace.described.get(self.path.lower())
        if self.method == "GET":
            return 200, EMPTY if described is None else entry(self.path, described)
        if self.method == "DELETE":
            if described is None:
                raise Refused("amqp:not-found", "The entity could not be found.", 404)
            namespace.remove(self.path)
            broker.entity_is_gone(self.path)
            return 200, ""
        if namespace.exists(self.path):
            raise Refused("com.microsoft:entity-already-exists", "The entity exists already.", 409)
        kind, rules, xml = described_by(self.body)
        topic = self.path.lower().partition("/subscriptions/")[0]
        if kind == "subscription" and topic not in namespace.topics:
            raise Refused("amqp:not-found", "The topic could not be found.", 404)
        namespace.make(self.path, kind, rules, xml)
        return 201, entry(self.path, xml)


def entry(path: str, xml: str) -> str:
    return (
        f'<entry xmlns="{ATOM}"><id>http://localhost/{path}</id><title type="text">{path.rpartition("/")[2]}</title>'
        f'<content type="application/xml">{xml}</content></entry>'
    )


def described_by(body: bytes) -> tuple[str, Rules, str]:
    """The kind, the rules and the XML of an entity that is to be made."""
    root = ET.fromstring(body)  # noqa: S314 - of the tests' own client
    found = next(each for each in root.iter() if each.tag.rpartition("}")[2] in KINDS)
    kind = KINDS[found.tag.rpartition("}")[2]]
    texts = {each.tag.rpartition("}")[2]: each.text or "" for each in found}
    for name, text in DEFAULTS.items():
        if name not in texts and kind != "topic":
            ET.SubElement(found, f"{{{SERVICE_BUS}}}{name}").text = texts[name] = text
    duplicates = texts.get("RequiresDuplicateDetection") == "true"
    window = texts.get("DuplicateDetectionHistoryTimeWindow") or "PT10M"
    rules = Rules(
        lock=seconds_of(texts.get("LockDuration", "PT1M")),
        max_delivery=int(texts.get("MaxDeliveryCount", "10")),
        ttl=seconds_of(texts.get("DefaultMessageTimeToLive", "")),
        dead_letters_expired=texts.get("DeadLetteringOnMessageExpiration") == "true",
        duplicates=seconds_of(window) if duplicates else 0.0,
        sessions=texts.get("RequiresSession") == "true",
        forward=unquote(urlsplit(texts.get("ForwardTo", "")).path.strip("/")),
    )
    return kind, rules, ET.tostring(found, encoding="unicode")


def seconds_of(duration: str) -> float:
    """Of an ISO 8601 duration such as PT1M30.5S; 0 for none."""
    found = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:([\d.]+)S)?)?", duration)
    if not found:
        return 0.0
    days, hours, minutes, seconds = (float(each or 0) for each in found.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


class Admin:
    """An HTTP server on loopback."""

    def __init__(self, port: int, ask: Callable[[Call], object]) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._serve()

            do_PUT = do_DELETE = do_POST = do_GET  # noqa: N815 - as the base class calls them

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = unquote(urlsplit(self.path).path.strip("/"))
                call = Call(self.command, path, self.headers.get("Authorization", ""), body)
                ask(call)
                code, text = call.result.result(TAKES_SECONDS)
                answer = text.encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/atom+xml;type=entry;charset=utf-8")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Nothing is printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, name="admin", daemon=True).start()
