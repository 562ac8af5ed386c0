"""What several MQTT 3.1.1 mutants share: switching off the fast ways, and a subscription walk with flaws to choose."""

from __future__ import annotations

from collections.abc import Iterator

from assay.conformance.mutants import Patch
from assay.reference_broker.core.routing import RouteNode, SubscriptionTree
from assay.reference_broker.mqtt.connections import inbound
from assay.reference_broker.mqtt.connections.inbound import Inbound, Plan
from assay.reference_broker.mqtt.wire import wire_types


def close_fast_ways(patch: Patch) -> None:
    """Every PUBLISH takes the general way, so that a bug planted there concerns all of them."""

    def renew(self: Inbound, plan: Plan, qos: int) -> None:
        plan.epoch, plan.targets = self._broker.tree.epoch, None

    patch.replace(Inbound, "renew", renew)


def replace_text_decoder(patch: Patch, decode: object) -> None:
    """Put ``decode(data, version) -> str`` in the place of the decoder of text fields."""
    patch.replace(wire_types, "decode_string", decode)
    patch.replace(inbound, "decode_string", decode)


def walk_with_flaws(
    patch: Patch, *, plus_takes_empty: bool = True, hash_takes_parent: bool = True, dollar_is_special: bool = True
) -> None:
    """Replace the walk through the subscription tree by one with the flaws asked for."""

    def walk(self: SubscriptionTree, topic: str) -> Iterator[RouteNode]:
        levels = topic.split("/")
        stack = [(self._root, 0)]
        while stack:
            node, depth = stack.pop()
            wildcards = depth > 0 or not (dollar_is_special and topic.startswith("$"))
            if wildcards and "#" in node.children and (hash_takes_parent or depth < len(levels)):
                yield node.children["#"]
            if depth == len(levels):
                yield node
                continue
            if wildcards and "+" in node.children and (plus_takes_empty or levels[depth]):
                stack.append((node.children["+"], depth + 1))
            if levels[depth] in node.children:
                stack.append((node.children[levels[depth]], depth + 1))

    patch.replace(SubscriptionTree, "walk", walk)
