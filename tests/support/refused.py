"""A program that cannot start, and the one line in which `pump` says why."""

from pathlib import Path

from support.programs import pump_run

PROGRAM = """
from dataclasses import dataclass

from pump import Command, Dispatcher, RequestHandler, Subscription

@dataclass(frozen=True)
class Order(Command):
    sku: str

class Handler(RequestHandler[Order]):
    def handle(self, order: Order) -> None:
        pass

subscription = Subscription(Order, topic={topic!r}, missing={missing!r})
dispatcher = Dispatcher({url!r}, handlers=[Handler], subscriptions=[subscription])
"""

SETUP_ERROR = 3


def refusal(folder: Path, url: str, topic: str = "orders-x", missing: str = "create") -> str:
    """The one line in which `pump run` says what is wrong, without any traceback."""
    (folder / "refused.py").write_text(PROGRAM.format(url=url, topic=topic, missing=missing), "utf-8")

    ended = pump_run("run", "refused:dispatcher", folder=folder)

    assert ended.returncode == SETUP_ERROR
    assert "Traceback" not in ended.stdout + ended.stderr
    (line,) = (line for line in ended.stderr.splitlines() if line and " INFO " not in line)
    return line
