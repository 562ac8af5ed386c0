"""Passwords: hashing, verification, and the decision who may connect."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from reference_broker.config import AuthConfig, ConfigError

_COST, _BLOCK, _PARALLEL = 2**14, 8, 1
_MAX_CACHED = 10_000


def hash_password(password: bytes) -> str:
    """``scrypt$<n>$<r>$<p>$<salt hex>$<hash hex>`` with a new salt."""
    salt = secrets.token_bytes(16)
    digest = hashlib.scrypt(password, salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL)
    return f"scrypt${_COST}${_BLOCK}${_PARALLEL}${salt.hex()}${digest.hex()}"


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
    """Decides about user name and password. Successful checks are remembered as keyed hashes, so that a reconnect
    storm does not pay the slow hash again."""

    def __init__(self, config: AuthConfig, cache_key: bytes) -> None:
        """``cache_key`` is a secret of this process. Raises :class:`ConfigError` for a malformed stored hash."""
        self._users = {user.username: _Stored(user.password_hash, user.username) for user in config.users}
        self._anonymous = config.anonymous
        self._cache_key = cache_key
        self._verified: set[bytes] = set()

    def allows(self, username: str | None, password: bytes | None, *, loopback: bool) -> bool:
        """Whether a client may connect; ``loopback`` tells whether its listener is bound to loopback only."""
        if username is None or not self._users:
            if self._anonymous is not None:
                return self._anonymous
            return loopback and not self._users
        stored = self._users.get(username)
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
