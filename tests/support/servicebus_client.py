"""The vendor's client, hurried: it sleeps 50 ms between any two steps while it connects, and tests connect a lot."""

import asyncio
from typing import Any

import pytest


class _Impatient:
    """The module asyncio, but for sleeps."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.002))


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the client connect in a fifth of its time."""
    from azure.servicebus._pyamqp.aio import _client_async
    from azure.servicebus.aio import _servicebus_receiver_async, _servicebus_sender_async

    for module in (_servicebus_receiver_async, _servicebus_sender_async, _client_async):
        monkeypatch.setattr(module, "asyncio", _Impatient())
