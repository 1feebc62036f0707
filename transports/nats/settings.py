"""What a NATS URL says. Nothing secret of it ever appears in an error."""

from collections.abc import Callable, Mapping
from ssl import SSLContext, SSLError, create_default_context
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from pump.errors import ConfigurationError

PORT: Final = 4222
PLAIN: Final = "nats"
ENCRYPTED: Final = "tls+nats"
OPTIONS: Final[Mapping[str, Callable[[str], object]]] = {
    "name": str,
    "stream": str,
    "domain": str,
    "credentials": str,
    "replicas": int,
    "max_payload": int,
    "max_retries": int,
    "retry_base_ms": float,
    "publish_timeout": float,
}
FILES: Final[tuple[str, ...]] = ("tls_ca", "tls_cert", "tls_key")


def parsed(url: str) -> dict[str, Any]:
    """The options of a NatsTransport, from `nats://user:password@host:port,host:port/?name=…` or `tls+nats://…`.

    A user without a password is a token. ConfigurationError where the URL makes no sense.
    """
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigurationError("this nats:// URL makes no sense: is its query name=value&name=value?") from None
    if parts.scheme not in {PLAIN, ENCRYPTED}:
        raise ConfigurationError(f"{parts.scheme}:// is not NATS: {PLAIN}:// or {ENCRYPTED}://")
    if parts.path not in {"", "/"} or parts.fragment:
        raise ConfigurationError("a nats:// URL has no path: streams and consumers are said by subscriptions")
    options = dict(pairs)
    if len(options) < len(pairs):
        raise ConfigurationError("this nats:// URL says something twice")
    found = _credentials(parts.netloc.rpartition("@")[0])
    found["servers"] = _servers(parts.netloc.rpartition("@")[2])
    tls = {name: options.pop(name) for name in FILES if name in options}
    if parts.scheme == ENCRYPTED:
        found["tls"] = _context(tls)
    elif tls:
        raise ConfigurationError(f"{', '.join(tls)} is for {ENCRYPTED}:// URLs")
    return {**found, **_typed(options)}


def _credentials(text: str) -> dict[str, Any]:
    user, colon, password = text.partition(":")
    if not text:
        return {}
    return {"user": unquote(user), "password": unquote(password)} if colon else {"token": unquote(user)}


def _servers(text: str) -> list[str]:
    servers: list[str] = []
    if not text:
        return [f"nats://127.0.0.1:{PORT}"]
    for place in text.split(","):
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None  # what stands for the port may be a password
        if not host or "@" in place:
            raise ConfigurationError(
                "a nats:// URL is nats://user:password@host:port/, with what is special in a password written as %40"
            )
        servers.append(f"nats://{f'[{host}]' if ':' in host else host}:{port or PORT}")
    return servers


def _typed(options: Mapping[str, str]) -> dict[str, Any]:
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        known = ", ".join((*OPTIONS, *FILES))
        raise ConfigurationError(f"nats:// URLs do not know {', '.join(unknown)}; they know {known}")
    found: dict[str, Any] = {}
    for name, text in options.items():
        try:
            found[name] = OPTIONS[name](text)
        except ValueError:
            raise ConfigurationError(f"nats:// URLs: {name} is a number, not {text!r}") from None
    return found


def _context(files: Mapping[str, str]) -> SSLContext:
    try:
        context = create_default_context(cafile=files.get("tls_ca"))
        if "tls_cert" in files:
            context.load_cert_chain(files["tls_cert"], files.get("tls_key"))
    except (OSError, SSLError) as error:
        raise ConfigurationError(f"the TLS files of the nats:// URL cannot be read: {error}") from None
    return context
