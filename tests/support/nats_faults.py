"""A client of NATS whose calls fail when and how a test says."""

import asyncio
from typing import Any, Final

import nats.errors
from nats.aio.client import Client

from support.nats_wire import NAK

POINTS: Final = ("connect", "publish", "ack", "nak", "subscribe")
MODES: Final = ("error", "timeout", "close", "delay")
DELAY: Final = 0.5


class Faults:
    """The calls that must fail, and those that have failed."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self._armed: dict[str, tuple[str, int]] = {}

    def arm(self, point: str, mode: str, times: int = 1) -> None:
        """Let the next calls of this kind fail in this way."""
        self._armed[point] = mode, times

    def client(self) -> type[Client]:
        """A class of clients that fail by these faults."""
        return type("Faulty", (_Faulty,), {"faults": self})

    def strike(self, point: str) -> str:
        """How this call fails; "" is for a call that works."""
        mode, times = self._armed.get(point, ("", 0))
        if not times:
            return ""
        self._armed[point] = mode, times - 1
        self.done.append((point, mode))
        return mode


class _Faulty(Client):
    faults: Faults

    async def connect(self, *arguments: Any, **options: Any) -> None:
        if not await self._fails(self.faults.strike("connect")):
            await super().connect(*arguments, **options)

    async def subscribe(self, *arguments: Any, **options: Any) -> Any:
        await self._fails(self.faults.strike("subscribe"))
        return await super().subscribe(*arguments, **options)

    async def publish(self, subject: str, payload: bytes = b"", *arguments: Any, **options: Any) -> None:
        mode = self.faults.strike(_point(subject, payload))
        if mode == "timeout":
            return  # it is lost
        if not await self._fails(mode):
            await super().publish(subject, payload, *arguments, **options)

    async def _fails(self, mode: str) -> bool:
        if mode == "error":
            raise nats.errors.Error("nats: injected")
        if mode == "timeout":
            await asyncio.sleep(DELAY)
            raise nats.errors.TimeoutError
        if mode == "close":
            if self.is_connected:
                await self.close()
            raise nats.errors.ConnectionClosedError
        if mode == "delay":
            await asyncio.sleep(DELAY)
        return False


def _point(subject: str, payload: bytes) -> str:
    if subject.startswith("$JS.ACK."):
        return {b"": "ack", NAK: "nak"}.get(payload[:4], "")
    return "" if subject.startswith(("$JS.", "_INBOX.")) else "publish"
