"""SCRAM-SHA-256, the server's side (RFC 5802, RFC 7677), sans-IO: messages in, messages out, nonces from the caller.

What is stored is no password and cannot be used to log in: iterations, salt, StoredKey and ServerKey. Channel binding
is not offered.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import stringprep
import unicodedata
from enum import Enum, auto

import msgspec

METHOD = "SCRAM-SHA-256"
DEFAULT_ITERATIONS = 16_384
MIN_ITERATIONS, MAX_ITERATIONS = 4_096, 10_000_000
"""RFC 7677 section 4 asks for 4096 at least; the client pays for them at every login."""
MAX_MESSAGE_BYTES = 4_096
SALT_BYTES, KEY_BYTES = 16, 32
_MAX_SALT_BYTES = 64
_PROHIBITED = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class ScramError(ValueError):
    """A message is no valid SCRAM, or proves nothing. The text names no user and no secret."""


class ScramCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a password (RFC 5802 section 3)."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def encode(self) -> str:
        """``<iterations>$<salt>$<stored key>$<server key>``, the last three in Base64."""
        return "$".join((str(self.iterations), *map(_base64, (self.salt, self.stored_key, self.server_key))))


def parse_credentials(text: str) -> ScramCredentials:
    """The inverse of :meth:`ScramCredentials.encode`. Raises :class:`ScramError`."""
    try:
        iterations_text, *encoded = text.split("$")
        iterations = int(iterations_text)
        salt, stored_key, server_key = (base64.b64decode(part, validate=True) for part in encoded)
    except ValueError as error:
        raise ScramError("is not of the form `assay hash-password --scram` prints") from error
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ScramError(f"has {iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are allowed")
    if not 0 < len(salt) <= _MAX_SALT_BYTES or len(stored_key) != KEY_BYTES or len(server_key) != KEY_BYTES:
        raise ScramError("has a salt or keys of the wrong length")
    return ScramCredentials(iterations=iterations, salt=salt, stored_key=stored_key, server_key=server_key)


def derive_credentials(password: str, salt: bytes, iterations: int = DEFAULT_ITERATIONS) -> ScramCredentials:
    """What to store of a password. Raises :class:`ScramError` for one that SASLprep refuses."""
    salted = hashlib.pbkdf2_hmac("sha256", saslprep(password).encode(), salt, iterations)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    return ScramCredentials(iterations=iterations, salt=salt, stored_key=stored_key, server_key=server_key)


def saslprep(text: str) -> str:
    """Normalize a name or password (RFC 4013). Raises :class:`ScramError` for what it prohibits, and for nothing."""
    mapped = "".join(
        " " if stringprep.in_table_c12(character) else character
        for character in text
        if not stringprep.in_table_b1(character)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared:
        raise ScramError("a name or password is empty after its preparation")
    if any(prohibited(character) for character in prepared for prohibited in _PROHIBITED):
        raise ScramError("a name or password contains characters that SASLprep prohibits")
    if any(map(stringprep.in_table_a1, prepared)):
        raise ScramError("a name or password contains characters that Unicode 3.2 does not assign")
    if any(map(stringprep.in_table_d1, prepared)):
        ends = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(prepared[-1])
        if not ends or any(map(stringprep.in_table_d2, prepared)):
            raise ScramError("a name or password mixes writing directions")
    return prepared


class ScramUsers:
    """The stored credentials by (prepared) user name; unknown users get made-up ones that stay the same.

    The made-up salts depend on a key drawn from the stored secrets, so that neither asking twice nor a restart of the
    broker tells unknown users from known ones.
    """

    def __init__(self, users: dict[str, ScramCredentials]) -> None:
        """``users`` must not be empty. Raises :class:`ScramError` for names that SASLprep refuses or makes equal."""
        self._users: dict[str, ScramCredentials] = {}
        self._names: dict[str, str] = {}
        for name, credentials in users.items():
            prepared = saslprep(name)
            if prepared in self._users:
                raise ScramError(f"two users are both {prepared!r} after the preparation of names")
            self._users[prepared] = credentials
            self._names[prepared] = name
        secrets = b"".join(self._users[name].server_key for name in sorted(self._users))
        self._key = hmac.digest(secrets, b"assay: made-up credentials", "sha256")
        counts = [credentials.iterations for credentials in self._users.values()]
        lengths = [len(credentials.salt) for credentials in self._users.values()]
        self._iterations = max(sorted(set(counts)), key=counts.count)
        self._salt_bytes = max(sorted(set(lengths)), key=lengths.count)

    def find(self, username: str) -> tuple[ScramCredentials, str | None]:
        """(credentials, the user's name as configured). The name is None where the credentials are made up."""
        made_up = ScramCredentials(
            iterations=self._iterations,
            salt=(self._made_up(b"salt", username) + self._made_up(b"more salt", username))[: self._salt_bytes],
            stored_key=self._made_up(b"stored key", username),
            server_key=self._made_up(b"server key", username),
        )
        real = self._users.get(username)
        return (made_up, None) if real is None else (real, self._names[username])

    def nonce(self, randomness: bytes) -> str:
        """A server nonce that tells nothing about ``randomness``, which must be new for each exchange."""
        return _base64(hmac.digest(self._key, b"nonce\0" + randomness, "sha256")[:18])

    def _made_up(self, what: bytes, username: str) -> bytes:
        return hmac.digest(self._key, what + b"\0" + username.encode(), "sha256")


class ScramState(Enum):
    WAIT_CLIENT_FIRST = auto()
    WAIT_CLIENT_FINAL = auto()
    DONE = auto()
    FAILED = auto()


class ScramServer:
    """One exchange: two messages of the client, each answered once. Raises :class:`ScramError`, and is over then."""

    def __init__(self, users: ScramUsers, nonce: str) -> None:
        self.state = ScramState.WAIT_CLIENT_FIRST
        self.username = ""
        """Who the client says it is, prepared; when the state is DONE, who it is, as configured."""
        self._users = users
        self._server_nonce = nonce
        self._nonce = b""
        self._header = b""
        self._signed = b""
        """client-first-message-bare and server-first-message, with their commas."""

    def step(self, message: bytes) -> bytes:
        """The answer to a message: server-first-message, then server-final-message (state DONE)."""
        state, self.state = self.state, ScramState.FAILED
        if state not in (ScramState.WAIT_CLIENT_FIRST, ScramState.WAIT_CLIENT_FINAL):
            raise ScramError("the exchange is over")
        if len(message) > MAX_MESSAGE_BYTES:
            message_text = f"a message of {len(message)} bytes is over the limit of {MAX_MESSAGE_BYTES}"
            raise ScramError(message_text)
        if state is ScramState.WAIT_CLIENT_FIRST:
            return self._on_client_first(message)
        return self.on_client_final(message)

    def _on_client_first(self, message: bytes) -> bytes:
        flag, comma, rest = message.partition(b",")
        identity, second_comma, bare = rest.partition(b",")
        if not comma or not second_comma or flag not in (b"n", b"y"):
            # "p=..." demands channel binding, which is not offered.
            raise ScramError("the first message does not start with 'n,' or 'y,'")
        parts = bare.split(b",")
        if len(parts) < 2 or not parts[0].startswith(b"n=") or not parts[1].startswith(b"r="):
            # Here belongs "m=", too: an extension that must be understood, and is not.
            raise ScramError("the first message does not give a user name and a nonce")
        self.username = saslprep(_decode_name(parts[0][2:]))
        if identity and (not identity.startswith(b"a=") or saslprep(_decode_name(identity[2:])) != self.username):
            raise ScramError("acting as another user is not possible")
        client_nonce = parts[1][2:]
        if not client_nonce or any(not 0x21 <= byte <= 0x7E for byte in client_nonce):
            raise ScramError("the nonce is empty or has characters that are not printable")
        credentials, _ = self._users.find(self.username)
        self._nonce = client_nonce + self._server_nonce.encode()
        self._header = message[: len(message) - len(bare)]
        salt = _base64(credentials.salt).encode()
        answer = b"r=%b,s=%b,i=%d" % (self._nonce, salt, credentials.iterations)
        self._signed = bare + b"," + answer + b","
        self.state = ScramState.WAIT_CLIENT_FINAL
        return answer

    def on_client_final(self, message: bytes) -> bytes:
        unproven, separator, proof_text = message.rpartition(b",p=")
        parts = unproven.split(b",")
        if not separator or len(parts) < 2 or not parts[0].startswith(b"c=") or not parts[1].startswith(b"r="):
            raise ScramError("the last message does not give binding, nonce and proof")
        if not hmac.compare_digest(parts[0][2:], base64.b64encode(self._header)):
            raise ScramError("the last message repeats another header than that of the first")
        if not hmac.compare_digest(parts[1][2:], self._nonce):
            raise ScramError("the last message repeats another nonce")
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except binascii.Error as error:
            raise ScramError("the proof is not Base64") from error
        if len(proof) != KEY_BYTES:
            raise ScramError("the proof has the wrong length")
        credentials, name = self._users.find(self.username)
        signed = self._signed + unproven
        signature = hmac.digest(credentials.stored_key, signed, "sha256")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        proven = hmac.compare_digest(hashlib.sha256(client_key).digest(), credentials.stored_key)
        if name is None or not proven:
            raise ScramError("wrong user name or password")
        # Rules know users by their configured names; the prepared one could be somebody else's.
        self.username = name
        self.state = ScramState.DONE
        return b"v=" + base64.b64encode(hmac.digest(credentials.server_key, signed, "sha256"))


def _decode_name(encoded: bytes) -> str:
    """A ``saslname``: commas and equals signs are written ``=2C`` and ``=3D``."""
    pieces = encoded.split(b"=")
    if any(not piece.startswith((b"2C", b"3D")) for piece in pieces[1:]):
        raise ScramError("a user name has an equals sign that stands for nothing")
    signs = {b"2C": b",", b"3D": b"="}
    decoded = pieces[0] + b"".join(signs[piece[:2]] + piece[2:] for piece in pieces[1:])
    try:
        return decoded.decode()
    except UnicodeDecodeError as error:
        raise ScramError("a user name is not UTF-8") from error


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
