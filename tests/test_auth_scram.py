"""SCRAM-SHA-256, the server's side: the published exchange, and everything that must not pass."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.auth_scram import (
    MAX_MESSAGE_BYTES,
    ScramCredentials,
    ScramError,
    ScramServer,
    ScramState,
    ScramUsers,
    derive_credentials,
    parse_credentials,
    saslprep,
)

if TYPE_CHECKING:
    from tests.conftest import ScramClient

# The example exchange of RFC 7677, section 3.
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
EXAMPLE = derive_credentials("pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
OTHER = derive_credentials("pen", b"0123456789abcdef", 4096)
USERS = ScramUsers({"user": EXAMPLE, "a,b=c": OTHER})


def server(nonce: str = SERVER_NONCE) -> ScramServer:
    return ScramServer(USERS, nonce)


def test_the_example_exchange_of_the_standard() -> None:
    exchange = server()
    assert exchange.step(CLIENT_FIRST) == SERVER_FIRST
    assert exchange.step(CLIENT_FINAL) == SERVER_FINAL
    assert exchange.state is ScramState.DONE
    assert exchange.username == "user"
    with pytest.raises(ScramError, match="over"):
        exchange.step(CLIENT_FINAL)


@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=user,", "y,a=user,"])
def test_other_headers_without_channel_binding(scram_client: type[ScramClient], header: str) -> None:
    client, exchange = scram_client("user", "pencil", header=header), server()
    assert client.trusts(exchange.step(client.final(exchange.step(client.first()))))


def test_a_name_with_a_comma_and_an_equals_sign(scram_client: type[ScramClient]) -> None:
    client, exchange = scram_client("a=2Cb=3Dc", "pen"), server()
    assert client.trusts(exchange.step(client.final(exchange.step(client.first()))))
    assert exchange.username == "a,b=c"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=user",
        b"n,,r=x,n=user",
        b"n,,m=ext,n=user,r=x",
        b"p=tls-unique,,n=user,r=x",
        b"x,,n=user,r=x",
        b"n,a=admin,n=user,r=x",
        b"n,user,n=user,r=x",
        b"n,,n=,r=x",
        b"n,,n=us=2xer,r=x",
        b"n,,n=user=,r=x",
        b"n,,n=\xff,r=x",
        b"n,,n=us\x07er,r=x",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=\x7f",
        b"n,,n=user,r=" + b"x" * MAX_MESSAGE_BYTES,
    ],
)
def test_bad_first_messages(message: bytes) -> None:
    exchange = server()
    with pytest.raises(ScramError):
        exchange.step(message)
    assert exchange.state is ScramState.FAILED
    with pytest.raises(ScramError, match="over"):
        exchange.step(CLIENT_FIRST)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),
        (b"c=biws", b"c="),
        (b"c=biws", b"x=biws"),
        (b"$k0,p", b"$k1,p"),
        (b"$k0,p", b"$k0,x=1,p"),  # a changed text needs another proof
        (b",p=d", b",p=e"),
        (b",p=d", b",q=d"),
        (b"AndVQ=", b"AndVQ"),
        (b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b"dHzb"),
        (b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=", b""),
    ],
)
def test_a_changed_last_message_proves_nothing(old: bytes, new: bytes) -> None:
    assert CLIENT_FINAL.count(old) == 1
    exchange = server()
    exchange.step(CLIENT_FIRST)
    with pytest.raises(ScramError):
        exchange.step(CLIENT_FINAL.replace(old, new))
    assert exchange.state is ScramState.FAILED


def test_the_header_cannot_be_exchanged_even_with_a_good_proof(scram_client: type[ScramClient]) -> None:
    """Else somebody between the two could hide from them that both could do channel binding."""
    client, exchange = scram_client("user", "pencil"), server()
    first = exchange.step(client.first())
    client.header = "y,,"
    with pytest.raises(ScramError, match="header"):
        exchange.step(client.final(first))


def test_a_recorded_exchange_cannot_be_replayed() -> None:
    exchange = server("another nonce".replace(" ", ""))
    exchange.step(CLIENT_FIRST)
    with pytest.raises(ScramError, match="nonce"):
        exchange.step(CLIENT_FINAL)


@given(st.integers(0, 8 * 32 - 1))
def test_every_bit_of_the_proof_counts(bit: int) -> None:
    start, proof = CLIENT_FINAL.split(b",p=")
    flipped = bytearray(base64.b64decode(proof))
    flipped[bit // 8] ^= 1 << bit % 8
    exchange = server()
    exchange.step(CLIENT_FIRST)
    with pytest.raises(ScramError):
        exchange.step(start + b",p=" + base64.b64encode(flipped))


@given(st.lists(st.binary(max_size=80), min_size=1, max_size=3))
def test_no_bytes_break_the_machine_or_log_in(messages: list[bytes]) -> None:
    exchange = server()
    for message in messages:
        try:
            exchange.step(message)
        except ScramError:
            assert exchange.state is ScramState.FAILED
    assert exchange.state is not ScramState.DONE


def test_unknown_users_look_like_known_ones(scram_client: type[ScramClient]) -> None:
    """The same salt every time and after a restart, another one per name, and the same words at the end."""
    again = ScramUsers({"a,b=c": OTHER, "user": EXAMPLE})
    answers = {ScramServer(users, "N").step(b"n,,n=ghost,r=x") for users in (USERS, USERS, again)}
    assert len(answers) == 1
    ghost = answers.pop().split(b",")
    real = server().step(CLIENT_FIRST).split(b",")
    assert ghost[2] == real[2] == b"i=4096"
    assert len(ghost[1]) == len(real[1])
    assert ghost[1] != server().step(b"n,,n=ghosts,r=x").split(b",")[1]
    texts = set()
    for name in ("ghost", "user"):
        client, exchange = scram_client(name, "wrong"), server()
        final = client.final(exchange.step(client.first()))
        with pytest.raises(ScramError) as caught:
            exchange.step(final)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_what_is_stored_is_read_back_and_holds_no_password() -> None:
    text = EXAMPLE.encode()
    assert parse_credentials(text) == EXAMPLE
    assert text.startswith("4096$W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert "pencil" not in text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4096",
        "4096$AAAA$AAAA",
        "4095$" + EXAMPLE.encode().partition("$")[2],
        "10000001$" + EXAMPLE.encode().partition("$")[2],
        "many$" + EXAMPLE.encode().partition("$")[2],
        EXAMPLE.encode() + "$AAAA",
        EXAMPLE.encode()[:-4],
        EXAMPLE.encode().replace("W22ZaJ0SNY7soEsUEjb6gQ==", ""),
        EXAMPLE.encode().replace("W22", "W*2"),
    ],
)
def test_malformed_credentials_are_refused(text: str) -> None:
    with pytest.raises(ScramError):
        parse_credentials(text)


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        # The examples of RFC 4013, section 3.
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        ("\u0627\u0628", "\u0627\u0628"),
    ],
)
def test_names_and_passwords_are_prepared(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["", "\u00ad", "\u0007", "\u06271", "\u0627a\u0628", "\U000e0001", "\ud800", "\u0221"])
def test_what_the_preparation_refuses(text: str) -> None:
    with pytest.raises(ScramError):
        saslprep(text)


def test_users_that_become_one_by_preparation_are_refused() -> None:
    with pytest.raises(ScramError, match="IX"):
        ScramUsers({"IX": EXAMPLE, "\u2168": EXAMPLE})


def test_a_user_is_known_by_the_configured_name(scram_client: type[ScramClient]) -> None:
    """Else SCRAM would turn one account into another, which differs only before the preparation."""
    exchange, client = ScramServer(ScramUsers({"\u2168": EXAMPLE}), "N"), scram_client("IX", "pencil")
    assert client.trusts(exchange.step(client.final(exchange.step(client.first()))))
    assert exchange.username == "\u2168"


def test_nonces_differ_and_hide_their_source() -> None:
    first, second = USERS.nonce(b"\0" * 32), USERS.nonce(b"\1" * 32)
    assert first != second
    assert len(base64.b64decode(first)) == 18
    assert "," not in first
    assert first != ScramUsers({"user": OTHER}).nonce(b"\0" * 32)


def test_made_up_credentials_are_like_most_real_ones() -> None:
    long_salt = ScramCredentials(iterations=5000, salt=b"s" * 24, stored_key=b"k" * 32, server_key=b"v" * 32)
    users = ScramUsers({"a": long_salt, "b": long_salt, "c": EXAMPLE})
    made_up, name = users.find("nobody")
    assert name is None
    assert (made_up.iterations, len(made_up.salt)) == (5000, 24)
