"""The contract on Google's own emulator, where it is installed; it is in no registry that tests could install it from.

It forgets everything when it ends, so nothing here is about what outlives it.
"""

from dataclasses import replace

import pytest

from brokers.pubsub import PubSubEmulator
from pump.testing.contract import TransportContract
from pump.transport_kit.protocol import Transport
from support.pubsub_contract import made, publish, transport_to

LEASE = 5.0


@pytest.mark.long
class TestEmulator(TransportContract):
    broker: PubSubEmulator
    streaming = False
    silence_seconds = 1.0
    lease_seconds = LEASE
    late_seconds = 3.0

    @pytest.fixture(autouse=True)
    def _on(self, pubsub_emulator: PubSubEmulator) -> None:
        self.broker = pubsub_emulator

    @pytest.fixture
    def transport(self, pubsub_emulator: PubSubEmulator) -> Transport:
        transport = transport_to(pubsub_emulator.port, lease=LEASE, streaming=self.streaming)
        transport.capabilities = replace(transport.capabilities, durable=False)
        return transport

    def in_another_process(self, transport: Transport) -> str:
        return made(self.broker.port).replace("lease=2", f"lease={LEASE}")

    def send_unparseable(self, transport: Transport, topic: str) -> bytes:
        publish(self.broker.port, topic, b"\xff\x00 body", {"pump-kind": "nonsense", "pump-time": "soon"})
        return b"\xff\x00 body"


@pytest.mark.long
class TestEmulatorStreaming(TestEmulator):
    streaming = True
