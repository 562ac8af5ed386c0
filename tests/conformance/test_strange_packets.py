"""What a broker sends beyond all asking takes bounded room: messages of others, or bytes behind a fault."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from assay.conformance.case import CaseContext, load_cases
from assay.conformance.connection import _MAX_STRANGE_LINES, Connection
from assay.conformance.rules import Rule, StepFailureError
from assay.conformance.targets import Endpoint
from assay.conformance.transcript import Transcript
from assay.conformance.wire import Packet, Pingresp, Properties, Publish, encode

FLOOD = 3 * _MAX_STRANGE_LINES


class Context:
    """As much of a case as a connection needs; every message is one of another case."""

    lives, greeting_s = 1, 0.0

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.noted: list[Rule] = []

    def look_at(self, _connection: object, _packet: Packet) -> None:
        """No case that asks for it."""

    def will_send(self, packet: Packet, client_id: str = "", *, topic: str = "", times: int = 1) -> None:
        """Nothing to clean up."""

    def is_foreign(self, *_asked: object) -> bool:
        return True

    def is_of_another_case(self, _frame: bytes) -> bool:
        return False

    def note_incident(self, rule: Rule, _text: str, *_more: object) -> None:
        self.noted.append(rule)


@pytest.mark.parametrize("first", [b"", b"\x00\x00"], ids=["messages of others", "bytes behind a fault"])
def test_a_flood_is_written_down_in_part(first: bytes) -> None:
    context = Context()

    async def flood() -> None:
        connection = Connection(cast("Any", context), "client", 5)
        if first:
            connection.data_received(first)
        for _ in range(FLOOD):
            connection.data_received(encode(Publish(topic="t", payload=b"x"), 5))

    asyncio.run(flood())
    lines = [line.decoded for line in context.transcript.lines]
    assert _MAX_STRANGE_LINES < len(lines) <= _MAX_STRANGE_LINES + 2
    assert lines[-1] == "more of the same is not written down"
    # Each counts all the same.
    assert len(context.noted) == (0 if first else FLOOD)


def test_what_another_case_has_sent_is_passed_over_however_wrong_it_is() -> None:
    """Mosquitto forwards a payload format indicator of 2, and whoever subscribed to everything was said to get it."""
    case = load_cases()["mqtt5/topics/wildcards-spare-dollar-topics"]

    async def main() -> None:
        ctx = CaseContext(case, Endpoint(), {}, run_token="0000001", seed=0)
        connection = Connection(ctx, "everything", 5)
        wrong = Properties(payload_format_indicator=2)
        for qos in (0, 1):
            others = Publish(topic="assay/0123456789abcde/t", qos=qos, packet_id=qos, properties=wrong)
            connection.data_received(encode(others, 5))
        connection.data_received(encode(Pingresp(), 5))
        await connection.expect(Pingresp)
        connection.data_received(encode(Publish(topic=ctx.topic(), properties=wrong), 5))
        with pytest.raises(StepFailureError, match="malformed"):
            await connection.receive()

    asyncio.run(main())
