"""Which features of exchanges and queues a broker has: it is asked, and what it refuses is not drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from assay.conformance.explore.amqp.wires import AmqpControl
from assay.conformance.targets import CapabilityValue

_QUEUES: Mapping[str, Mapping[str, Any]] = {
    "amqp-ttl": {"x-message-ttl": 60_000},
    "amqp-expires": {"x-expires": 60_000},
    "amqp-max-length": {"x-max-length": 1, "x-overflow": "drop-head"},
    "amqp-reject": {"x-max-length": 1, "x-overflow": "reject-publish"},
    "amqp-reject-dlx": {"x-max-length": 1, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": ""},
    "amqp-letters": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "nowhere"},
    "amqp-priority": {"x-max-priority": 4},
    "amqp-single": {"x-single-active-consumer": True},
}
PROBED = "amqp-tx"
"""Found for every broker that was asked."""
_QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum", "x-delivery-limit": 1}
_SENSELESS: Mapping[str, Mapping[str, Any]] = {
    "amqp-ttl": {"x-message-ttl": -1},
    "amqp-expires": {"x-expires": 0},
    "amqp-max-length": {"x-max-length": -1},
    "amqp-reject": {"x-overflow": "senseless"},
    "amqp-priority": {"x-max-priority": -1},
}
"""Who takes these does not know the argument."""


def probed(control: AmqpControl, name: str) -> dict[str, CapabilityValue]:
    """By the names of features; ``name``: of the queue and the exchange that it is tried with."""

    def declared(kind: str, **fields: Any) -> bool:
        answer = control.request(f"{kind}.declare", **{kind: name}, **fields)
        if answer.name != f"{kind}.declare-ok":
            return False
        control.request(f"{kind}.delete", **{kind: name})
        return True

    found: dict[str, CapabilityValue] = {}
    for feature, arguments in _QUEUES.items():
        found[feature] = declared("queue", arguments=arguments)
        if found[feature] and feature in _SENSELESS:
            found[feature] = not declared("queue", arguments=_SENSELESS[feature])
    found["amqp-delivery-limit"] = declared("queue", durable=True, arguments=_QUORUM)
    found["amqp-alternate"] = declared("exchange", type="direct", arguments={"alternate-exchange": "amq.fanout"})
    found["amqp-internal"] = declared("exchange", type="direct", internal=True)
    for kind in ("topic", "headers"):
        found[f"amqp-{kind}"] = declared("exchange", type=kind)
    found[PROBED] = control.request("tx.select").name == "tx.select-ok"
    control.close()
    found["amqp-shared"] = control.request("basic.qos", prefetch_count=1, global_=True).name == "basic.qos-ok"
    control.close()
    return found
