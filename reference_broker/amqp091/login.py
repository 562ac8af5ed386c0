"""Who a client is: SASL (AMQP 0.9.1 connection.start, secure)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final, NamedTuple

from assay.reference_broker.amqp091.names import AMQP091
from assay.reference_broker.amqp091.wire.fields import Reader
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply
from assay.reference_broker.auth import METHOD, CheckQueueFullError, LoginCheck, ScramError, ScramServer, ScramState
from assay.reference_broker.core.protocols import Arrival

NOT_LOGGED_IN: Final = "connection.start-ok.mechanism.validity"
"""Rule of all that a login fails for."""

USERS_CHANGED: Final = "the users changed meanwhile: try again"
"""Why a login that was under way is refused."""


class Credentials(NamedTuple):
    username: str
    password: bytes


class Identity(NamedTuple):
    """Somebody is logged in."""

    verified: str | None
    """The user; None where nobody is asked."""
    name: str
    """As the client says."""


Step = Identity | bytes | None
"""How a login goes on: it is done, or the client is to answer a challenge, or its password is being checked."""


def refused(text: str) -> AmqpError:
    """Nobody is logged in."""
    return AmqpError(Reply.ACCESS_REFUSED, text, rule=NOT_LOGGED_IN, hard=True)


def bad_response(mechanism: str) -> AmqpError:
    return refused(f"the response is none of {mechanism}")


def read_plain(response: bytes) -> Credentials:
    """RFC 4616: whom to act as, name, password, with zero bytes between and nowhere else. Raises :class:`AmqpError`."""
    parts = response.split(b"\0")
    if len(parts) != 3 or not parts[1]:
        raise bad_response("PLAIN")
    try:
        acted_for, username = parts[0].decode(), parts[1].decode()
    except UnicodeDecodeError:
        raise bad_response("PLAIN") from None
    if acted_for not in ("", username):
        raise refused("nobody acts for another here")
    return Credentials(username, parts[2])


def read_amqplain(response: bytes) -> Credentials:
    """A table without its length: LOGIN and PASSWORD. Raises :class:`AmqpError`."""
    try:
        fields = dict(Reader(len(response).to_bytes(4, "big") + response).table())
    except AmqpError:
        raise bad_response("AMQPLAIN") from None
    named = []
    for name in ("LOGIN", "PASSWORD"):
        value = fields.get(name)
        content = None if value is None else value.value[1].value if isinstance(value.value, tuple) else value.value
        if isinstance(content, str):
            content = content.encode()
        if not isinstance(content, bytes) or (name == "LOGIN" and not content):
            raise bad_response("AMQPLAIN")
        named.append(content)
    try:
        return Credentials(named[0].decode(), named[1])
    except UnicodeDecodeError:
        raise bad_response("AMQPLAIN") from None


READERS = {"PLAIN": read_plain, "AMQPLAIN": read_amqplain}


class Login:
    """How one client logs in: by its certificate, a password, or SCRAM (RFC 5802)."""

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival
        self._check: LoginCheck | None = None
        self._scram: ScramServer | None = None
        """An exchange under way; its steps are bounded by the handshake's time."""

    @property
    def mechanisms(self) -> list[bytes]:
        """What it may choose from."""
        if self._arrival.certificate_name is not None:
            return [b"EXTERNAL"]
        scram = [METHOD] if self._arrival.authenticator.offers_scram else []
        return [name.encode() for name in (*READERS, *scram)]

    @property
    def is_under_way(self) -> bool:
        return self._check is not None or self._scram is not None

    def begin(
        self, mechanism: str, response: bytes, rng: Random, on_checked: Callable[[Identity | AmqpError], None]
    ) -> Step:
        """The client has chosen. ``on_checked`` is called later, where its password is being checked.

        Raises :class:`AmqpError`.
        """
        if mechanism.encode() not in self.mechanisms:
            raise refused(f"the mechanism {mechanism[:40]!r} is not offered")
        if self._arrival.certificate_name is not None:
            return Identity(self._arrival.certificate_name, self._arrival.certificate_name)
        if mechanism == METHOD:
            self._scram = self._arrival.authenticator.open_exchange(METHOD, rng.randbytes(32))
            return self.answer(response) if response else b""
        return self._by_password(READERS[mechanism](response), on_checked)

    def answer(self, response: bytes) -> Step:
        """To a challenge. What the server says last is one, too: a client answers it with nothing.

        Raises :class:`AmqpError`.
        """
        scram = self._scram
        if scram is None:
            raise refused(USERS_CHANGED)
        if scram.state is ScramState.DONE:
            if response:
                raise bad_response(METHOD)
            self._scram = None
            return Identity(scram.username, scram.username)
        try:
            return scram.step(response)
        except ScramError as error:
            raise refused(f"login was refused: {error}") from error

    def _by_password(self, given: Credentials, on_checked: Callable[[Identity | AmqpError], None]) -> Step:
        authenticator, name = self._arrival.authenticator, given.username
        allowed = authenticator.decide(name, given.password, loopback=self._arrival.loopback)
        if allowed is None:
            decided = partial(self._decided, name, on_checked)
            try:
                self._check = authenticator.check(name, given.password, decided, protocol=AMQP091)
            except CheckQueueFullError:
                raise refused("too many passwords wait to be checked") from None
            return None
        if not allowed:
            raise refused("login was refused")
        return Identity(name if authenticator.has_users else None, name)

    def _decided(self, name: str, on_checked: Callable[[Identity | AmqpError], None], right: bool | None) -> None:
        self._check = None
        if right:
            on_checked(Identity(name, name))
        else:
            late = "who the client is cannot be found out now: try again"
            on_checked(refused(late if right is None else "login was refused"))

    def drop(self) -> None:
        """Nobody waits for it any more."""
        self._scram = None
        if self._check is not None:
            self._check.cancel()
            self._check = None
