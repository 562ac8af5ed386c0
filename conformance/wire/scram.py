"""The client's side of SCRAM (RFC 5802, RFC 7677) without channel binding, for enhanced authentication. Sans-IO.

User names and passwords of printable ASCII only: a target file can choose such, and SASLprep leaves them as they are.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

HASHES = {"SCRAM-SHA-1": "sha1", "SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Authentication method to the hash that it is made of."""
MAX_ITERATIONS = 200_000
"""The client does the work: a server that asks for more would hold the suite up."""
_GS2_HEADER = b"n,,"


class ScramFailureError(ValueError):
    """The server's message is no valid SCRAM, or does not prove that the server knows the user."""


class ScramClient:
    """One exchange: :meth:`first`, :meth:`final` with the server's first message, :meth:`verify` with its last."""

    def __init__(self, method: str, username: str, password: str, nonce: str) -> None:
        """``nonce``: printable ASCII without commas, new for each exchange. Raises :class:`KeyError`: see HASHES."""
        self._hash = HASHES[method]
        self._password = password.encode("ascii")
        self._nonce = nonce
        name = username.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={nonce}".encode("ascii")
        self._server_signature = b""

    def first(self) -> bytes:
        """client-first-message."""
        return _GS2_HEADER + self._bare

    def final(self, server_first: bytes) -> bytes:
        """client-final-message. Raises :class:`ScramFailureError`."""
        fields = _fields(server_first)
        nonce = fields.get("r", "")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramFailureError(f"the nonce {nonce!r} does not extend the client's")
        try:
            salt, iterations = base64.b64decode(fields["s"], validate=True), int(fields["i"])
        except (KeyError, ValueError) as error:
            raise ScramFailureError(f"no salt and iteration count in {server_first!r}") from error
        if not 1 <= iterations <= MAX_ITERATIONS:
            raise ScramFailureError(f"{iterations} iterations; the suite does {MAX_ITERATIONS} at most")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        unproven = b"c=" + base64.b64encode(_GS2_HEADER) + b",r=" + nonce.encode("ascii")
        signed = b",".join((self._bare, server_first, unproven))
        signature = hmac.digest(stored_key, signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._hash)
        self._server_signature = hmac.digest(server_key, signed, self._hash)
        return unproven + b",p=" + base64.b64encode(proof)

    def verify(self, server_final: bytes) -> None:
        """The server proves that it knows the user, too. Raises :class:`ScramFailureError`."""
        try:
            signature = base64.b64decode(_fields(server_final)["v"], validate=True)
        except (KeyError, binascii.Error) as error:
            raise ScramFailureError(f"no server signature in {server_final!r}") from error
        if not self._server_signature or not hmac.compare_digest(signature, self._server_signature):
            raise ScramFailureError("the server's signature is wrong")


def _fields(message: bytes) -> dict[str, str]:
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError as error:
        raise ScramFailureError(f"not ASCII: {message!r}") from error
    return {part[:1]: part[2:] for part in text.split(",") if part[1:2] == "="}
