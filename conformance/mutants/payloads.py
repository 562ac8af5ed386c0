"""Lengths that are read wrongly, on one of the ways of the broker: what a payload holds is then taken for packets."""

from __future__ import annotations

from collections.abc import Callable

from assay.conformance.mutants import Patch, mutant, variation
from assay.reference_broker.mqtt.batches.publish_batches import PublishBatchReader
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound

_SHED_BYTES = 1 << 16
_LOW = "data[start + 1] & 0x7F"
_HIGH = "(data[start + 2] & 0x7F) << 7 if data[start + 1] >= 0x80 else 0"


@mutant("runs-are-measured-by-two-length-bytes", "a run of like packets is cut by the first two bytes of their length")
def runs_by_two(patch: Patch) -> None:
    body = "topic_end - start - 2 - len(plan.topic.encode())"
    patch.rewrite(
        Inbound,
        "find_run",
        ", end - start\n",
        f", end - start\n    end = start + {body} + ({_LOW} | ({_HIGH}))\n    stride = end - start\n",
    )


@mutant("queue-bursts-are-measured-by-two-length-bytes", "of the length of a queue's publishes two bytes are read")
def bursts_by_two(patch: Patch) -> None:
    patch.rewrite(PublishBatchReader, "read", "stride = end - start", f"stride = body - start + ({_LOW} | ({_HIGH}))")


@mutant("half-a-length-is-taken-for-all", "a length of which a part has come is taken for whole")
def half_a_length(patch: Patch) -> None:
    patch.rewrite(
        MqttConnection,
        "long_length",
        "            return -1, 0",
        "            return (at, value) if index > 1 else (-1, 0)",
    )


@variation(
    "qos-0-is-shed",
    "a client to which a message is under way is sent no further one of QoS 0 that makes it more than 64 KB",
)
def qos_0_is_shed(patch: Patch) -> None:
    def make(original: Callable[[MqttConnection, bytes, int], None]) -> Callable[[MqttConnection, bytes, int], None]:
        def forward(self: MqttConnection, run: bytes, count: int) -> None:
            if self.out_bytes and self.out_bytes + len(run) > _SHED_BYTES:
                self.outbound.drop(count)
            else:
                original(self, run, count)

        return forward

    patch.wrap(MqttConnection, "forward", make)
