"""Payloads encrypted at rest with AES-256-GCM. The id of the key comes first, so that keys can be changed.

A sealed payload can be opened only for the partition and transaction id that it was sealed for.
"""

import logging
import os
import time
from collections.abc import Mapping
from typing import Any, Final

from pump.errors import ConfigurationError, SetupError

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 12
LONGEST_KEY_ID: Final = 255
PASS_SECONDS: Final = 1.0
"""How long a message that cannot be opened here is left to other servers before this one looks at it again."""
_CHECK: Final = b"message-pump: is this the key of that id?"
_REMEMBERED_SECONDS: Final = 600.0

log: Final = logging.getLogger("pump.queue")


class Sealing:
    """Seals with one key and opens with any of its keys: keep an old key while anything sealed with it is left."""

    def __init__(self, keys: Mapping[str, bytes], use: str | None = None) -> None:
        """`use` is the id of the key to seal with; by default the last of `keys`."""
        if not keys:
            raise ConfigurationError("sealing needs a key")
        self._use = next(reversed(list(keys))) if use is None else use
        if self._use not in keys:
            raise ConfigurationError(f"there is no key {self._use!r} to seal with")
        self._ciphers = {key_id: _cipher(key_id, key) for key_id, key in keys.items()}

    @property
    def key_ids(self) -> list[bytes]:
        """The ids of all keys, in the form in which a sealed payload begins with them."""
        return [key_id.encode() for key_id in self._ciphers]

    def check_value(self, key_id: str) -> bytes:
        """A value that only this key can have sealed, to store beside the key's id."""
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._ciphers[key_id].encrypt(nonce, b"", _CHECK)
        return nonce + sealed

    def proves(self, key_id: str, value: bytes) -> bool:
        """Whether this key sealed that value."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        try:
            self._ciphers[key_id].decrypt(value[:NONCE_BYTES], value[NONCE_BYTES:], _CHECK)
        except InvalidTag:
            return False
        return True

    def seal(self, payload: bytes, partition_id: str, transaction_id: str) -> bytes:
        """The sealed payload, to be stored."""
        key_id = self._use.encode()
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = self._ciphers[self._use].encrypt(nonce, payload, _bound_to(partition_id, transaction_id))
        return bytes([len(key_id)]) + key_id + nonce + sealed

    def open(self, sealed: bytes, partition_id: str, transaction_id: str) -> bytes | None:
        """The payload as it was pushed; None if its key is missing here, or it was not sealed for this message."""
        length = sealed[0]
        key_id, rest = sealed[1 : 1 + length].decode(), sealed[1 + length :]
        if key_id not in self._ciphers:
            return None
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        nonce, text = rest[:NONCE_BYTES], rest[NONCE_BYTES:]
        try:
            payload: bytes = self._ciphers[key_id].decrypt(nonce, text, _bound_to(partition_id, transaction_id))
        except InvalidTag:
            return None
        return payload


def _bound_to(partition_id: str, transaction_id: str) -> bytes:
    """The associated data of a sealed payload; partition ids all have one length."""
    return f"{partition_id}{transaction_id}".encode()


def _cipher(key_id: str, key: bytes) -> Any:  # noqa: ANN401 - a vendor's class, imported lazily
    if not 0 < len(key_id.encode()) <= LONGEST_KEY_ID:
        raise ConfigurationError(f"a key's id has 1 to {LONGEST_KEY_ID} bytes")
    if len(key) != KEY_BYTES:
        raise ConfigurationError(f"key {key_id!r} has {len(key)} bytes; AES-256 needs {KEY_BYTES}")
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ImportError as missing:
        raise SetupError("encryption at rest needs the package `cryptography`") from missing
    return AESGCM(key)


class MissingKeys:
    """The keys that sealed some message and are missing here. For use from any thread."""

    def __init__(self) -> None:
        self._seen: dict[str, float] = {}

    def add(self, sealed: bytes) -> None:
        """Record that a sealed payload could not be opened."""
        key_id = sealed[1 : 1 + sealed[0]].decode()
        if key_id not in self._seen:
            log.warning("messages that are sealed with the key %r are passed over: add that key, or correct it", key_id)
        self._seen[key_id] = time.monotonic()

    def warnings(self) -> list[str]:
        """One sentence for each key that was missed lately."""
        since = time.monotonic() - _REMEMBERED_SECONDS
        return [
            f"messages sealed with the key {key_id!r} are passed over: the key is missing, or another key has its id"
            for key_id, seen in sorted(self._seen.items())
            if seen > since
        ]
