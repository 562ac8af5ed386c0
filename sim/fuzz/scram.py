"""The client's side of SCRAM-SHA-256 (RFC 5802, RFC 7677), as far as a fuzzer needs it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from functools import lru_cache

_MAX_ITERATIONS = 10_000


@lru_cache(maxsize=16)
def _salted_password(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)


class ScramLogin:
    """One exchange."""

    def __init__(self, username: str, password: str, nonce: str) -> None:
        self._password = password
        self._bare = f"n={username},r={nonce}"

    def first(self) -> bytes:
        """The client's first message."""
        return b"n,," + self._bare.encode()

    def answer(self, server_first: bytes) -> bytes | None:
        """The client's final message; None for what is not a server's first message."""
        try:
            text = server_first.decode()
            fields = dict(part.split("=", 1) for part in text.split(","))
            salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        except (ValueError, KeyError, binascii.Error):
            return None
        if not 1 <= iterations <= _MAX_ITERATIONS:
            return None
        salted = _salted_password(self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", "sha256")
        unproven = f"c=biws,r={fields.get('r', '')}"
        signed = f"{self._bare},{text},{unproven}".encode()
        signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
        proof = bytes(key ^ mask for key, mask in zip(client_key, signature, strict=True))
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()
