"""What tests of several parts share: the client's side of SCRAM-SHA-256, written from RFC 5802 without our server."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest


class ScramClient:
    """One exchange. ``name`` is sent as it is: commas and equals signs must be escaped already."""

    def __init__(self, name: str, password: str, nonce: str = "fyko+d2lbbFgONRv9qkxdawL", header: str = "n,,") -> None:
        self.password = password
        self.nonce = nonce
        self.header = header
        self.bare = f"n={name},r={nonce}"
        self.server_signature = b""

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, server_first: bytes) -> bytes:
        """The answer to the server's first message; from now on ``server_signature`` is known."""
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        assert fields["r"].startswith(self.nonce)
        assert len(fields["r"]) > len(self.nonce)
        salt = base64.b64decode(fields["s"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, int(fields["i"]))
        client_key = hmac.new(salted, b"Client Key", "sha256").digest()
        unproven = f"c={base64.b64encode(self.header.encode()).decode()},r={fields['r']}"
        signed = f"{self.bare},{server_first.decode()},{unproven}".encode()
        signature = hmac.new(hashlib.sha256(client_key).digest(), signed, "sha256").digest()
        self.server_signature = hmac.new(hmac.new(salted, b"Server Key", "sha256").digest(), signed, "sha256").digest()
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        return unproven.encode() + b",p=" + base64.b64encode(proof)

    def trusts(self, server_final: bytes | None) -> bool:
        """Whether the server has proven that it knows the password's credentials."""
        return server_final == b"v=" + base64.b64encode(self.server_signature)


@pytest.fixture(scope="session")
def scram_client() -> type[ScramClient]:
    return ScramClient
