"""A private Redis, or its fork Valkey if the machine has that instead."""

from typing import Any, ClassVar, Literal

from brokers import install
from brokers.peer import Peer
from brokers.processes import Process


class Redis(Peer):
    """Keeps its data after kill -9: it appends them to a file, flushed every second, or each time with `always`."""

    name: ClassVar[str] = "redis"

    def __init__(
        self,
        *,
        append_fsync: Literal["everysec", "always"] = "everysec",
        password: str = "",
    ) -> None:
        self._client = install.client("redis", wheel="redis")
        self._program = install.program(install.REDIS)
        super().__init__()
        self.port = self._reserve()
        self.password = password
        self._options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self.folder),
            "appendonly": "yes",
            "appendfsync": append_fsync,
            "save": "",
            "requirepass": password,
        }

    @property
    def url(self) -> str:
        """The URL, with the password if there is one."""
        return self.url_for(self.password)

    def url_for(self, password: str) -> str:
        """The URL with this password."""
        return f"redis://{f':{password}@' if password else ''}127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> Any:
        """A client of the redis library; a context manager that closes it. It never tries twice."""
        once = self._client.retry.Retry(self._client.backoff.NoBackoff(), 0)
        return self._client.Redis.from_url(self.url, **{"socket_timeout": 5, "retry": once, **options})

    def _launch(self) -> Process:
        options = (word for name, value in self._options.items() for word in (f"--{name}", value))
        return self._run(self._program, *options)

    def _greet(self) -> None:
        with self.client() as client:
            client.ping()
