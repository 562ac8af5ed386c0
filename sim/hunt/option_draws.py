"""Which options of broker and clients a drawn schedule may change: one row an option, all of them legal.

A row says only what is drawn and where it goes. What the broker then promises follows from its configuration
(:func:`promised`), so that no option needs to tell the checkers: with a durability of ``interval`` an acknowledgement
means no more than ``os``, and a power loss may take what was acknowledged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from assay.faults.scenario import (
    Absences,
    AmqpWorkload,
    MqttWorkload,
    QueueWorkload,
    Retained,
    Scenario,
    Settlement,
    Topology,
    Wills,
    Workload,
)
from assay.reference_broker.config import (
    BrokerConfig,
    Durability,
    Ordering,
    QueueConfig,
    RebalanceProtocol,
    parse_config,
    queue_defaults,
)
from assay.reference_broker.trace.schema import AckedMeans, OrderGuarantee
from assay.sim.hunt.ranges import Among, Draw, Spread, Whole

replace = msgspec.structs.replace
Apply = Callable[[Scenario, Any], Scenario]
_QUIET_MARGIN_S: Final = 1.1
"""Silence beyond all that the configuration may make a redelivery wait for."""
_DRAIN_S: Final = 20.0
_MESSAGE_S: Final = 0.02
"""What one message takes at most where each waits for the settlement of the one before, processing apart."""
LONG_S: Final = 3.0


class OptionDraw(msgspec.Struct, frozen=True, kw_only=True):
    """One option and its legal values."""

    values: Draw
    apply: Apply
    """Gives the scenario a value of it."""
    of: tuple[type[Workload], ...] = (QueueWorkload,)
    """Kinds of workloads of which one must be there."""
    chance: float = 0.25
    """That a schedule changes it at all."""
    longest_s: Callable[[QueueConfig], float] | None = None
    """For a time that the drain must outlast: as configured. It is always drawn where that is longer than
    :data:`LONG_S`, so that runs end."""


def queue_option(path: str) -> Apply:
    """Sets a key of every queue's configuration, ``retry.max_retries`` for example."""
    keys = path.split(".")

    def apply(scenario: Scenario, value: object) -> Scenario:
        broker = scenario.topology.broker
        queues = broker.get("queues", {})
        configured = [_set(entry, keys, value) for entry in queues.get("configured", ())]
        queues = {**queues, "defaults": _set(queues.get("defaults", {}), keys, value)}
        if configured:
            queues["configured"] = configured
        return _with_broker(scenario, {**broker, "queues": queues})

    return apply


def broker_option(path: str) -> Apply:
    """Sets a key of the broker's configuration, ``queues.segment_bytes`` for example."""
    keys = path.split(".")
    return lambda scenario, value: _with_broker(scenario, _set(scenario.topology.broker, keys, value))


def workload_option(name: str) -> Apply:
    """Sets a field of every workload that has it."""
    return _each_workload(
        lambda workload, value: replace(workload, **{name: value}) if hasattr(workload, name) else workload
    )


def _each_workload(change: Callable[[Any, Any], Workload]) -> Apply:
    return lambda scenario, value: replace(
        scenario, workload=tuple(change(workload, value) for workload in scenario.workload)
    )


def mqtt_option(change: Callable[[MqttWorkload, Any], MqttWorkload]) -> Apply:
    """Changes every workload of plain MQTT; 3.1.1 knows no delay of wills."""

    def apply(workload: Workload, value: object) -> Workload:
        if not isinstance(workload, MqttWorkload):
            return workload
        changed = change(workload, value)
        if changed.protocol == "3.1.1" and changed.wills is not None:
            return replace(changed, wills=replace(changed.wills, delay_s=(0, 0)))
        return changed

    return _each_workload(apply)


def _publishers(workload: MqttWorkload, number: int) -> MqttWorkload:
    """So many publishers, with as many messages and as much load together as before."""
    total, rate = workload.publishers * workload.messages_per_publisher, workload.publishers * workload.rate_per_s
    messages = max(1, total // number)
    return replace(workload, publishers=number, messages_per_publisher=messages, rate_per_s=rate / number)


def _producers(scenario: Scenario, number: int) -> Scenario:
    """So many producers, with as many messages and as much load together as before."""
    changed = []
    for workload in scenario.workload:
        if isinstance(workload, QueueWorkload):
            total = workload.producers * workload.messages_per_producer
            rate = workload.producers * workload.rate_per_s
            workload = replace(
                workload, producers=number, messages_per_producer=max(1, total // number), rate_per_s=rate / number
            )
        changed.append(workload)
    return replace(scenario, workload=tuple(changed))


def _with_broker(scenario: Scenario, broker: dict[str, Any]) -> Scenario:
    return replace(scenario, topology=Topology(nodes=scenario.topology.nodes, broker=broker))


def _set(section: Mapping[str, Any], keys: list[str], value: object) -> dict[str, Any]:
    if len(keys) == 1:
        return {**section, keys[0]: value}
    return {**section, keys[0]: _set(section.get(keys[0], {}), keys[1:], value)}


_MQTT: Final = (MqttWorkload,)
_ANY: Final = (QueueWorkload, MqttWorkload)

OPTION_DRAWS: Final[dict[str, OptionDraw]] = {
    # What an acknowledgement means.
    "durability": OptionDraw(
        values=Among(("fsync", "fsync", "interval", "memory")), apply=queue_option("durability"), chance=0.4
    ),
    "sync_interval": OptionDraw(values=Spread(0.02, 1.0), apply=broker_option("queues.sync_interval_s")),
    # When a delivery is repeated, and how often.
    "delivery_timeout": OptionDraw(
        values=Spread(0.2, 2.0),
        apply=queue_option("delivery_timeout_s"),
        longest_s=lambda queue: queue.delivery_timeout_s,
    ),
    "max_retries": OptionDraw(values=Among((0, 1, 2, 5, 20)), apply=queue_option("retry.max_retries")),
    "max_backoff": OptionDraw(
        values=Spread(0.02, 0.5),
        apply=queue_option("retry.max_backoff_s"),
        longest_s=lambda queue: queue.retry.max_backoff_s,
    ),
    "initial_backoff": OptionDraw(values=Spread(0.005, 0.4), apply=queue_option("retry.initial_backoff_s")),
    "nack_immediately": OptionDraw(values=Among((True, False)), apply=queue_option("retry.nack_immediately")),
    # How a queue is laid out.
    "partitions": OptionDraw(values=Among((1, 2, 4, 10)), apply=queue_option("partitions")),
    "ordering": OptionDraw(values=Among(("none", "partition", "strict")), apply=queue_option("ordering")),
    "compression": OptionDraw(values=Among(("none", "s2", "zstd")), apply=queue_option("compression")),
    "partitioner": OptionDraw(values=Among(("fnv1a", "murmur3")), apply=queue_option("partitioner")),
    "segment_bytes": OptionDraw(values=Whole(1_000, 40_000), apply=broker_option("queues.segment_bytes"), chance=0.4),
    "segment_age": OptionDraw(values=Spread(0.05, 2.0), apply=broker_option("queues.segment_age_s")),
    # Limits.
    "max_depth": OptionDraw(values=Whole(20, 400), apply=queue_option("max_depth")),
    "max_in_flight": OptionDraw(values=Whole(1, 50), apply=queue_option("max_in_flight")),
    "group_in_flight": OptionDraw(values=Whole(1, 50), apply=queue_option("group.max_in_flight")),
    "max_pending": OptionDraw(values=Whole(2, 200), apply=queue_option("group.max_pending")),
    "memory": OptionDraw(values=Whole(20_000, 200_000), apply=broker_option("queues.max_memory_bytes"), chance=0.15),
    "receive_maximum": OptionDraw(values=Whole(1, 100), apply=broker_option("mqtt.receive_maximum")),
    # How consumers share.
    "assignor": OptionDraw(values=Among(("range", "round_robin", "sticky")), apply=queue_option("group.assignor")),
    "protocol": OptionDraw(values=Among(("eager", "cooperative")), apply=queue_option("group.protocol")),
    "rebalance_timeout": OptionDraw(
        values=Spread(0.1, 2.0),
        apply=queue_option("group.rebalance_timeout_s"),
        longest_s=lambda queue: queue.group.rebalance_timeout_s,
    ),
    # What clients do.
    "producers": OptionDraw(values=Among((1, 2, 4)), apply=_producers),
    "consumers": OptionDraw(values=Among((1, 2, 3)), apply=workload_option("consumers_per_group")),
    "keys": OptionDraw(values=Whole(1, 30), apply=workload_option("keys")),
    "payload_bytes": OptionDraw(values=Whole(1, 4_000), apply=workload_option("payload_bytes")),
    "process": OptionDraw(values=Among(((0.0, 0.0), (0.0, 0.03), (0.02, 0.1))), apply=workload_option("process_s")),
    "settlement": OptionDraw(
        values=Among(
            (
                Settlement(),
                Settlement(ack=0.8, nack=0.2),
                Settlement(ack=0.8, reject=0.2),
                Settlement(ack=0.9, ignore=0.1),
                Settlement(ack=0.5, nack=0.3, reject=0.1, ignore=0.1),
                Settlement(ack=0.3, nack=0.2, reject=0.5),
            )
        ),
        apply=workload_option("settlement"),
        chance=0.5,
        of=(QueueWorkload, AmqpWorkload),
    ),
    "consumers_come_and_go": OptionDraw(
        values=Among((None, Absences(stay_s=(0.05, 0.4), away_s=(0.02, 0.3)), Absences(away_s=(0.3, 1.5)))),
        apply=workload_option("absences"),
        of=(QueueWorkload, AmqpWorkload),
    ),
    "reconnect": OptionDraw(values=Spread(0.005, 0.5), apply=workload_option("reconnect_after_s"), of=_ANY),
    "keep_alive": OptionDraw(values=Among((1, 2, 4)), apply=workload_option("keep_alive_s"), of=_ANY),
    "publish_timeout": OptionDraw(values=Spread(0.3, 2.0), apply=workload_option("publish_timeout_s"), of=_ANY),
    # Of plain MQTT.
    "mqtt_protocol": OptionDraw(
        values=Among(("3.1.1", "5.0")),
        apply=mqtt_option(lambda workload, value: replace(workload, protocol=value)),
        of=_MQTT,
    ),
    "mqtt_qos": OptionDraw(
        values=Among(((2, 1, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (0, 1, 1))),
        apply=mqtt_option(lambda workload, value: replace(workload, qos=tuple(map(float, value)))),
        of=_MQTT,
    ),
    "session_durability": OptionDraw(
        values=Among(("fsync", "interval", "memory")), apply=broker_option("sessions.durability"), chance=0.4, of=_MQTT
    ),
    "session_expiry": OptionDraw(
        values=Among((1, 2, 5, 3_600)), apply=workload_option("session_expiry_s"), chance=0.4, of=_MQTT
    ),
    "sessions": OptionDraw(values=Among((1, 2, 4)), apply=workload_option("sessions"), of=_MQTT),
    "clean_sessions": OptionDraw(values=Among((0, 1, 2)), apply=workload_option("clean_sessions"), of=_MQTT),
    "share_members": OptionDraw(values=Among((0, 1, 3)), apply=workload_option("share_members"), of=_MQTT),
    "publishers": OptionDraw(values=Among((1, 2, 4)), apply=mqtt_option(_publishers), of=_MQTT),
    "topics": OptionDraw(values=Whole(1, 10), apply=workload_option("topics"), of=_MQTT),
    "absences": OptionDraw(
        values=Among(
            (
                None,
                Absences(stay_s=(0.05, 0.3), away_s=(0.01, 0.2)),
                Absences(leave=0.0, take_over=3.0),
                Absences(stay_s=(0.2, 1.0), away_s=(0.5, 2.6)),
            )
        ),
        apply=mqtt_option(lambda workload, value: replace(workload, absences=value)),
        of=_MQTT,
    ),
    "retained": OptionDraw(
        values=Among(
            (
                None,
                Retained(topics=1, writes_per_writer=80, removal=0.5),
                Retained(writers=2, topics=8, writes_per_writer=60, removal=0.1, readers=2),
            )
        ),
        apply=mqtt_option(lambda workload, value: replace(workload, retained=value)),
        of=_MQTT,
    ),
    "wills": OptionDraw(
        values=Among(
            (
                None,
                Wills(absences=Absences(stay_s=(0.05, 0.3), away_s=(0.05, 0.3))),
                Wills(clients=3, delay_s=(0, 2), absences=Absences(away_s=(0.1, 2.6))),
            )
        ),
        apply=mqtt_option(lambda workload, value: replace(workload, wills=value)),
        of=_MQTT,
    ),
    "mqtt_receive_maximum": OptionDraw(values=Whole(1, 100), apply=broker_option("mqtt.receive_maximum"), of=_MQTT),
    "client_receive_maximum": OptionDraw(values=Whole(1, 100), apply=workload_option("receive_maximum"), of=_MQTT),
    "mqtt_payload_bytes": OptionDraw(values=Whole(1, 4_000), apply=workload_option("payload_bytes"), of=_MQTT),
}
"""By name."""


def draw_options(rng: random.Random, scenario: Scenario) -> dict[str, object]:
    """Some options and a value for each, in the order of the table."""
    queues = _configured(scenario)
    drawn: dict[str, object] = {}
    for name, option in OPTION_DRAWS.items():
        if not any(isinstance(workload, option.of) for workload in scenario.workload):
            continue
        longest_s = option.longest_s
        forced = longest_s is not None and any(longest_s(queue) > LONG_S for queue in queues)
        # Both are drawn whatever comes of it, so that one option does not shift the others.
        wanted, value = rng.random() < option.chance, option.values.draw(rng, {})
        if wanted or forced:
            drawn[name] = value
    return drawn


def with_options(scenario: Scenario, options: Mapping[str, object]) -> Scenario:
    """The scenario with these options, judged by what its broker then promises."""
    changed = scenario
    for name, value in options.items():
        changed = OPTION_DRAWS[name].apply(changed, value)
    return patient(promised(scenario, changed))


_MEANS: Final = {
    Durability.MEMORY: AckedMeans.MEMORY,
    Durability.INTERVAL: AckedMeans.OS,
    Durability.FSYNC: AckedMeans.DISK,
}


def promised(scenario: Scenario, changed: Scenario) -> Scenario:
    """``changed`` with the contract that follows from its configuration.

    A promise that the file makes weaker than its broker's configuration stays as it is unless that option changed.
    """
    contract = changed.contract
    means = _weakest(changed)
    if _weakest(scenario) is not means:
        contract = replace(contract, acked_means=means)
    before, after = _configured(scenario), _configured(changed)
    if not after:
        return replace(changed, contract=contract)
    if _ordered(before) is not _ordered(after):
        kept = OrderGuarantee.PER_PRODUCER_KEY if _ordered(after) else OrderGuarantee.NONE
        contract = replace(contract, order=kept)
    if any(queue.ordering is Ordering.STRICT for queue in after):  # which ignores priorities (Q-PRIO-11)
        contract = replace(contract, lane_shares="")
    most = max(queue.retry.max_retries for queue in after) + 1
    if most != max((queue.retry.max_retries for queue in before), default=-1) + 1:
        contract = replace(contract, max_deliveries=most)
    timeout_s = min(map(_soonest_again_s, after))
    if timeout_s != min(map(_soonest_again_s, before), default=0):
        contract = replace(contract, delivery_timeout_s=timeout_s)
    return replace(changed, contract=contract)


def patient(scenario: Scenario) -> Scenario:
    """The scenario with a drain that outlasts all that its configuration, or its clock, may make a message wait for."""
    waits_s = [scenario.longest_wait_s]
    waits_s += map(_longest_wait_s, _configured(scenario))
    if any(isinstance(workload, MqttWorkload) for workload in scenario.workload):
        waits_s.append(scenario.quiet_s - _QUIET_MARGIN_S)
    quiet_s = max(waits_s) + _QUIET_MARGIN_S
    one_by_one_s = sum(
        workload.producers * workload.messages_per_producer * (workload.process_s[1] + _MESSAGE_S)
        for workload in scenario.workload
        if isinstance(workload, QueueWorkload)
    )
    return replace(
        scenario,
        drain_quiet_s=round(quiet_s, 3),
        drain_timeout_s=round(_DRAIN_S + 2 * quiet_s + one_by_one_s, 3),
    )


def _config(scenario: Scenario) -> BrokerConfig:
    return parse_config({**scenario.topology.broker, "data_dir": "simulated"}, where="topology.broker")


def _configured(scenario: Scenario) -> list[QueueConfig]:
    config = _config(scenario)
    return [
        queue_defaults(config.queues, workload.queue)
        for workload in scenario.workload
        if isinstance(workload, QueueWorkload)
    ]


def _weakest(scenario: Scenario) -> AckedMeans:
    order = list(AckedMeans)
    promised_by = [_MEANS[queue.durability] for queue in _configured(scenario)]
    # What is declared over AMQP stands in the log of the sessions.
    if any(isinstance(workload, MqttWorkload | AmqpWorkload) for workload in scenario.workload):
        promised_by.append(_MEANS[_config(scenario).sessions.durability])
    return min(promised_by, key=order.index, default=AckedMeans.DISK)


def _ordered(queues: list[QueueConfig]) -> bool:
    return all(queue.ordering is not Ordering.NONE for queue in queues)


def _soonest_again_s(queue: QueueConfig) -> float:
    """How long a delivery is its consumer's at least: a partition that is revoked does not wait longer for it."""
    if queue.group.protocol is RebalanceProtocol.COOPERATIVE:
        return min(queue.delivery_timeout_s, queue.group.rebalance_timeout_s)
    return queue.delivery_timeout_s


def _longest_wait_s(queue: QueueConfig) -> float:
    """Until a message that a consumer failed to settle is there again."""
    waits_s = queue.delivery_timeout_s + queue.retry.max_backoff_s
    if queue.group.protocol is RebalanceProtocol.COOPERATIVE:
        waits_s += queue.group.rebalance_timeout_s
    return waits_s
