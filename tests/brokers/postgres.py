"""A private PostgreSQL, in a cluster of its own."""

import os
import pwd
import shutil
import signal
from pathlib import Path
from typing import Any, ClassVar

from brokers import install
from brokers.peer import Peer
from brokers.processes import Process
from brokers.waiting import wait_until

USERS = ("postgres", "nobody")
"""The users that may run it if the tests run as root: PostgreSQL refuses to run as root."""


class Postgres(Peer):
    """Anybody on this machine may connect as `test`, with any password. Confirmed data survive kill -9."""

    name: ClassVar[str] = "postgres"
    stop_signal: ClassVar[int] = signal.SIGINT  # SIGTERM would wait until every client has gone

    def __init__(self, **settings: str) -> None:
        self._client = install.client("psycopg", wheel="psycopg[binary]")
        self._program = install.program(install.POSTGRES)
        super().__init__()
        self.port = self._reserve()
        self._data = self.folder / "data"
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "autovacuum_naptime": "5s",
            **settings,
        }

    @property
    def url(self) -> str:
        """The URL of the default database."""
        return self.url_for()

    def url_for(self, user: str = "test", password: str = "", database: str = "postgres") -> str:
        """The URL of a database, for a user."""
        return f"postgresql://{user}{f':{password}' if password else ''}@127.0.0.1:{self.port}/{database}"

    def connect(self, **options: Any) -> Any:
        """A connection of psycopg that commits each statement by itself; it is a context manager."""
        return self._client.connect(self.url, **{"autocommit": True, "connect_timeout": 5, **options})

    def kill_backends(self, application: str = "%") -> int:
        """End the connections of clients with this application name, as an administrator may; returns how many."""
        kill = (
            "select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity"
            " where backend_type = 'client backend' and pid <> pg_backend_pid() and application_name like %s"
        )
        with self.connect() as connection:
            return int(connection.execute(kill, (application,)).fetchone()[0])

    def program(self, name: str) -> Path:
        """One of the programs that belong to the server."""
        return self._program.with_name(name)

    def _launch(self) -> Process:
        if not self._data.exists():
            self._make_cluster()
        settings = (word for name, value in self._settings.items() for word in ("-c", f"{name}={value}"))
        return self._run(*_as_somebody(), self._program, "-D", self._data, *settings)

    def alter(self, setting: str, value: str) -> None:
        """Change a setting of the server while it runs."""
        with self.connect(options="-c default_transaction_read_only=off") as connection:
            connection.execute(f"alter system set {setting} = '{value}'")
            connection.execute("select pg_reload_conf()")

    def own(self, folder: Path) -> Path:
        """The folder, given to the user that the server runs as; it is made if it is missing."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if os.geteuid() == 0:
            shutil.chown(folder, _somebody().pw_uid, _somebody().pw_gid)
            self.folder.chmod(0o711)
        return folder

    def _make_cluster(self) -> None:
        options = ("--username=test", "--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8")
        self._make_data("initdb", "-D", self.own(self._data), *options)

    def _make_data(self, program: str, *arguments: str | Path) -> None:
        making = self._run(*_as_somebody(), self.program(program), *arguments)
        wait_until(lambda: not making.is_alive, f"{program} ends")

    def _greet(self) -> None:
        with self.connect() as connection:
            connection.execute("select 1")


class PostgresStandby(Postgres):
    """A copy of another server, which follows it until it is promoted."""

    name: ClassVar[str] = "postgres-standby"

    def __init__(self, primary: Postgres, **settings: str) -> None:
        self._primary = primary
        super().__init__(**settings)

    def promote(self) -> None:
        """Make it a primary."""
        with self.connect() as connection:
            connection.execute("select pg_promote()")

    def _make_cluster(self) -> None:
        options = ("--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--wal-method=stream")
        self._make_data("pg_basebackup", "-D", self.own(self._data), "--dbname", self._primary.url, *options)


def _somebody() -> pwd.struct_passwd:
    everybody = {each.pw_name: each for each in pwd.getpwall()}
    return next(everybody[name] for name in USERS if name in everybody)


def _as_somebody() -> list[str | Path]:
    """The command before a program that starts it as a user other than root, and ends it when its keeper ends."""
    if os.geteuid() != 0:
        return []
    user = _somebody()
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=SIGKILL"]
