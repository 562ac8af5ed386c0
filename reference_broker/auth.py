"""Passwords: hashing, verification, and the decision who may connect."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from reference_broker import auth_scram
from reference_broker.auth_scram import ScramCredentials, ScramError, ScramServer, ScramState, ScramUsers
from reference_broker.config import AuthConfig, ConfigError, UserConfig

__all__ = ["Authenticator", "ScramError", "ScramServer", "ScramState", "hash_password", "scram_credentials"]

_COST, _BLOCK, _PARALLEL = 2**14, 8, 1
_MAX_CACHED = 10_000


def hash_password(password: bytes) -> str:
    """``scrypt$<n>$<r>$<p>$<salt hex>$<hash hex>`` with a new salt."""
    salt = secrets.token_bytes(16)
    digest = hashlib.scrypt(password, salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL)
    return f"scrypt${_COST}${_BLOCK}${_PARALLEL}${salt.hex()}${digest.hex()}"


def scram_credentials(password: str) -> str:
    """``<iterations>$<salt>$<stored key>$<server key>`` with a new salt. Raises :class:`ScramError`, see SASLprep."""
    return auth_scram.derive_credentials(password, secrets.token_bytes(auth_scram.SALT_BYTES)).encode()


class _Stored:
    def __init__(self, text: str, username: str) -> None:
        try:
            name, cost, block, parallel, salt, digest = text.split("$")
            self.cost, self.block, self.parallel = int(cost), int(block), int(parallel)
            self.salt, self.digest = bytes.fromhex(salt), bytes.fromhex(digest)
        except ValueError as error:
            message = f"auth.users: the password_hash of {username!r} is not of the form `assay hash-password` prints"
            raise ConfigError(message) from error
        if name != "scrypt" or not 2 <= self.cost <= 2**20 or not 1 <= self.block <= 32 or len(self.digest) < 16:
            message = f"auth.users: the password_hash of {username!r} has parameters out of range"
            raise ConfigError(message)

    def matches(self, password: bytes) -> bool:
        digest = hashlib.scrypt(
            password,
            salt=self.salt,
            n=self.cost,
            r=self.block,
            p=self.parallel,
            dklen=len(self.digest),
            maxmem=256 * self.cost * self.block,
        )
        return hmac.compare_digest(digest, self.digest)


class Authenticator:
    """Decides about user name and password, and opens SCRAM exchanges.

    Successful password checks are remembered as keyed hashes: a reconnect storm does not pay the slow hash again.
    """

    def __init__(self, config: AuthConfig, cache_key: bytes) -> None:
        """``cache_key`` is a secret of this process. Raises :class:`ConfigError` for a malformed or doubled user."""
        _check_users(config.users)
        self._passwords = {
            user.username: _Stored(user.password_hash, user.username) for user in config.users if user.password_hash
        }
        self._scram = _scram_users(config.users)
        self.has_users = bool(config.users)
        """Only then is a user name verified; otherwise it is what the client says."""
        self._anonymous = config.anonymous
        self._cache_key = cache_key
        self._verified: set[bytes] = set()

    def allows(self, username: str | None, password: bytes | None, *, loopback: bool) -> bool:
        """Whether a client may connect; ``loopback`` tells whether its listener is bound to loopback only."""
        if username is None or not self.has_users:
            if self._anonymous is not None:
                return self._anonymous
            return loopback and not self.has_users
        stored = self._passwords.get(username)
        if stored is None or password is None:
            return False
        proof = hmac.digest(self._cache_key, username.encode() + b"\0" + password, "sha256")
        if proof in self._verified:
            return True
        if not stored.matches(password):
            return False
        if len(self._verified) >= _MAX_CACHED:
            self._verified.clear()
        self._verified.add(proof)
        return True

    def open_exchange(self, method: str, randomness: bytes) -> ScramServer | None:
        """A new exchange of an enhanced authentication method; None when the method is not offered.

        ``randomness`` (16 bytes or more) must differ for each exchange. SCRAM is offered while a user has credentials.
        """
        if method != auth_scram.METHOD or self._scram is None:
            return None
        return ScramServer(self._scram, self._scram.nonce(randomness))


def _check_users(users: tuple[UserConfig, ...]) -> None:
    seen: set[str] = set()
    for user in users:
        if not user.password_hash and not user.scram_sha_256:
            message = f"auth.users: {user.username!r} needs a password_hash or scram_sha_256 to log in with"
            raise ConfigError(message)
        if user.username in seen:
            message = f"auth.users: {user.username!r} is there twice (perhaps once in auth.password_file)"
            raise ConfigError(message)
        seen.add(user.username)


def _scram_users(users: tuple[UserConfig, ...]) -> ScramUsers | None:
    credentials: dict[str, ScramCredentials] = {}
    for user in users:
        if user.scram_sha_256:
            try:
                credentials[user.username] = auth_scram.parse_credentials(user.scram_sha_256)
            except ScramError as error:
                message = f"auth.users: the scram_sha_256 of {user.username!r} {error}"
                raise ConfigError(message) from error
    try:
        return ScramUsers(credentials) if credentials else None
    except ScramError as error:
        message = f"auth.users: {error}"
        raise ConfigError(message) from error
