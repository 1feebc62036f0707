"""Which requests the server allows."""

from typing import Any

import pytest

from pump.errors import ConfigurationError
from pump.queue.http.guard import Forbidden, Guard, Level, read_tokens
from pump.queue.http.routes import ROUTES
from support.queue_http import InProcess, data, told
from support.queue_http_fixtures import Serving

SECRETS = {level: f"{level}-0123456789abcdef" for level in ("read", "write", "admin")}
LINES = [f"the-{level} {level} {secret}" for level, secret in SECRETS.items()]
ANYWHERE = "0.0.0.0"  # noqa: S104 - nothing is bound here
TOKENS = read_tokens(LINES, "here")


def bearing(secret: str) -> dict[str, Any]:
    return {"headers": {"authorization": f"Bearer {secret}"}}


# -- web pages


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 204),
        ("127.0.0.1:6632", 204),
        ("localhost:6632", 204),
        ("LOCALHOST", 204),
        ("localhost.", 204),
        ("queue.localhost", 204),
        ("[::1]:6632", 204),
        ("evil.example", 403),
        ("evil.example:6632", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("localhost@evil.example", 403),
        ("10.0.0.5", 403),
        ("127.0.0.1:port", 403),
        ("", 403),
        ("[::1", 403),
    ],
)
def test_a_server_answers_to_its_own_names_alone(http: InProcess, host: str, status: int) -> None:
    assert http.get("/api/v1/pop/queue/q", headers={"host": host}).status == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 204),
        ({"sec-fetch-site": "none"}, 204),
        ({}, 204),
    ],
)
def test_no_web_page_empties_a_queue(http: InProcess, headers: dict[str, str], status: int) -> None:
    assert http.get("/api/v1/pop/queue/q?autoAck=true", headers=headers).status == status


def test_a_request_with_two_hosts_is_refused_whichever_of_them_is_ours(http: InProcess) -> None:
    for names in (["127.0.0.1", "127.0.0.1"], ["127.0.0.1", "evil.example"], ["evil.example", "127.0.0.1"]):
        answer = http.get("/api/v1/pop/queue/q", headers=[("host", name) for name in names])

        assert (answer.status, answer.error) == (400, "a request must have exactly one Host")


def test_a_refused_web_page_takes_nothing(http: InProcess) -> None:
    http.push("q", 1)

    http.get("/api/v1/pop/queue/q?autoAck=true", headers={"sec-fetch-site": "cross-site"})

    assert data(http.pop("q")) == [1]


def test_there_is_no_word_to_browsers_that_everybody_may_ask(http: InProcess) -> None:
    answer = http.ask(
        "OPTIONS",
        "/api/v1/push",
        headers={"origin": "https://evil.example", "access-control-request-method": "POST"},
    )

    assert answer.status == 405
    assert "access-control-allow-origin" not in answer.headers


def test_web_pages_of_an_allowed_origin_may_ask(serving: Serving) -> None:
    origin = "https://desk.example"
    http = serving(guard=Guard(origins=[origin]), origins=[origin])
    page = {"origin": origin, "sec-fetch-site": "cross-site"}

    asked = http.ask("OPTIONS", "/api/v1/push", headers={**page, "access-control-request-method": "POST"})
    answer = http.get("/health", headers=page)

    assert asked.status == 200
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        ("queue.example", True),
        ("QUEUE.example:80", True),
        ("10.0.0.5", True),
        ("localhost", True),
        ("x.example", False),
    ],
)
def test_a_server_for_others_answers_to_addresses_and_to_names_that_it_was_given(host: str, is_ours: bool) -> None:
    guard = Guard(bound_to=ANYWHERE, hosts=["Queue.example"], tokens=TOKENS)

    if is_ours:
        guard.check_origin({"host": host})
    else:
        with pytest.raises(Forbidden):
            guard.check_origin({"host": host})


# -- tokens


@pytest.mark.parametrize("host", [ANYWHERE, "::", "10.0.0.5", "queue.example", ""])
def test_a_server_for_others_without_tokens_does_not_begin(host: str) -> None:
    with pytest.raises(ConfigurationError, match="there have to be tokens"):
        Guard(bound_to=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.0.1", "::1", "localhost"])
def test_a_server_for_its_own_machine_needs_no_tokens(host: str) -> None:
    Guard(bound_to=host)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer wrong-0123456789abcdef"},
        {"authorization": f"Basic {SECRETS['admin']}"},
        {"authorization": SECRETS["admin"]},
        {"authorization": f"Bearer {SECRETS['admin']}x"},
    ],
)
def test_without_a_valid_token_nothing_is_told(serving: Serving, headers: dict[str, str]) -> None:
    http = serving(guard=Guard(tokens=TOKENS))

    answer = http.get("/api/v1/resources/queues", headers=headers)

    assert answer.status == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert SECRETS["admin"] not in answer.body.decode()


def test_a_token_in_the_url_opens_nothing(serving: Serving) -> None:
    http = serving(guard=Guard(tokens=TOKENS))

    assert http.get(f"/api/v1/resources/queues?token={SECRETS['admin']}").status == 401


@pytest.mark.parametrize("entry", ROUTES, ids=lambda entry: f"{entry.method} {entry.path}")
def test_each_route_opens_at_its_level_and_not_below(entry: Any) -> None:
    guard = Guard(tokens=TOKENS)

    for level, secret in SECRETS.items():
        if Level[level.upper()] >= entry.level:
            assert guard.check_token(f"Bearer {secret}", entry.level) == (None if not entry.level else f"the-{level}")
        else:
            with pytest.raises(Forbidden, match="is not allowed here"):
                guard.check_token(f"Bearer {secret}", entry.level)


def test_to_pop_is_more_than_to_read(serving: Serving) -> None:
    http = serving(guard=Guard(tokens=TOKENS))

    reading = http.get("/api/v1/pop/queue/q", **bearing(SECRETS["read"]))
    writing = http.get("/api/v1/pop/queue/q", **bearing(SECRETS["write"]))
    removing = http.delete("/api/v1/resources/queues/q", **bearing(SECRETS["write"]))

    assert (reading.status, writing.status, removing.status) == (403, 204, 403)


def test_what_is_public_needs_no_token(serving: Serving) -> None:
    http = serving(guard=Guard(tokens=TOKENS))

    assert [http.get(path).status for path in ("/health", "/openapi.json", "/metrics")] == [200, 200, 401]


@pytest.mark.requirement("Q-70")
def test_the_producer_is_who_has_the_token_whatever_the_client_says(serving: Serving) -> None:
    http = serving(guard=Guard(tokens=TOKENS))
    spoof = {"queue": "q", "payload": 1, "producerSub": "the-admin", "producer": "the-admin"}

    http.post("/api/v1/push", {"items": [spoof]}, **bearing(SECRETS["write"]))
    [message] = http.get("/api/v1/pop/queue/q", **bearing(SECRETS["write"])).json["messages"]
    operations = [
        {"type": "ack", "transactionId": message["transactionId"], "partitionId": message["partitionId"]},
        {"type": "push", "items": [{**spoof, "queue": "r"}]},
    ]
    body = {"operations": operations, "requiredLeases": [message["leaseId"]]}
    moved = http.post("/api/v1/transaction", body, **bearing(SECRETS["admin"]))
    [second] = http.get("/api/v1/pop/queue/r", **bearing(SECRETS["write"])).json["messages"]
    http.post("/api/v1/ack", {**told(second), "status": "dlq"}, **bearing(SECRETS["write"]))
    [dead] = http.get("/api/v1/dlq", **bearing(SECRETS["read"])).json["messages"]

    assert message["producerSub"] == "the-write"
    assert moved.json["success"] is True
    assert second["producerSub"] == dead["producerSub"] == "the-admin"


def test_tokens_stand_in_lines_with_remarks_between() -> None:
    found = read_tokens(["# who", "", *LINES], "here")

    assert [(each.name, each.level) for each in found] == [
        ("the-read", Level.READ),
        ("the-write", Level.WRITE),
        ("the-admin", Level.ADMIN),
    ]
    assert SECRETS["admin"] not in repr(found)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("name write", "write `name level token`"),
        ("name owner 0123456789abcdef", "write `name level token`"),
        ("na/me write 0123456789abcdef", "write `name level token`"),
        ("name write 0123456789", "at least 16 characters"),
        ("the-read write 0123456789abcdef", "is there twice"),
    ],
)
def test_a_wrong_line_is_named_and_not_shown(line: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        read_tokens([*LINES, line], "tokens.txt")

    assert "tokens.txt, line 4" in str(refused.value)
    assert "0123456789" not in str(refused.value)


def test_groups_can_be_kept_from_coming_into_being_by_a_typing_error(serving: Serving, file_engine: Any) -> None:
    http = serving(create_groups=False)
    http.push("q", 1)
    file_engine.subscribe("q", "billing")

    assert http.get("/api/v1/pop/queue/q?consumerGroup=biling").status == 404
    assert data(http.pop("q", consumerGroup="billing")) == [1]
    assert [each["name"] for each in http.get("/api/v1/consumer-groups").json] == ["billing"]
