"""The options of a `NatsTransport` in a URL."""

from typing import Any, Final

from pump.transport_kit.settings import Options, read_url
from pump.transport_kit.tls import only_with_tls, tls_context

PORT: Final = 4222
PLAIN: Final = "nats"
ENCRYPTED: Final = "tls+nats"
FORM: Final = "nats://user:password@host:port,host:port/?option=value"
FILES: Final = ("tls_ca", "tls_cert", "tls_key")
OPTIONS: Final[Options] = {
    "name": str,
    "stream": str,
    "domain": str,
    "credentials": str,
    "replicas": int,
    "max_payload": int,
    "max_retries": int,
    "retry_base_ms": float,
    "publish_timeout": float,
    **dict.fromkeys(FILES, str),
}


def url_options(url: str) -> dict[str, Any]:
    """The options in `nats://user:password@host:port,host:port/?name=…` or `tls+nats://…`; a lone user is a token."""
    read = read_url(url, FORM, OPTIONS, schemes=(PLAIN, ENCRYPTED))
    if read.path:
        raise read.error("it has a path; streams and consumers are named by subscriptions")
    options = dict(read.options)
    ca_file, cert_file, key_file = (options.pop(name, None) for name in FILES)
    if read.scheme == ENCRYPTED:
        options["tls"] = tls_context("NATS", ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    else:
        only_with_tls("NATS", ENCRYPTED, dict(zip(FILES, (ca_file, cert_file, key_file), strict=True)))
    if read.password is not None:
        options.update(user=read.user, password=read.password)
    elif read.user is not None:
        options["token"] = read.user
    hosts = read.hosts() or [("127.0.0.1", PORT)]
    options["servers"] = [
        f"nats://{f'[{host}]' if host and ':' in host else host}:{port or PORT}" for host, port in hosts
    ]
    return options


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
