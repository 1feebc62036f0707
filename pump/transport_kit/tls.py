"""TLS from files of certificates."""

import ssl
from collections.abc import Mapping

from pump.errors import ConfigurationError


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
