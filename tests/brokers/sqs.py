"""A private SQS, with SNS beside it: ministack, which keeps what it has over a graceful stop."""

import importlib
import os
from typing import Any, ClassVar

from brokers import install
from brokers.peer import Peer
from brokers.processes import Process

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "not-a-secret",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
"""What boto3 finds, in tests and in the programs that they start."""


class Sqs(Peer):
    """Keeps its queues over a graceful stop; kill -9 empties it."""

    name: ClassVar[str] = "sqs"

    def __init__(self) -> None:
        self._boto3 = install.client("boto3", wheel="boto3")
        self._program = install.program(install.MINISTACK)
        super().__init__()
        self.port = self._reserve()

    @property
    def endpoint(self) -> str:
        """Where requests go."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Of the transport on standard queues."""
        return self.url_for("sqs")

    def url_for(self, scheme: str = "sqs", port: int | None = None, **options: object) -> str:
        """Of a transport, with options; another port is that of a proxy."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"{scheme}://eu-central-1?endpoint=http://127.0.0.1:{port or self.port}{more}"

    def client(self, service: str = "sqs") -> Any:
        """A client of boto3's that never tries twice."""
        config = importlib.import_module("botocore.config").Config(
            connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 1}
        )
        return self._boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="eu-central-1",
            aws_access_key_id="test",
            aws_secret_access_key="not-a-secret",
            config=config,
        )

    def _launch(self) -> Process:
        state = self.folder / "state"
        state.mkdir(exist_ok=True)
        environment = {
            "GATEWAY_PORT": str(self.port),
            "BIND_HOST": "127.0.0.1",
            "SERVICES": "sqs,sns",
            "PERSIST_STATE": "1",
            "STATE_DIR": str(state),
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "LOG_LEVEL": "WARNING",
        }
        return self._run(self._program, **environment)

    def _greet(self) -> None:
        self.client().list_queues()


def queue_url(client: Any, name: str) -> str:
    """The URL of a queue."""
    return str(client.get_queue_url(QueueName=name)["QueueUrl"])


def depth(client: Any, name: str) -> int:
    """How many messages a queue has: visible, in flight and delayed; 0 where there is no such queue."""
    names = ["", "NotVisible", "Delayed"]
    attributes = [f"ApproximateNumberOfMessages{each}" for each in names]
    try:
        url = queue_url(client, name)
    except client.exceptions.QueueDoesNotExist:
        return 0
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=attributes)["Attributes"]
    return sum(int(found.get(each, 0)) for each in attributes)
