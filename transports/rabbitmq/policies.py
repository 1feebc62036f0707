"""The policies that operators have set for a queue. AMQP does not tell them; the management API does."""

import json
import logging
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote
from urllib.request import Request, urlopen

from pump.duration import seconds
from pump.transport_kit.settings import tls_context
from pump.transports.rabbitmq.settings import RabbitMQSettings

log: Final = logging.getLogger("pump.transports.rabbitmq")

LONGEST_SECONDS: Final = 3.0
_REMOVING: Final = {
    "message-ttl": "messages older than {} ms become dead letters unhandled",
    "expires": "after {} ms without a consumer the queue is deleted, with all its messages",
    "max-length": "it takes no more than {} messages",
    "max-length-bytes": "it takes no more than {} bytes",
}
"""What a policy may do to messages, in addition to limiting their deliveries."""


def read_limit(settings: RabbitMQSettings, queue: str) -> int | None:
    """The delivery limit of a queue; None if it has none, or if it is not known.

    Blocks for some seconds at most. Logs a warning for each policy that may remove messages, and if reading them fails.
    """
    try:
        known = _ask(settings, queue)
    except Exception as error:  # of the network, HTTP, JSON or TLS: the queue can still be used
        text = "%s: the policies of the queue %s cannot be read: %s"
        log.warning(text, settings.management, queue, error)
        return None
    policy = known.get("effective_policy_definition")
    if not isinstance(policy, dict):  # the server needs some seconds to know the policy of a new queue
        return None
    names = ", ".join(str(known[kind]) for kind in ("policy", "operator_policy") if known.get(kind))
    for key, effect in _REMOVING.items():
        if key in policy:
            log.warning("a policy (%s) applies to the queue %s: %s", names, queue, effect.format(policy[key]))
    limits = (policy.get("delivery-limit"), known.get("arguments", {}).get("x-delivery-limit"))
    return min((limit for limit in limits if isinstance(limit, int) and limit >= 0), default=None)


def _ask(settings: RabbitMQSettings, queue: str) -> Mapping[str, Any]:
    base = settings.management.rstrip("/")
    place = f"{base}/api/queues/{quote(settings.virtual_host, '')}/{quote(queue, '')}"
    login = b64encode(f"{settings.user}:{settings.password}".encode()).decode()
    request = Request(place, headers={"Authorization": f"Basic {login}"})  # noqa: S310 - the settings allow HTTP alone
    context = None
    if base.startswith("https"):
        context = tls_context(
            "rabbitmq", ca_file=settings.ca_file, cert_file=settings.cert_file, key_file=settings.key_file
        )
    with urlopen(request, timeout=min(LONGEST_SECONDS, seconds(settings.timeout)), context=context) as answer:  # noqa: S310
        found: Mapping[str, Any] = json.load(answer)
    return found
