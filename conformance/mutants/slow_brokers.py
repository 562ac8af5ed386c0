"""Legal brokers that take seconds for whatever they send. No standard gives a server's packets a deadline.

The whole suites take some minutes on each, so that only ``assay conformance self-check --mutant NAME`` runs them.
"""

from __future__ import annotations

import random

from assay.conformance.mutants import Patch, variation
from assay.conformance.mutants.output_order import Lane, send_by_lanes
from assay.reference_broker.mqtt.wire.packets import PacketType

_LATE_S = 3.0
_UP_TO_S = 4.0
_FREEDOM = "no clause gives a server's packets a deadline"
_DELIVERIES = (PacketType.PUBLISH, PacketType.PUBREL)


@variation("slow-3s", "whatever a client is sent is three seconds late", freedom=_FREEDOM, minutes=True)
def three_seconds_late(patch: Patch) -> None:
    send_by_lanes(patch, lambda _connection, _frame: ("", _LATE_S))


@variation("slow-0.7s", "whatever a client is sent is 0.7 seconds late", freedom=_FREEDOM, minutes=True)
def almost_a_second_late(patch: Patch) -> None:
    send_by_lanes(patch, lambda _connection, _frame: ("", 0.7))


@variation("slow-0-to-4s", "whatever a client is sent is up to four seconds late", freedom=_FREEDOM, minutes=True)
def up_to_four_seconds_late(patch: Patch) -> None:
    rng = random.Random(12)
    send_by_lanes(patch, lambda _connection, _frame: ("", rng.uniform(0.0, _UP_TO_S)))


@variation("slow-deliveries-3s", "messages are three seconds late, answers are not", freedom=_FREEDOM, minutes=True)
def deliveries_late(patch: Patch) -> None:
    lane: Lane = lambda _connection, frame: (  # noqa: E731
        (True, _LATE_S) if frame[0] >> 4 in _DELIVERIES else (False, 0.0)
    )
    send_by_lanes(patch, lane)
