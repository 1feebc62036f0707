"""A transport's URL, options and TLS files, read and checked by one mechanism.

No error shows the URL: a password may be in it.
"""

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pump.duration import Duration, seconds
from pump.errors import ConfigurationError

Options: TypeAlias = Mapping[str, Callable[[str], Any]]
"""The options that a URL's query may have: each name, and the function that makes a value of the text."""

_REMOVED: Final = dict.fromkeys(map(ord, "\t\r\n"))
"""What is removed from a URL, as from those that people write over several lines."""
_BAD_PORT: Final = "its port is not a number up to 65535, or its password has a / that is not written as %2F"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportURL:
    """The parts of a URL, percent-decoded."""

    scheme: str
    user: str | None
    password: str | None = field(repr=False)
    path: str
    """The path without its first slash."""
    options: Mapping[str, Any]
    """The converted options, by name."""
    others: Mapping[str, str]
    """Options that are not the transport's own, if it takes any."""
    parts: SplitResult = field(repr=False)
    """The parts as they are written in the URL."""
    form: str
    """What such a URL looks like."""

    @property
    def host(self) -> str | None:
        """The only host; None if there is none."""
        return self._single()[0]

    @property
    def port(self) -> int | None:
        """The only host's port; None if there is none."""
        return self._single()[1]

    @property
    def name(self) -> str:
        """Everything between // and ?, for a transport without hosts."""
        return unquote(self.parts.netloc + self.parts.path)

    def hosts(self) -> Sequence[tuple[str, int | None]]:
        """The hosts and their ports, as in `a:1,b,[::1]:2`."""
        places = self.parts.netloc.rpartition("@")[2]
        return [self._place(place) for place in places.split(",")] if places else []

    def error(self, why: str) -> ConfigurationError:
        """The error for a URL that cannot be used for this reason."""
        return _error(self.scheme, self.form, why)

    def _single(self) -> tuple[str | None, int | None]:
        hosts = self.hosts()
        if len(hosts) > 1:
            raise self.error("it has several hosts, where one is possible")
        return hosts[0] if hosts else (None, None)

    def _place(self, place: str) -> tuple[str, int | None]:
        try:
            parts = urlsplit(f"//{place}")
            host, port = parts.hostname, parts.port
        except ValueError:  # the error's text shows this part, which may be a password
            raise self.error(_BAD_PORT) from None
        if not host:
            raise self.error("a host has no name")
        return unquote(host), port


def split_url(url: str) -> SplitResult:
    """The parts of a URL with one host or several; ValueError if its brackets do not match.

    Python's own function refuses an IPv6 address after other hosts, in some of its versions.
    """
    scheme, colon, rest = url.translate(_REMOVED).strip().partition("://")
    if not colon:
        return SplitResult("", "", url, "", "")
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    hosts, slash, path = rest.partition("/")
    if hosts.count("[") != hosts.count("]"):
        raise ValueError("Invalid IPv6 URL")
    return SplitResult(scheme.lower(), hosts, slash + path, query, fragment)


def read_url(
    url: str, form: str, options: Options, *, schemes: Sequence[str], takes_others: bool = False
) -> TransportURL:
    """Take a URL apart and convert its options; a ConfigurationError says what is wrong, without the URL.

    `form` shows how such a URL is written. Unknown options are refused, unless `takes_others`.
    """
    try:
        parts = split_url(url)
    except ValueError:
        raise _error(schemes[0], form, "its host cannot be read") from None
    scheme = parts.scheme
    if scheme not in schemes:
        raise ConfigurationError(f"{scheme}:// is not one of {', '.join(f'{each}://' for each in schemes)}")
    if parts.fragment or url.endswith("#"):
        raise _error(scheme, form, "it has a # that is not written as %23")
    given = _pairs(parts, form)
    others = {name: text for name, text in given.items() if name not in options}
    if others and not takes_others:
        known = ", ".join(options) or "none"
        raise ConfigurationError(f"{scheme}:// URLs do not know {', '.join(sorted(others))}; their options: {known}")
    return TransportURL(
        scheme=scheme,
        user=None if parts.username is None else unquote(parts.username),
        password=None if parts.password is None else unquote(parts.password),
        path=unquote(parts.path.removeprefix("/")),
        options={name: _value(scheme, name, given[name], options[name]) for name in given if name in options},
        others=others,
        parts=parts,
        form=form,
    )


def finite_seconds(system: str, name: str, value: Duration) -> float:
    """A duration in seconds; ConfigurationError unless it is longer than 0 and finite."""
    if not 0 < seconds(value) < inf:
        raise ConfigurationError(f"{system}: {name} must be longer than 0 s and finite, not {value}")
    return seconds(value)


def yes_or_no(text: str) -> bool:
    """The value of an option of a URL that is `true` or `false`; ValueError for any other text."""
    if text not in {"true", "false"}:
        raise ValueError("it is true or false")
    return text == "true"


def at_least(system: str, name: str, value: float | None, least: float) -> None:
    """ConfigurationError if a number is given that is too small."""
    if value is not None and not value >= least:
        raise ConfigurationError(f"{system}: {name} must be at least {least:g}, not {value}")


def one_of(system: str, name: str, value: object, choices: Sequence[object]) -> None:
    """ConfigurationError if the value is not among the choices."""
    if value not in choices:
        raise ConfigurationError(f"{system}: {name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def tls_context(
    system: str, *, ca_file: str | None = None, cert_file: str | None = None, key_file: str | None = None
) -> ssl.SSLContext:
    """A context that verifies the server: by `ca_file`, or by the authorities that this machine trusts.

    `cert_file` and `key_file` are our own certificate. ConfigurationError names the files if one cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if cert_file:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:  # ssl.SSLError is one as well
        files = ", ".join(file for file in (ca_file, cert_file, key_file) if file)
        raise ConfigurationError(f"{system}: a certificate cannot be used ({files}): {error}") from None
    return context


def only_with_tls(system: str, scheme: str, given: Mapping[str, object]) -> None:
    """ConfigurationError that names the TLS options that are given, for a connection without TLS."""
    names = [name for name, value in given.items() if value]
    if names:
        raise ConfigurationError(f"{system}: {', '.join(names)} can be used only with TLS, as in {scheme}://")


def _pairs(parts: SplitResult, form: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _error(parts.scheme, form, "its options are not name=value&name=value") from None
    found: dict[str, str] = {}
    for name, text in pairs:
        if name in found:
            raise _error(parts.scheme, form, f"the option {name} is given twice")
        found[name] = text
    return found


def _value(scheme: str, name: str, text: str, convert: Callable[[str], Any]) -> Any:  # noqa: ANN401 - as it converts
    try:
        return convert(text)
    except ValueError:
        raise ConfigurationError(f"{scheme}:// URLs: the option {name} cannot be {text!r}") from None


def _error(scheme: str, form: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"this {scheme}:// URL cannot be read: {why}. It should be {form}, with special characters as in %40 for @"
    )
