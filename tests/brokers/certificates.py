"""A private certificate authority, and a server's certificate that it signed, made with the openssl command."""

import shutil
import subprocess
from pathlib import Path

from brokers import install

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
IS_AUTHORITY = ("-addext", "keyUsage=critical,keyCertSign")
IS_SERVER = (
    *("-addext", "basicConstraints=critical,CA:FALSE"),
    *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
    *("-addext", "extendedKeyUsage=serverAuth"),
)


class Certificates:
    """The paths of the files that brokers and clients need; the certificate is for 127.0.0.1 and localhost."""

    def __init__(self, folder: Path) -> None:
        self.authority = folder / "authority.pem"
        self.certificate = folder / "server.pem"
        self.key = folder / "server.key"
        authority_key = folder / "authority.key"
        _request("authority", self.authority, authority_key, *IS_AUTHORITY)
        signed = ("-CA", str(self.authority), "-CAkey", str(authority_key))
        _request("localhost", self.certificate, self.key, *IS_SERVER, *signed)


def _request(name: str, certificate: Path, key: Path, *options: str) -> None:
    openssl = shutil.which("openssl") or install.give_up("openssl is missing: sudo apt-get install openssl")
    files = ("-out", str(certificate), "-keyout", str(key))
    command = [openssl, "req", "-x509", *KEY, "-days", "2", "-subj", f"/CN={name}", *files, *options]
    subprocess.run(command, check=True, capture_output=True)
