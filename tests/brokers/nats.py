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
    """Anybody may connect, or, when users are named with their passwords, only they; the URL is then the first's."""

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
        """With the first user's name and password, if there are users."""
        return self.url_for(*next(iter(self.users.items()), ("", "")))

    def url_for(self, user: str, password: str) -> str:
        """With this name and password."""
        return f"nats://{f'{user}:{password}@' if user else ''}127.0.0.1:{self.port}"

    async def connect(self, url: str = "", **options: Any) -> Any:
        """A connection of the nats library that gives up at once when the server is not there."""
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
        return json.dumps(settings, indent=1)  # which its own format includes

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
    """The caller is told by an exception."""


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run it to its end on a loop of its own, also where one runs already."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, coroutine).result()
