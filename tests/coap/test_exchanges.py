"""CoAP's message layer: requests once each, answers again, blocks, and limits on all that is remembered. Datagrams are
made by hand, so that the codec has no say in what is right."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.reference_broker.coap.exchanges import (
    LIFETIME_S,
    MAX_ASSEMBLED_BYTES,
    MAX_ASSEMBLIES,
    MAX_ASSEMBLIES_OF_ONE,
    MAX_BODY_BYTES,
    MAX_REMEMBERED,
    Answer,
    Exchanges,
    Request,
)

CON, NON, ACK, RST = range(4)
POST, CHANGED, CONTINUE, BAD_REQUEST, BAD_OPTION, INCOMPLETE, TOO_LARGE = 2, 0x44, 0x5F, 0x80, 0x82, 0x88, 0x8D
PROXYING = 0xA5
PATH, ACCEPT, BLOCK1, BLOCK2, PROXY_URI, REQUEST_TAG = 11, 17, 27, 23, 35, 292
ANN: tuple[Any, ...] = ("192.0.2.1", 5_000)


def datagram(
    kind: int = CON,
    code: int = POST,
    number: int = 7,
    token: bytes = b"t",
    options: tuple[tuple[int, bytes], ...] = ((PATH, b"a"),),
    payload: bytes = b"",
) -> bytes:
    data = bytes((0x40 | kind << 4 | len(token), code)) + number.to_bytes(2, "big") + token
    before = 0
    for option, value in sorted(options, key=lambda each: each[0]):
        fields, extended = [], b""
        for field in (option - before, len(value)):
            if field < 13:
                fields.append(field)
            elif field < 269:
                fields.append(13)
                extended += bytes((field - 13,))
            else:
                fields.append(14)
                extended += (field - 269).to_bytes(2, "big")
        data += bytes((fields[0] << 4 | fields[1],)) + extended + value
        before = option
    return data + (b"\xff" + payload if payload else b"")


def block(number: int, more: bool, size_exponent: int = 0, option: int = BLOCK1) -> tuple[int, bytes]:
    value = number << 4 | more << 3 | size_exponent
    return option, value.to_bytes((value.bit_length() + 7) // 8, "big")


def exchanges(most: int = MAX_BODY_BYTES) -> Exchanges:
    return Exchanges(random.Random(1), most)


def test_a_request_is_answered_on_its_acknowledgement_and_again_if_it_comes_again() -> None:
    it = exchanges()
    none, request = it.receive(datagram(payload=b"hi"), ANN, 0.0)
    assert none is None
    assert request is not None
    assert (request.path, request.payload, request.token, request.code) == (("a",), b"hi", b"t", POST)
    assert it.receive(datagram(payload=b"hi"), ANN, 1.0) == (None, None), "it is under way"
    answer = it.answer(request, Answer(code=CHANGED))
    assert answer == bytes((0x40 | ACK << 4 | 1, CHANGED, 0, 7)) + b"t"
    assert it.receive(datagram(payload=b"hi"), ANN, 2.0) == (answer, None)
    again = it.receive(datagram(payload=b"hi"), ("192.0.2.1", 5_001), 2.0)[1]
    assert again is not None, "message ids are those of a place"
    assert it.receive(datagram(payload=b"hi"), ANN, LIFETIME_S + 1)[1] is not None, "so late it is another"


def test_a_request_that_asks_for_no_acknowledgement_gets_none() -> None:
    it = exchanges()
    _, request = it.receive(datagram(NON), ANN, 0.0)
    assert request is not None
    first = it.answer(request, Answer(code=CHANGED))
    assert (first[0], first[1], first[4:]) == (0x40 | NON << 4 | 1, CHANGED, b"t")
    assert it.receive(datagram(NON), ANN, 0.0) == (None, None)
    _, other = it.receive(datagram(NON, number=8), ANN, 0.0)
    assert other is not None
    assert it.answer(other, Answer(code=CHANGED))[2:4] != first[2:4], "message ids of its own"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x40\0\0\7", id="ping"),
        pytest.param(datagram(code=0x44), id="answer"),
        pytest.param(datagram(code=0x20), id="reserved-class"),
        pytest.param(b"\x49\2\0\7" + bytes(9), id="token-of-nine"),
        pytest.param(datagram() + b"\xff", id="marker-without-payload"),
        pytest.param(b"\x40\2\0\7\xf0", id="reserved-delta"),
        pytest.param(b"\x40\2\0\7\xb5a", id="cut-option"),
        pytest.param(datagram(options=((PATH, b"\xff\xfe"),)), id="no-utf-8"),
    ],
)
def test_what_is_no_request_is_reset_or_not_answered(data: bytes) -> None:
    assert exchanges().receive(data, ANN, 0.0) == (b"\x70\0\0\7", None)
    assert exchanges().receive(bytes((data[0] | NON << 4,)) + data[1:], ANN, 0.0) == (None, None)


@pytest.mark.parametrize("data", [b"", b"\x40\2\0", b"\x80\2\0\7", datagram(ACK), datagram(RST), b"\x60\0\0\7"])
def test_what_is_nothing_to_us_is_not_answered(data: bytes) -> None:
    assert exchanges().receive(data, ANN, 0.0) == (None, None)


def test_an_option_value_that_ends_in_the_marker_is_no_marker() -> None:
    _, request = exchanges().receive(datagram(options=((PATH, b"a"), (ACCEPT, b"\xff"))), ANN, 0.0)
    assert request is not None
    assert request.accept == 0xFF


@pytest.mark.parametrize(("option", "code"), [(1, BAD_OPTION), (5, BAD_OPTION), (9, BAD_OPTION), (PROXY_URI, PROXYING)])
def test_options_that_must_be_understood(option: int, code: int) -> None:
    it = exchanges()
    answer, request = it.receive(datagram(options=((PATH, b"a"), (option, b"x"))), ANN, 0.0)
    assert answer is not None
    assert (answer[1], request) == (code, None)
    assert it.receive(datagram(options=((PATH, b"a"), (option, b"x"))), ANN, 0.0) == (answer, None)
    assert exchanges().receive(datagram(NON, options=((PATH, b"a"), (option, b"x"))), ANN, 0.0) == (None, None)


def test_options_that_may_be_passed_over() -> None:
    assert exchanges().receive(datagram(options=((PATH, b"a"), (2_048, b"x"))), ANN, 0.0)[1] is not None


def send(
    it: Exchanges, number: int, message: int, more: bool, payload: bytes, *, size: int = 0, tag: bytes = b""
) -> tuple[bytes | None, Request | None]:
    options = ((PATH, b"a"), block(number, more, size), *(((REQUEST_TAG, tag),) if tag else ()))
    return it.receive(datagram(number=message, options=options, payload=payload), ANN, 0.0)


def test_a_body_comes_in_blocks() -> None:
    it = exchanges()
    for number in range(3):
        answer, request = send(it, number, number, True, bytes((number,)) * 16)
        assert request is None
        assert answer is not None
        assert answer[1] == CONTINUE
        assert send(it, number, number, True, bytes((number,)) * 16) == (answer, None), "it came again"
    none, request = send(it, 3, 3, False, b"end")
    assert none is None
    assert request is not None
    assert request.payload == bytes(16) + b"\1" * 16 + b"\2" * 16 + b"end"
    assert it.answer(request, Answer(code=CHANGED)).endswith(bytes((0xD1, BLOCK1 - 13, 0x30))), "the last is told again"


def test_blocks_of_several_bodies_are_told_apart_by_their_tags() -> None:
    it = exchanges()
    send(it, 0, 0, True, b"a" * 16, tag=b"1")
    send(it, 0, 1, True, b"b" * 16, tag=b"2")
    _, first = send(it, 1, 2, False, b"c", tag=b"1")
    _, second = send(it, 1, 3, False, b"c", tag=b"2")
    assert first is not None
    assert second is not None
    assert (first.payload, second.payload) == (b"a" * 16 + b"c", b"b" * 16 + b"c")


def test_blocks_that_do_not_fit() -> None:
    for number, more, payload, size, code in (
        (1, False, b"x", 0, INCOMPLETE),
        (0, True, b"short", 0, BAD_REQUEST),
        (0, False, b"x" * 17, 0, BAD_REQUEST),
        (0, True, b"x" * 16, 7, BAD_REQUEST),
    ):
        answer, request = send(exchanges(), number, 1, more, payload, size=size)
        assert answer is not None
        assert (answer[1], request) == (code, None)
    it = exchanges(40)
    send(it, 0, 0, True, b"x" * 16)
    send(it, 1, 1, True, b"x" * 16)
    answer, request = send(it, 2, 2, True, b"x" * 16)
    assert answer is not None
    assert (answer[1], request) == (TOO_LARGE, None)
    assert bytes((0xD1, 60 - 13, 40)) in answer, "Size1 tells how large it may be"
    refused, _ = send(it, 2, 3, False, b"x")
    assert refused is not None
    assert refused[1] == INCOMPLETE, "nothing is left of it"


def test_blocks_whose_rest_does_not_come_are_forgotten() -> None:
    it = exchanges()
    send(it, 0, 0, True, b"x" * 16)
    it.receive(datagram(number=99), ANN, LIFETIME_S + 1)
    assert (len(it._assemblies), it._assembled_bytes) == (0, 0)


def test_what_is_remembered_is_bounded() -> None:
    it = exchanges()
    for number in range(MAX_REMEMBERED + 10):
        it.receive(datagram(number=number), ANN, 0.0)
    assert len(it._known) == MAX_REMEMBERED
    for number in range(2 * MAX_ASSEMBLIES):
        data = datagram(number=number, options=((PATH, b"a"), block(0, True)), payload=b"x" * 16)
        it.receive(data, (f"192.0.2.{number % 128}", number), 0.0)
        own = sum(key[0][0] == f"192.0.2.{number % 128}" for key in it._assemblies)
        assert own <= MAX_ASSEMBLIES_OF_ONE
    assert len(it._assemblies) <= MAX_ASSEMBLIES
    assert it._assembled_bytes == sum(len(each.body) for each in it._assemblies.values())


def test_bodies_that_are_not_whole_have_so_many_bytes_together() -> None:
    it, message = exchanges(), 0
    for client in range(6):
        for number in range(1_000):
            message += 1
            data = datagram(number=message, options=((PATH, b"a"), block(number, True, 6)), payload=b"x" * 1_024)
            it.receive(data, ("192.0.2.1", client), 0.0)
            assert it._assembled_bytes <= MAX_ASSEMBLED_BYTES


@given(st.lists(st.tuples(st.binary(max_size=60), st.integers(0, 1), st.floats(0, 300)), max_size=8))
def test_whatever_comes_is_no_error(datagrams: list[tuple[bytes, int, float]]) -> None:
    it = exchanges()
    for data, port, now in datagrams:
        for head in (b"", b"\x41\2\0\1t", b"\x41\2\0\2t\xb1a\xd1\3"):
            _, request = it.receive(head + data, ("192.0.2.1", port), now)
            if request is not None:
                it.answer(request, Answer(code=CHANGED, payload=b"x", content_format=0, max_age_s=1))
