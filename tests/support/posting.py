"""Posts jobs of a cluster's program from the test's own process."""

import json
from collections.abc import Sequence
from contextlib import closing
from uuid import uuid4

from pump import Command, Publication, Subscription
from pump.message import Header, Message
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import transport_from
from support.cluster_works import ClusterWorks


class Job(Command):
    """Stands for the program's own type of job, which travels under the same name."""


def post(works: ClusterWorks, jobs: Sequence[tuple[str, str, float]]) -> None:
    """Post jobs: name, fate and seconds of each."""
    transport = transport_from(works.url)
    one = blocking(transport)
    one.prepare(
        [Subscription(Job, channel=works.channel, topic=works.channel, dead_letter=f"{works.channel}.dead")],
        [Publication(Job, topic=works.channel)],
    )
    messages = [
        Message(
            Header(uuid4().hex, topic=works.channel, type="Job"),
            json.dumps({"name": name, "fate": fate, "seconds": seconds}).encode(),
        )
        for name, fate, seconds in jobs
    ]
    with closing(one.producer()) as producer:
        producer.send(messages)
