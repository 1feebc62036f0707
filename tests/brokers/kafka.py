"""A private Kafka: the broker that is within the client library, in a process of its own.

It keeps what it stores in memory, 5 MB of each partition, for as long as its process lives; and it knows no requests to
create topics, which it creates on first use. `go_down` and `come_up` are what its clients see of a broker's death.
"""

import json
import socket
import sys
from pathlib import Path
from typing import Any, ClassVar

from brokers import install
from brokers.peer import Peer
from brokers.processes import Process
from brokers.waiting import LONG, wait_until

PROGRAM = Path(__file__).parent / "kafka_mock.py"


class Kafka(Peer):
    """One broker. Groups are balanced at once, without waiting for more members."""

    name: ClassVar[str] = "kafka"

    def __init__(self) -> None:
        self._library = install.client("confluent_kafka", wheel="confluent-kafka")
        super().__init__()
        self._address = self.folder / "address"
        self._control = str(self.folder / "control")
        self.port = 0

    @property
    def url(self) -> str:
        """With the options that suit a broker in memory, and tests that do not want to wait."""
        return f"kafka://{self.server}?create=on-use&session=1.5&fetch.wait.max.ms=50&fetch.error.backoff.ms=50"

    @property
    def server(self) -> str:
        """Its host and port."""
        return f"127.0.0.1:{self.port}"

    def tell(self, call: str, *arguments: Any) -> None:
        """Have it do something: one of the functions in its program."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(LONG)
            connection.connect(self._control)
            connection.sendall(json.dumps([call, *arguments]).encode() + b"\n")
            reply = connection.makefile().readline().strip()
        if reply != "done":
            self.fail(f"{call}: {reply}")

    def go_down(self) -> None:
        """Close all connections, and accept none; what is stored stays."""
        self.tell("down")

    def come_up(self) -> None:
        """Serve again."""
        self.tell("up")

    def blink(self) -> None:
        """Close all connections; new ones are welcome."""
        self.go_down()
        self.come_up()

    def client(self, **settings: Any) -> dict[str, Any]:
        """Settings for a client of the library itself."""
        return {"bootstrap.servers": self.server, "log_level": 0, "fetch.wait.max.ms": 50, **settings}

    def _launch(self) -> Process:
        self._address.unlink(missing_ok=True)
        process = self._run(sys.executable, PROGRAM, self._address, self._control)
        wait_until(lambda: self._address.exists() or not process.is_alive, "its address")
        self.port = int(self._address.read_text().rpartition(":")[2]) if self._address.exists() else 0
        return process

    def _greet(self) -> None:
        from confluent_kafka.admin import AdminClient

        AdminClient(self.client()).list_topics(timeout=5)
