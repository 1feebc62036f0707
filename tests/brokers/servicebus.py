"""A private Service Bus of the project's own: the vendor has none that could be installed here."""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from brokers import install
from brokers.peer import Peer
from brokers.processes import Process

KEY = "a+secret/key="
KEYS = {
    "RootManageSharedAccessKey": {"key": KEY, "claims": ["manage", "send", "listen"]},
    "listener": {"key": "listens", "claims": ["listen"]},
    "sender": {"key": "sends", "claims": ["send"]},
}
PROGRAM = Path(__file__).with_name("servicebus_peer.py")


class ServiceBus(Peer):
    """Queues, topics and subscriptions are made by its management; it keeps them, and messages, when it ends."""

    name: ClassVar[str] = "servicebus"

    def __init__(self, *, idle_seconds: float = 240.0) -> None:
        install.client("azure.servicebus", wheel="azure-servicebus")
        install.client("proton", wheel="python-qpid-proton")
        super().__init__()
        self.port = self._reserve()
        self.admin_port = self._reserve()
        self._idle_seconds = idle_seconds

    @property
    def url(self) -> str:
        """With the key that may do everything."""
        return self.url_for("RootManageSharedAccessKey")

    def url_for(self, name: str, key: str = "") -> str:
        """With this key."""
        key = key or str(KEYS[name]["key"])
        options = f"emulator=true&management_port={self.admin_port}"
        return f"servicebus://{name}:{quote(key, safe='')}@127.0.0.1:{self.port}?{options}"

    @property
    def connection_string(self) -> str:
        """As the vendor's client takes it."""
        return (
            f"Endpoint=sb://127.0.0.1:{self.port};SharedAccessKeyName=RootManageSharedAccessKey;"
            f"SharedAccessKey={KEY};UseDevelopmentEmulator=true"
        )

    def command(self, name: str, **given: Any) -> Any:
        """Have it do something that a broker does to its clients."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.admin_port}/$test/{name}", data=json.dumps(given).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - on loopback
            return json.loads(answer.read() or b"null")

    def _launch(self) -> Process:
        settings = {
            "port": self.port,
            "admin_port": self.admin_port,
            "journal": str(self.folder / "journal"),
            "keys": KEYS,
            "idle_seconds": self._idle_seconds,
        }
        return self._run(sys.executable, PROGRAM, json.dumps(settings))

    def _greet(self) -> None:
        self.command("seen")
