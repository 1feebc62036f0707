"""The names and ARNs of queues and SNS topics."""

import hashlib
import re
from typing import Final
from uuid import uuid4

from pump.errors import ConfigurationError

FIFO_ENDING: Final = ".fifo"
LONGEST_NAME: Final = 80
LONGEST_GROUP: Final = 128

_NAME: Final = re.compile(r"[A-Za-z0-9_-]+")
_GROUP: Final = re.compile(r"[!-~]+")


def broker_name(name: str, *, fifo: bool) -> str:
    """The name of a channel or topic on the broker; a dot becomes a hyphen.

    A FIFO queue's name ends with .fifo, which may be left out. ConfigurationError if no queue can have the name.
    """
    plain = name.replace(FIFO_ENDING, "") if fifo else name
    if not fifo and name.endswith(FIFO_ENDING):
        raise ConfigurationError(f"sqs: {name!r} is the name of a FIFO queue: use sqs+fifo://")
    made = plain.replace(".", "-") + (FIFO_ENDING if fifo else "")
    if not _NAME.fullmatch(made.removesuffix(FIFO_ENDING)):
        raise ConfigurationError(
            f"sqs: {name!r} cannot be a queue's name: it may have letters, digits, '-', '_' and '.'"
        )
    if len(made) > LONGEST_NAME:
        raise ConfigurationError(f"sqs: {name!r} is too long: a queue's name has at most {LONGEST_NAME} characters")
    return made


def group_of(key: str | None) -> str:
    """The message group of a key; a message without a key has a group of its own, and waits for no other.

    A key that cannot be the name of a group is replaced by its digest.
    """
    if key is None:
        return f"pump-{uuid4().hex}"
    if _GROUP.fullmatch(key) and len(key) <= LONGEST_GROUP:
        return key
    return "pump-" + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def topic_arn(queue_arn: str, name: str) -> str:
    """The ARN of the SNS topic of that name in the account and region of a queue."""
    _, partition, _, region, account, _ = queue_arn.split(":", 5)
    return f"arn:{partition}:sns:{region}:{account}:{name}"


def place_of(arn: str) -> list[str]:
    """The region and account of a queue or an SNS topic."""
    return arn.split(":")[3:5]
