"""What is changed, and which tests must notice."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]  # not support's: pytest has to be the first to import that
OUTCOMES: Final = ROOT / "mutants"
"""Where it is noted what became of each change; not committed."""
SETTLING: Final = r"ack|claim|requeue|reject|settle|dead|letter|store|push|flush|frames|release|expire|extend"
"""The functions that settle messages, by a part of their names."""


@dataclass(frozen=True)
class Target:
    """Code that is changed, and the tests that run for it."""

    files: tuple[str, ...]
    tests: tuple[str, ...]
    functions: str = ""
    """Only functions whose names have a match of this expression; all, if empty."""
    slowest_seconds: float = 3.0
    """Tests that take longer are left out: a change must be noticed by one that people run often."""
    brokers: bool = True
    """Whether the tests need brokers, which the first run of the tests starts."""


def _transport(name: str, *files: str, tests: str = "") -> Target:
    paths = tuple(f"transports/{name}/{file}.py" for file in files)
    return Target(paths, (tests or f"tests/transports/{name}",), SETTLING, slowest_seconds=8.0)


CORE: Final = (
    "tests/verdict",
    "tests/in_hand/test_slots.py",
    "tests/in_hand/test_gate.py",
    "tests/pumps",
    "tests/transports/memory",
    "tests/program/test_grace.py",
)
"""The tests without a broker."""

TARGETS: Final[dict[str, Target]] = {
    "core": Target(
        (
            "pump/verdict.py",
            "pump/settling.py",
            "pump/ledger.py",
            "pump/pumps/intake.py",
            "pump/pumps/channel_base.py",
            "pump/pumps/channel.py",
            "pump/pumps/async_channel.py",
        ),
        CORE,
        brokers=False,
    ),
    "memory": _transport("memory", "transport", "bus"),
    "rabbitmq": _transport("rabbitmq", "consumer", "deliveries", "delivery_channel"),
    "nats": _transport("nats", "consumer", "dead_letters", "message"),
    "redis": _transport("redis", "consumer", "streams", "lists"),
    "mqtt": _transport("mqtt", "consumer"),
    "kafka": _transport("kafka", "consumer", "member"),
    "sqs": _transport("sqs", "consumer"),
    "pubsub": _transport("pubsub", "consumer"),
    "servicebus": _transport("servicebus", "consumer"),
    "queue": Target(
        ("pump/queue/transport/consumer.py", "pump/queue/transport/held_leases.py"),
        ("tests/queue/transport",),
        SETTLING,
        slowest_seconds=8.0,
    ),
}
LEFT_OUT: Final = ("test_no_loss.py", "test_killers.py", "test_goes_back.py", "*chaos*.py", "*_faults.py", "*_docs.py")
"""Files of tests that take long, or run in other processes, which a change does not reach."""
LEAST: Final = 0.95
"""The share of the changes that must be noticed; each of the others is explained in docs/mutants.md."""
