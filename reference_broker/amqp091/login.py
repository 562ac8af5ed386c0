"""Who a client is: SASL (AMQP 0.9.1 connection.start, secure)."""

from __future__ import annotations

from typing import Final, NamedTuple

from assay.reference_broker.amqp091.wire.fields import Reader
from assay.reference_broker.amqp091.wire.replies import AmqpError, Reply

NOT_LOGGED_IN: Final = "connection.start-ok.mechanism.validity"
"""Rule of all that a login fails for."""


class Credentials(NamedTuple):
    username: str
    password: bytes


def bad_response(mechanism: str) -> AmqpError:
    return AmqpError(Reply.ACCESS_REFUSED, f"the response is none of {mechanism}", rule=NOT_LOGGED_IN, hard=True)


def read_plain(response: bytes) -> Credentials:
    """RFC 4616: whom to act as, name, password, with zero bytes between. Raises :class:`AmqpError`."""
    parts = response.split(b"\0", 2)
    if len(parts) != 3 or not parts[1]:
        raise bad_response("PLAIN")
    try:
        acted_for, username = parts[0].decode(), parts[1].decode()
    except UnicodeDecodeError:
        raise bad_response("PLAIN") from None
    if acted_for not in ("", username):
        raise AmqpError(Reply.ACCESS_REFUSED, "nobody acts for another here", rule=NOT_LOGGED_IN, hard=True)
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
