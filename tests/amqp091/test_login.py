"""SCRAM-SHA-256 in the handshake: start-ok, secure, secure-ok."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from assay.reference_broker.amqp091.wire.frames import PROTOCOL_HEADER
from assay.reference_broker.auth import hash_password
from assay.reference_broker.auth_scram import derive_credentials
from assay.reference_broker.config import AuthConfig, BrokerConfig, QueuesConfig, UserConfig
from assay.reference_broker.routing.properties import Kind, Typed
from tests.support.amqp_client import AmqpClient, Said, make_node

if TYPE_CHECKING:
    from tests.conftest import ScramClient

METHOD = "SCRAM-SHA-256"
USER = UserConfig(username="maria", scram_sha_256=derive_credentials("secret", b"0123456789abcdef", 4_096).encode())


def started() -> AmqpClient:
    c = AmqpClient(make_node(auth=AuthConfig(users=(USER,))), connected=False)
    c.send_raw(PROTOCOL_HEADER)
    assert c.only(c.hear()).values[3] == b"PLAIN AMQPLAIN SCRAM-SHA-256"
    return c


def start_ok(c: AmqpClient, response: bytes) -> list[Said]:
    can = Typed(Kind.MAP, (Typed(Kind.TEXT, "authentication_failure_close"), Typed(Kind.BOOL, True)))
    return c.say(0, "connection.start-ok", (("capabilities", can),), METHOD, response, "en_US")


def refused(said: list[Said]) -> None:
    assert (said[-1].name, said[-1].values[0]) == ("connection.close", 403), said
    assert "maria" not in said[-1].values[1]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_password_that_nobody_sends(scram_client: type[ScramClient], at_once: bool) -> None:
    c, client = started(), scram_client("maria", "secret")
    if at_once:
        challenge = c.only(start_ok(c, client.first()))
    else:
        # The first message may also answer an empty challenge.
        assert c.only(start_ok(c, b"")).values == (b"",)
        challenge = c.only(c.say(0, "connection.secure-ok", client.first()))
    assert challenge.name == "connection.secure"
    final = c.only(c.say(0, "connection.secure-ok", client.final(challenge.values[0])))
    assert client.trusts(final.values[0])
    assert c.only(c.say(0, "connection.secure-ok", b"")).name == "connection.tune"
    assert c.end.username == "maria"
    c.say(0, "connection.tune-ok", 10, 131_072, 0)
    assert c.only(c.say(0, "connection.open", "/")).name == "connection.open-ok"


@pytest.mark.parametrize(("name", "password"), [("maria", "wrong"), ("nobody", "secret")])
def test_a_wrong_password_is_refused(scram_client: type[ScramClient], name: str, password: str) -> None:
    c, client = started(), scram_client(name, password)
    challenge = c.only(start_ok(c, client.first()))
    refused(c.say(0, "connection.secure-ok", client.final(challenge.values[0])))


def test_what_is_no_scram_is_refused(scram_client: type[ScramClient]) -> None:
    refused(start_ok(started(), b"\0maria\0secret"))
    refused(start_ok(started(), b"n,,n=maria,r=\n"))
    c = started()
    start_ok(c, b"")
    refused(c.say(0, "connection.secure-ok", b""))
    c, client = started(), scram_client("maria", "secret")
    challenge = c.only(start_ok(c, client.first()))
    c.say(0, "connection.secure-ok", client.final(challenge.values[0]))
    refused(c.say(0, "connection.secure-ok", b"more"))


def test_nothing_else_comes_within_an_exchange(scram_client: type[ScramClient]) -> None:
    c, client = started(), scram_client("maria", "secret")
    start_ok(c, client.first())
    said = c.say(0, "connection.tune-ok", 10, 131_072, 0)
    assert (said[-1].name, said[-1].values[0]) == ("connection.close", 503)


def test_other_users_end_an_exchange(scram_client: type[ScramClient]) -> None:
    c, client = started(), scram_client("maria", "secret")
    challenge = c.only(start_ok(c, client.first()))
    users = (UserConfig(username="u", password_hash=hash_password(b"x")),)
    c.node.reload(BrokerConfig(auth=AuthConfig(users=users), queues=QueuesConfig()), c.now)
    refused(c.hear())
    assert c.say(0, "connection.secure-ok", client.final(challenge.values[0])) == []


def test_it_is_not_offered_without_credentials() -> None:
    c = AmqpClient(make_node(), connected=False)
    c.send_raw(PROTOCOL_HEADER)
    assert c.only(c.hear()).values[3] == b"PLAIN AMQPLAIN"
    refused(start_ok(c, b"n,,n=maria,r=x"))
