"""A private RabbitMQ node, with an epmd of its own; no file of the system's RabbitMQ is read or changed."""

import json
import os
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import quote

from brokers import install, ports, waiting
from brokers.certificates import Certificates
from brokers.peer import Peer
from brokers.processes import Process

GUEST = "guest"
CONSUMER_TIMEOUT_SECONDS = 1800.0
LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
IDLE = "+sbwt none +sbwtdcpu none +sbwtdio none"  # otherwise its idle threads spin, and slow the tests down
ADVANCED = "[{rabbit, [{channel_tick_interval, 1000}]}].\n"  # the interval of checks for consumers' time-outs, in ms
CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
listeners.ssl.1 = 127.0.0.1:{tls_port}
ssl_options.cacertfile = {authority}
ssl_options.certfile = {certificate}
ssl_options.keyfile = {key}
ssl_options.verify = verify_none
loopback_users = none
log.console.level = warning
"""


class RabbitMQ(Peer):
    """User and password are both `guest`. `tls_port` speaks TLS, with a certificate that `authority` signed."""

    name: ClassVar[str] = "rabbitmq"

    def __init__(self) -> None:
        self._pika = install.client("pika", wheel="pika")
        self._server = install.program(install.RABBITMQ)
        super().__init__()
        self.port, self.tls_port = self._reserve(), self._reserve()
        self._certificates = Certificates(self.folder)
        self.authority = self._certificates.authority
        self._environment = self._configure()

    @property
    def url(self) -> str:
        """The URL of the default virtual host, for guest."""
        return self.url_for()

    def url_for(self, virtual_host: str = "/", *, user: str = GUEST, password: str = GUEST, tls: bool = False) -> str:
        """The URL of a virtual host, for a user."""
        scheme, port = ("amqps", self.tls_port) if tls else ("amqp", self.port)
        return f"{scheme}://{quote(user, '')}:{quote(password, '')}@127.0.0.1:{port}/{quote(virtual_host, '')}"

    def connect(self, url: str = "") -> Any:
        """A BlockingConnection of pika, which is a context manager."""
        parameters = self._pika.URLParameters(url or self.url)
        if parameters.ssl_options:
            context = ssl.create_default_context(cafile=str(self.authority))
            parameters.ssl_options = self._pika.SSLOptions(context, "127.0.0.1")
        return self._pika.BlockingConnection(parameters)

    def add_vhost(self, name: str) -> str:
        """Add a virtual host that guest may use; returns its URL."""
        self.control("add_vhost", name)
        self.permit(GUEST, name)
        return self.url_for(name)

    def delete_vhost(self, name: str) -> None:
        """Delete a virtual host and everything in it."""
        self.control("delete_vhost", name)

    def add_user(self, name: str, password: str) -> None:
        """Add a user without any permission."""
        self.control("add_user", name, password)

    def permit(
        self, user: str, virtual_host: str = "/", *, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None:
        """Permit a user to configure, write and read the names that match these patterns."""
        self.control("set_permissions", "-p", virtual_host, user, configure, write, read)

    def list_queues(self, virtual_host: str = "/") -> dict[str, int]:
        """How many messages each queue holds, including those that consumers have in hand."""
        options = ("--formatter", "json", "--silent", "-p", virtual_host)
        rows = json.loads(self.control("list_queues", *options, "name", "messages"))
        return {row["name"]: int(row["messages"]) for row in rows}

    def delete_queue(self, name: str, virtual_host: str = "/") -> None:
        """Delete a queue and its messages, even while it has consumers."""
        with self.connect(self.url_for(virtual_host)) as connection:
            connection.channel().queue_delete(name)

    def close_connections(self, reason: str = "closed by a test") -> None:
        """Close every connection, as an operator may; clients get the code 320."""
        self.control("close_all_connections", reason)

    @contextmanager
    def consumer_timeout(self, seconds: float) -> Iterator[None]:
        """Inside the block, consumers on new channels may hold a message for so many seconds; checked every second."""
        self._set_consumer_timeout(seconds)
        yield
        if self.is_running:  # otherwise the next start forgets it anyway
            self._set_consumer_timeout(CONSUMER_TIMEOUT_SECONDS)

    def _set_consumer_timeout(self, seconds: float) -> None:
        self.control("eval", f"application:set_env(rabbit, consumer_timeout, {round(seconds * 1000)}).")

    def control(self, *arguments: str) -> str:
        """Run rabbitmqctl; returns its output."""
        done = subprocess.run(
            [self._server.with_name("rabbitmqctl"), "-n", self._environment["RABBITMQ_NODENAME"], *arguments],
            check=False,
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            timeout=waiting.LONG,
        )
        if done.returncode:
            self.fail(f"rabbitmqctl {' '.join(arguments)} said {done.stdout}{done.stderr}")
        return done.stdout

    def _configure(self) -> dict[str, str]:
        """Write the configuration; returns the environment that names all its files, so that no system file is read."""
        certificates = vars(self._certificates)
        configuration = CONFIGURATION.format(port=self.port, tls_port=self.tls_port, **certificates)
        files = {
            "RABBITMQ_CONFIG_FILE": ("rabbitmq.conf", configuration),
            "RABBITMQ_ADVANCED_CONFIG_FILE": ("advanced.config", ADVANCED),
            "RABBITMQ_ENABLED_PLUGINS_FILE": ("enabled_plugins", "[].\n"),
        }
        for name, text in files.values():
            (self.folder / name).write_text(text)
        places = {
            "RABBITMQ_MNESIA_BASE": "mnesia",
            "RABBITMQ_LOG_BASE": "logs",
            "RABBITMQ_PID_FILE": "pid",
            "RABBITMQ_GENERATED_CONFIG_DIR": "generated",
            "RABBITMQ_FEATURE_FLAGS_FILE": "feature_flags",
            "ERL_CRASH_DUMP": "crash",
            "HOME": ".",  # the secret that it shares with its tools is written there
        }
        return {
            **{variable: str(self.folder / name) for variable, (name, _) in files.items()},
            **{variable: str(self.folder / name) for variable, name in places.items()},
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_NODENAME": f"pump{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._reserve()),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"{LOOPBACK} {IDLE}",
            "RABBITMQ_CTL_ERL_ARGS": LOOPBACK,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._reserve()),
            "LC_ALL": "C.UTF-8",
            "RUNNING_UNDER_SYSTEMD": "true",  # no shell stays between the keeper and the node
        }

    def _launch(self) -> Process:
        epmd = shutil.which("epmd") or install.give_up("epmd is missing: it comes with Erlang")
        port = self._environment["ERL_EPMD_PORT"]
        self._run(epmd, "-address", "127.0.0.1", "-port", port)
        self._wait(lambda: ports.is_open(int(port)), "epmd listens")
        return self._run(self._server, **self._environment)

    def _greet(self) -> None:
        self.connect().close()
