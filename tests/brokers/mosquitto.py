"""A private Mosquitto."""

from typing import Any, ClassVar

from brokers import install
from brokers.peer import Peer
from brokers.processes import Process


class Mosquitto(Peer):
    """Keeps its sessions over kill -9: they are written after each change."""

    name: ClassVar[str] = "mosquitto"

    def __init__(self, *settings: str) -> None:
        """`settings` are lines of its configuration, more of them or other ones."""
        self._client = install.client("paho.mqtt.client", wheel="paho-mqtt")
        self._program = install.program(install.MOSQUITTO)
        super().__init__()
        self.port = self._reserve()
        own: tuple[str, ...] = (
            f"listener {self.port} 127.0.0.1",
            "persistence true",
            f"persistence_location {self.folder}/",
            "autosave_on_changes true",
            "autosave_interval 1",
            "max_queued_messages 0",
            "max_inflight_messages 1000",
            "set_tcp_nodelay true",
            "log_dest stderr",
            "user root",
            "allow_anonymous true",
        )
        changed = {each.split()[0] for each in settings}
        own = tuple(each for each in own if each.split()[0] not in changed)
        self._file = self.folder / "mosquitto.conf"
        self._file.write_text("\n".join((*own, *settings)) + "\n")
        self._greeting: dict[str, Any] = {}

    @property
    def url(self) -> str:
        """Without user and password."""
        return f"mqtt://127.0.0.1:{self.port}"

    def client(self, client_id: str = "", **options: Any) -> Any:
        """A client of the paho library that speaks MQTT 5, and is not connected yet."""
        options = {"protocol": self._client.MQTTv5, **options}
        return self._client.Client(self._client.CallbackAPIVersion.VERSION2, client_id=client_id, **options)

    def _launch(self) -> Process:
        return self._run(self._program, "-c", str(self._file))

    def _greet(self) -> None:
        """The port is open: it has read its database before."""
