"""A consumer of the queue's HTTP API, as a program of its own: it pops, does nothing long, settles, until killed."""

import sys
import time
from typing import Any

import httpx

LEASE_SECONDS = 2


def work(url: str, queue: str) -> None:
    """Pop by twenty and settle them in one call; what fails is left, and comes again when its lease has ended."""
    with httpx.Client(base_url=url, timeout=10) as client:
        sys.stdout.write("working\n")
        sys.stdout.flush()
        while True:
            try:
                settle(client, pop(client, queue))
            except httpx.HTTPError:
                time.sleep(0.05)  # the server is away: ask again soon


def pop(client: httpx.Client, queue: str) -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/pop/queue/{queue}", params={"batch": 20, "wait": "true", "timeout": 500})
    if answer.status_code == 503:
        time.sleep(0.05)
    messages: list[dict[str, Any]] = answer.json()["messages"] if answer.status_code == 200 else []
    return messages


def settle(client: httpx.Client, messages: list[dict[str, Any]]) -> None:
    if messages:
        told = [{name: each[name] for name in ("transactionId", "partitionId", "leaseId")} for each in messages]
        items = [{**each, "status": "completed"} for each in told]
        client.post("/api/v1/ack/batch", json={"acknowledgments": items})


if __name__ == "__main__":
    work(*sys.argv[1:])
