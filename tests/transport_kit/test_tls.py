"""TLS: whom it trusts, and files that cannot be used."""

import ssl
from pathlib import Path

import pytest

from brokers.certificates import Certificates
from pump.errors import ConfigurationError
from pump.transport_kit.settings import only_with_tls, tls_context


def test_the_server_is_verified() -> None:
    context = tls_context("mq")

    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_an_authority_and_a_certificate_of_our_own_may_be_given(tmp_path: Path) -> None:
    files = Certificates(tmp_path)

    context = tls_context("mq", ca_file=str(files.authority), cert_file=str(files.certificate), key_file=str(files.key))

    [trusted] = context.get_ca_certs()
    assert "authority" in str(trusted["subject"])


@pytest.mark.parametrize("option", ["ca_file", "cert_file"])
def test_a_file_that_cannot_be_used_is_named(option: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()

    for file in (str(empty), "/nowhere/at/all"):
        with pytest.raises(ConfigurationError, match=f"mq: a certificate cannot be used .*{file}"):
            tls_context("mq", **{option: file})


def test_without_tls_its_options_are_refused() -> None:
    only_with_tls("mq", "mqs", {"ca_file": None, "cert_file": ""})

    with pytest.raises(ConfigurationError, match="mq: ca_file, key_file can be used only with TLS, as in mqs://"):
        only_with_tls("mq", "mqs", {"ca_file": "/x", "cert_file": None, "key_file": "/y"})
