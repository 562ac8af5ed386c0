"""Clients that take no part keep what comes behind an answer: reads end anywhere, and any order is legal."""

from __future__ import annotations

from typing import Any

import pytest

from assay.conformance.explore import control
from assay.conformance.explore.amqp import wires
from assay.conformance.explore.amqp.wires import AmqpControl
from assay.conformance.explore.control import Control
from assay.conformance.explore.sockets import Patience
from assay.conformance.targets import Endpoint
from assay.conformance.wire import Connack, Pingresp, Publish, Suback, Unsuback, encode
from assay.conformance.wire.amqp091 import Method, encode_method

HERE = Endpoint(host="127.0.0.1", port=1)


class Told:
    """The socket of a broker whose answers are read in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)

    def recv(self, _most: int) -> bytes:
        return self.pieces.pop(0)

    def sendall(self, data: bytes) -> None:
        assert data

    def settimeout(self, seconds: float) -> None:
        assert seconds

    def close(self) -> None:
        """Nothing more is read."""


def test_a_message_that_a_read_cuts_goes_on_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins to read anew with each answer takes the rest of it for a packet."""
    message = encode(Publish(topic="$SYS/broker/clients/total", payload=b"12"), 5)
    rest = message[4:] + encode(Pingresp(), 5)
    told = Told(
        encode(Connack(), 5),
        encode(Suback(packet_id=1, reason_codes=(0,)), 5) + message[:4],
        rest,
        encode(Unsuback(packet_id=2, reason_codes=(0,)), 5),
    )
    monkeypatch.setattr(control, "connected", lambda _endpoint: told)
    assert Control(HERE, 5).figures(["clients/total"], 10.0) == {"clients/total": "12"}
    assert not told.pieces


def test_a_close_behind_an_answer_is_seen_with_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(channel: int, name: str, **fields: Any) -> bytes:
        return encode_method(channel, Method(name, **fields))

    tune = answer(0, "connection.tune", channel_max=10, frame_max=131_072, heartbeat=0)
    close = answer(0, "connection.close", reply_code=320, reply_text="bye", class_id=0, method_id=0)
    declared = answer(1, "queue.declare-ok", queue="q", message_count=0, consumer_count=0)
    start = answer(
        0, "connection.start", version_major=0, version_minor=9, server_properties={}, mechanisms="PLAIN", locales="en"
    )
    told = Told(start, tune, answer(0, "connection.open-ok"), answer(1, "channel.open-ok"), declared + close)
    monkeypatch.setattr(wires, "connected", lambda _endpoint: told)
    asked = AmqpControl(HERE)
    assert asked.request("queue.declare", queue="q").name == "queue.declare-ok"
    assert asked.request("queue.declare", queue="q")["reply-code"] == 320


def test_patience_begins_anew_while_the_broker_is_slow_to_answer_anybody() -> None:
    asked = iter([0.2, 0.2, 0.0])
    patience = Patience(0.0, lambda: next(asked))
    assert patience.left_s(5.0) > 0, "nobody was asked"
    for _ in range(3):
        assert patience.left_s() == 0
    assert list(asked) == []
