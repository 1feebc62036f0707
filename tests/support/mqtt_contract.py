"""The contract on a real Mosquitto, for each version of MQTT."""

import pytest

from brokers.fixtures import ProxyTo
from brokers.mosquitto import Mosquitto
from brokers.proxy import Proxy
from pump.testing.contract import TransportContract
from pump.transport_kit.protocol import Transport
from pump.transports.mqtt import MqttServer, MqttTransport, registry
from pump.transports.mqtt.settings import Version

LARGEST_BODY = 300_000


class MqttContract(TransportContract):
    """By a proxy, which can break what it carries."""

    version: Version
    broker: Mosquitto
    proxy: Proxy
    silence_seconds = 0.1
    delay_seconds = 0.3
    lease_seconds = 0.2
    makes_channels_on_use = True

    @pytest.fixture(autouse=True)
    def _hurry(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "LATE_SECONDS", 0.0)  # one node is never late

    @pytest.fixture
    def transport(self, own_mosquitto: Mosquitto, proxy_to: ProxyTo) -> Transport:
        self.broker, self.proxy = own_mosquitto, proxy_to(own_mosquitto.port)
        server = MqttServer(host="127.0.0.1", port=self.proxy.port, version=self.version)
        return MqttTransport(server, largest_body=LARGEST_BODY)

    def break_connection(self, transport: Transport) -> None:
        self.proxy.reset()

    def restart_broker(self, transport: Transport) -> None:
        self.broker.restart()

    def in_another_process(self, transport: Transport) -> str:
        return (
            "from pump.transports.mqtt import MqttTransport, MqttServer\n"
            f"server = MqttServer(host='127.0.0.1', port={self.proxy.port}, version={self.version!r})\n"
            f"transport = MqttTransport(server, largest_body={LARGEST_BODY})"
        )
