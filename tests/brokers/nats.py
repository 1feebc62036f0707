"""A private NATS server with JetStream on files."""

import asyncio
import json
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

from brokers import install
from brokers.peer import Peer
from brokers.processes import Process


class Nats(Peer):
    """Anybody may connect. If users are given with their passwords, only they may; the URL is for the first of them."""

    name: ClassVar[str] = "nats"

    def __init__(self, *, users: Mapping[str, str] | None = None) -> None:
        self._client = install.client("nats", wheel="nats-py")
        self._program = install.program(install.NATS)
        super().__init__()
        self.port = self._reserve()
        self.users = dict(users or {})
        self._configuration = self.folder / "nats.conf"
        self._configuration.write_text(self._configured())

    @property
    def url(self) -> str:
        """The URL, with the first user's name and password if there are users."""
        return self.url_for(*next(iter(self.users.items()), ("", "")))

    def url_for(self, user: str, password: str) -> str:
        """The URL with this name and password."""
        return f"nats://{f'{user}:{password}@' if user else ''}127.0.0.1:{self.port}"

    async def connect(self, url: str = "", **options: Any) -> Any:
        """A connection of the nats library that gives up at once if the server is not there."""
        once = {"allow_reconnect": False, "connect_timeout": 5, "error_cb": _ignore}
        connection = self._client.NATS()
        try:
            await connection.connect(url or self.url, **{**once, **options})
        except BaseException:
            await connection.close()
            raise
        return connection

    def _configured(self) -> str:
        users = [{"user": name, "password": password} for name, password in self.users.items()]
        settings = {
            "listen": f"127.0.0.1:{self.port}",
            "server_name": f"pump-{self.port}",
            "jetstream": {"store_dir": str(self.folder / "jetstream"), "max_mem": 2**28, "max_file": 2**31},
            **({"authorization": {"users": users}} if users else {}),
        }
        return json.dumps(settings, indent=1)  # the format of its configuration includes JSON

    def _launch(self) -> Process:
        return self._run(self._program, "--config", self._configuration)

    def _greet(self) -> None:
        _run(self._ask_jetstream())

    async def _ask_jetstream(self) -> None:
        connection = await self.connect()
        try:
            await connection.jetstream().account_info()
        finally:
            await connection.close()


async def _ignore(error: Exception) -> None:
    """Do nothing: the caller gets an exception."""


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end on a new loop, even if another loop runs in this thread."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()
