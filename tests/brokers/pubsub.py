"""A private Pub/Sub: a server of the test bed's own, or Google's emulator where it is installed."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any, ClassVar

from brokers import install, pubsub_server
from brokers.certificates import Certificates
from brokers.peer import Peer
from brokers.processes import Process

PROJECT = "test-project"
JAR = "/usr/lib/google-cloud-sdk/platform/pubsub-emulator/lib"
"""Where the packages of Google Cloud's command line put the emulator. No Debian, PyPI or npm package brings it."""
SHORTEST_DEADLINE = 1
"""Google's is 10 s; tests have no time."""


class PubSub(Peer):
    """The test bed's own server. What it stores outlives kill -9, as it would at Google."""

    name: ClassVar[str] = "pubsub"

    def __init__(self, certificates: Certificates | None = None) -> None:
        install.client("google.pubsub_v1", wheel="google-cloud-pubsub")
        super().__init__()
        self.port = self._reserve()
        self._settings = {
            "port": self.port,
            "journal": str(self.folder / "journal"),
            "shortest_deadline": SHORTEST_DEADLINE,
            "certificate": str(certificates.certificate) if certificates else "",
            "key": str(certificates.key) if certificates else "",
        }
        self._certificates = certificates

    @property
    def endpoint(self) -> str:
        """The address, without a scheme."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Of the one project there is."""
        return f"pubsub://{PROJECT}?endpoint={self.endpoint}&plaintext=true"

    def tell(self, do: str, **order: Any) -> dict[str, Any]:
        """Have something go wrong, or ask how things stand."""
        with self._channel() as channel:
            call = channel.unary_unary(pubsub_server.CONTROL)
            answer = call(json.dumps({"do": do, **order}).encode(), timeout=30.0, wait_for_ready=True)
        return dict(json.loads(answer))

    def _channel(self) -> Any:
        import grpc

        if self._certificates is None:
            return grpc.insecure_channel(self.endpoint)
        return grpc.secure_channel(
            self.endpoint, grpc.ssl_channel_credentials(self._certificates.authority.read_bytes())
        )

    def fault(self, method: str, code: str = "UNAVAILABLE", **order: Any) -> None:
        """Let the next calls of a method fail."""
        self.tell("fault", method=method, code=code, **order)

    def state(self, subscription: str) -> dict[str, Any]:
        """How many messages of a subscription are unacknowledged, outstanding and acknowledged."""
        return self.tell("state", subscription=f"projects/{PROJECT}/subscriptions/{subscription}")

    def calls(self, method: str) -> int:
        """How often a method was called."""
        return int(self.tell("calls")["calls"].get(method, 0))

    def revive(self) -> None:
        """As Peer's, and nothing goes wrong any more."""
        super().revive()
        self.tell("heal")

    def _launch(self) -> Process:
        return self._run(sys.executable, pubsub_server.__file__, json.dumps(self._settings))

    def _greet(self) -> None:
        self.tell("calls")


class PubSubEmulator(Peer):
    """Google's own emulator: it forgets everything when it ends."""

    name: ClassVar[str] = "pubsub-emulator"

    def __init__(self) -> None:
        import pytest

        jars = sorted(Path(JAR).glob("cloud-pubsub-emulator-*-all.jar"))
        java = shutil.which("java")
        if not jars or java is None:
            pytest.skip("Google's emulator is not installed, and no reachable registry has it")
        self._command: tuple[str | Path, ...] = (
            java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", jars[-1],
        )  # fmt: skip
        super().__init__()
        self.port = self._reserve()

    @property
    def url(self) -> str:
        """Of the one project there is."""
        return f"pubsub://{PROJECT}?endpoint=127.0.0.1:{self.port}&plaintext=true"

    def _launch(self) -> Process:
        return self._run(*self._command, "--host=127.0.0.1", f"--port={self.port}")

    def _greet(self) -> None:
        import grpc

        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            listing = channel.unary_unary("/google.pubsub.v1.Publisher/ListTopics")
            listing(b"\n" + bytes([len(f"projects/{PROJECT}")]) + f"projects/{PROJECT}".encode(), timeout=5.0)
