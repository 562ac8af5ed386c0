"""Passwords: hashing, verification, and the decision who may connect."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import deque
from collections.abc import Callable
from typing import Protocol

from assay.reference_broker import auth_scram
from assay.reference_broker.auth_scram import METHOD, ScramCredentials, ScramError, ScramServer, ScramState, ScramUsers
from assay.reference_broker.config import AuthConfig, ConfigError, TokenConfig, UserConfig

__all__ = [
    "METHOD",
    "Authenticator",
    "CheckQueueFullError",
    "ExternalUsers",
    "LoginCheck",
    "OnChecked",
    "PasswordCheck",
    "ScramError",
    "ScramServer",
    "ScramState",
    "hash_password",
    "hash_token",
    "new_token",
    "scram_credentials",
]

_COST, _BLOCK, _PARALLEL = 2**14, 8, 1
_MAX_CACHED = 10_000
_TOKEN_PREFIX = "assay_"  # noqa: S105 - by which a leaked one is found
_TOKEN_HASH = re.compile(r"sha256\$[0-9a-f]{64}")
MAX_WAITING_CHECKS = 256
"""Passwords that wait to be checked; more clients are told to come back later."""
MAX_RUNNING_CHECKS = 2
"""At once, so that other work finds threads and processors."""
OnChecked = Callable[[bool | None], None]
"""Takes the answer; None: it cannot be found out now."""


def hash_password(password: bytes) -> str:
    """``scrypt$<n>$<r>$<p>$<salt hex>$<hash hex>`` with a new salt."""
    salt = secrets.token_bytes(16)
    digest = hashlib.scrypt(password, salt=salt, n=_COST, r=_BLOCK, p=_PARALLEL)
    return f"scrypt${_COST}${_BLOCK}${_PARALLEL}${salt.hex()}${digest.hex()}"


def new_token() -> str:
    """A bearer token: 32 random bytes as text."""
    return f"{_TOKEN_PREFIX}{secrets.token_urlsafe(32)}"


def hash_token(token: str) -> str:
    """``sha256$<hex>``: what is kept of a token."""
    return f"sha256${hashlib.sha256(token.encode(errors='surrogateescape')).hexdigest()}"


def proof_of(key: bytes, username: str, password: bytes) -> bytes:
    """What a user and a password that were right are remembered by. ``key`` is a secret of this process."""
    name = username.encode()
    # The length keeps a NUL, which Basic lets through, from moving between the two.
    return hmac.digest(key, b"%d:%b%b" % (len(name), name, password), "sha256")


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
            raise ConfigError(f"auth.users: the password_hash of {username!r} has parameters out of range")

    def matches(self, password: bytes) -> bool:
        digest = hashlib.scrypt(
            password,
            salt=self.salt,
            n=self.cost,
            r=self.block,
            p=self.parallel,
            dklen=len(self.digest),
            # Its table takes 128 * cost * block; the rest counts only at the lowest costs.
            maxmem=256 * self.cost * self.block + 128 * self.block * (self.parallel + 4),
        )
        return hmac.compare_digest(digest, self.digest)


class CheckQueueFullError(Exception):
    """So many passwords wait to be checked that another client must come back later."""


class LoginCheck:
    """Finds out who a client is."""

    def __init__(self, users: tuple[UserConfig, ...] | None, on_done: OnChecked) -> None:
        self.users = users
        """By which it is checked; when others hold by its end, it says nothing."""
        self.on_done: OnChecked | None = on_done

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.on_done = None


class ExternalUsers(Protocol):
    """Users whom somebody else knows."""

    def knows(self, username: str, password: bytes) -> bool:
        """Whether they were right lately."""

    def check(
        self,
        username: str,
        password: bytes,
        users: tuple[UserConfig, ...] | None,
        on_done: OnChecked,
        client_id: str,
        protocol: str,
    ) -> LoginCheck:
        """Ask; ``on_done`` is called later with the answer. Raises :class:`CheckQueueFullError`."""


class PasswordCheck(LoginCheck):
    """One slow hash, for any thread. :meth:`run` it, then hand it to :meth:`Authenticator.finish`."""

    def __init__(
        self,
        stored: _Stored,
        password: bytes,
        proof: bytes,
        *,
        is_known: bool,
        users: tuple[UserConfig, ...] | None,
        on_done: OnChecked,
    ) -> None:
        super().__init__(users, on_done)
        self._stored = stored
        self._password = password
        self._is_known = is_known
        self._matches = False
        self.proof = proof

    def run(self) -> None:
        """Blocks for as long as the hash takes, also for unknown users: how long it takes tells nothing."""
        self._matches = self._stored.matches(self._password)

    @property
    def allowed(self) -> bool:
        """Whether the password is right; once it has run."""
        return self._matches and self._is_known


class Authenticator:
    """Decides about user name and password, and opens SCRAM exchanges.

    Successful password checks are remembered as keyed hashes: a reconnect storm does not pay the slow hash again.
    Others are jobs for a thread, few at a time, so that guessing costs other clients nothing.
    """

    def __init__(self, config: AuthConfig, cache_key: bytes) -> None:
        """``cache_key`` is a secret of this process. Raises :class:`ConfigError` for a malformed or doubled user."""
        self._cache_key = cache_key
        self.waiting: deque[PasswordCheck] = deque()
        """Checks that are to be taken; some may be of clients that are gone."""
        self._running = 0
        self.external: ExternalUsers | None = None
        """Asked about whoever is not among the users; None = nobody is."""
        self._users: tuple[UserConfig, ...] | None = None
        self.configure(config)

    def configure(self, config: AuthConfig) -> None:
        """Take other users. Raises :class:`ConfigError`, and then those there are stay.

        If they are others, what a check or an exchange that is under way comes to does not count any more: its client
        is to start anew.
        """
        tokens = _tokens(config)
        if config.users == self._users:
            self._anonymous, self._tokens = config.anonymous, tokens
            return
        _check_users(config.users)
        passwords = {
            user.username: _Stored(user.password_hash, user.username) for user in config.users if user.password_hash
        }
        self._scram = _scram_users(config.users)
        self._passwords = passwords
        self._users = config.users
        self._by_name = {user.username: user for user in config.users}
        self._anonymous, self._tokens = config.anonymous, tokens
        self._verified: set[bytes] = set()

    @property
    def has_users(self) -> bool:
        """Only then is a user name verified; otherwise it is what the client says."""
        return bool(self._users) or self.external is not None

    def token(self, token: str, now: float) -> TokenConfig | None:
        """What a token that somebody shows stands for; None: nothing, or nothing any more."""
        # Looked up by its hash: how long that takes tells nothing of any token.
        found = self._tokens.get(hash_token(token))
        return None if found is None or 0 < found.expires_at <= now else found

    def user(self, username: str | None) -> UserConfig | None:
        """What is configured of a user; None: nothing, as for one whom a certificate names."""
        return None if username is None else self._by_name.get(username)

    def decide(self, username: str | None, password: bytes | None, *, loopback: bool) -> bool | None:
        """Whether a client may connect; None: :meth:`check` must find out.

        ``loopback`` tells whether its listener is bound to loopback only.
        """
        if username is None or not self.has_users:
            if self._anonymous is not None:
                return self._anonymous
            return loopback and not self.has_users
        if password is not None and self.external is not None and username not in self._by_name:
            return True if self.external.knows(username, password) else None
        if password is None or not self._passwords:
            return False
        return True if self._proof(username, password) in self._verified else None

    def _proof(self, username: str, password: bytes) -> bytes:
        return proof_of(self._cache_key, username, password)

    def check(
        self, username: str, password: bytes, on_done: OnChecked, *, client_id: str = "", protocol: str = ""
    ) -> LoginCheck:
        """Have a password checked; ``on_done`` is called with the answer. Raises :class:`CheckQueueFullError`."""
        if self.external is not None and username not in self._by_name:
            return self.external.check(username, password, self._users, on_done, client_id, protocol)
        self.waiting = deque(check for check in self.waiting if check.on_done is not None)
        if len(self.waiting) >= MAX_WAITING_CHECKS:
            raise CheckQueueFullError
        stored = self._passwords.get(username)
        check = PasswordCheck(
            stored or next(iter(self._passwords.values())),
            password,
            self._proof(username, password),
            is_known=stored is not None,
            users=self._users,
            on_done=on_done,
        )
        self.waiting.append(check)
        return check

    def take_checks(self) -> list[PasswordCheck]:
        """Checks to run now, in any threads; each must be handed to :meth:`finish`."""
        taken: list[PasswordCheck] = []
        while self.waiting and self._running < MAX_RUNNING_CHECKS:
            check = self.waiting.popleft()
            if check.on_done is not None:
                self._running += 1
                taken.append(check)
        return taken

    def finish(self, check: PasswordCheck) -> None:
        """A check has run: remember the password if it was right, and tell who still waits. By other users than those
        there are now it says nothing: that is told as no.
        """
        self._running -= 1
        allowed = check.allowed and self.holds(check)
        if allowed:
            if len(self._verified) >= _MAX_CACHED:
                self._verified.clear()
            self._verified.add(check.proof)
        if check.on_done is not None:
            check.on_done(allowed)

    def holds(self, check: LoginCheck) -> bool:
        """Whether the users by which it is checked are those there are; if not, its client is to start anew."""
        return check.users is self._users

    @property
    def offers_scram(self) -> bool:
        """Whether a user has credentials for SCRAM."""
        return self._scram is not None

    def open_exchange(self, method: str, randomness: bytes) -> ScramServer | None:
        """A new exchange of an enhanced authentication method; None when the method is not offered.

        ``randomness`` (16 bytes or more) must differ for each exchange. SCRAM is offered while a user has credentials.
        """
        if method != METHOD or self._scram is None:
            return None
        return ScramServer(self._scram, self._scram.nonce(randomness))


def _tokens(config: AuthConfig) -> dict[str, TokenConfig]:
    """By hash. Raises :class:`ConfigError`."""
    users = {user.username for user in config.users}
    found: dict[str, TokenConfig] = {}
    for token in config.tokens:
        if not _TOKEN_HASH.fullmatch(token.hash):
            raise ConfigError(f"auth.tokens: the hash of {token.name!r} is not of the form `assay token` prints")
        if token.user not in users:
            raise ConfigError(f"auth.tokens: {token.name!r} is of {token.user!r}, who is not among the users")
        if token.hash in found:
            raise ConfigError(f"auth.tokens: {token.name!r} and {found[token.hash].name!r} are the same token")
        found[token.hash] = token
    return found


def _check_users(users: tuple[UserConfig, ...]) -> None:
    seen: set[str] = set()
    for user in users:
        if not user.password_hash and not user.scram_sha_256:
            raise ConfigError(f"auth.users: {user.username!r} needs a password_hash or scram_sha_256 to log in with")
        if user.username in seen:
            raise ConfigError(f"auth.users: {user.username!r} is there twice (perhaps once in auth.password_file)")
        seen.add(user.username)


def _scram_users(users: tuple[UserConfig, ...]) -> ScramUsers | None:
    credentials: dict[str, ScramCredentials] = {}
    for user in users:
        if user.scram_sha_256:
            try:
                credentials[user.username] = auth_scram.parse_credentials(user.scram_sha_256)
            except ScramError as error:
                raise ConfigError(f"auth.users: the scram_sha_256 of {user.username!r} {error}") from error
    try:
        return ScramUsers(credentials) if credentials else None
    except ScramError as error:
        raise ConfigError(f"auth.users: {error}") from error
