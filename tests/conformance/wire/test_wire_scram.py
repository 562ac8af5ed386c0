"""The suite's SCRAM client: the exchange printed in RFC 7677, the broker's server, and servers that prove nothing."""

from __future__ import annotations

import pytest

from assay.conformance.wire.scram import MAX_ITERATIONS, ScramClient, ScramFailureError
from assay.reference_broker.auth_scram import ScramError, ScramServer, ScramUsers, derive_credentials

NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def test_the_exchange_of_the_rfc() -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@pytest.mark.parametrize(("username", "password", "good"), [("a,b=c", "right", True), ("a,b=c", "wrong", False)])
def test_the_brokers_side_agrees(username: str, password: str, good: bool) -> None:
    users = ScramUsers({"a,b=c": derive_credentials("right", b"salt" * 4, 4_096)})
    server = ScramServer(users, "server-nonce")
    client = ScramClient("SCRAM-SHA-256", username, password, "client-nonce")
    answer = client.final(server.step(client.first()))
    if good:
        client.verify(server.step(answer))
    else:
        with pytest.raises(ScramError):
            server.step(answer)


@pytest.mark.parametrize(
    ("first", "complaint"),
    [
        (FIRST.replace(b"rOpr", b"xOpr"), "does not extend"),
        (b"r=" + NONCE.encode() + b",s=AAAA,i=1", "does not extend"),
        (FIRST.replace(b"W22Z", b"!"), "no salt"),
        (FIRST.replace(b"i=4096", b"i=many"), "no salt"),
        (FIRST.replace(b"4096", str(MAX_ITERATIONS + 1).encode()), "at most"),
        (b"\xff", "not ASCII"),
    ],
)
def test_a_bad_first_message_is_refused(first: bytes, complaint: str) -> None:
    with pytest.raises(ScramFailureError, match=complaint):
        ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE).final(first)


@pytest.mark.parametrize("last", [b"v=AAAA", b"e=invalid-proof", b"v=!"])
def test_a_server_that_proves_nothing_is_refused(last: bytes) -> None:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)
    client.final(FIRST)
    with pytest.raises(ScramFailureError):
        client.verify(last)
