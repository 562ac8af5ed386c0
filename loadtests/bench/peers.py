"""The brokers that a bench compares, each in its best honest configuration, and the null broker as ceiling."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping

import msgspec

from assay.conformance.targets import StartHook, Target, load_target
from assay.loadtests import null_broker

_MOSQUITTO_CONFIGURATION = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
# No limits that would make it drop or hold back messages, no housekeeping, no log per client.
max_inflight_messages 0
max_queued_messages 0
sys_interval 0
log_type error
# set_tcp_nodelay stays off: it writes packet by packet, and is 10 to 20 % faster when the kernel may join them.
"""


# More than a bench has in flight, and not the most, 65535: of that a subscription at QoS 2 would need twice as much.
_NATS_CONFIGURATION = """\
listen: "127.0.0.1:-1"
server_name: bench
max_connections: 65536
jetstream { store_dir: "{dir}/jetstream" }
mqtt {
  listen: "127.0.0.1:{port}"
  consumer_memory_storage: true
  max_ack_pending: 8192
}
"""

_RABBITMQ_CONFIGURATION = """\
listeners.tcp = none
mqtt.listeners.tcp.1 = 127.0.0.1:{port}
mqtt.tcp_listen_options.backlog = 1024
mqtt.tcp_listen_options.nodelay = true
mqtt.allow_anonymous = true
mqtt.prefetch = 65535
log.console = true
log.console.level = error
log.file = false
"""

_RABBITMQ_QUEUES_CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{websocket_port}
tcp_listen_options.nodelay = true
mqtt.listeners.tcp.1 = 127.0.0.1:{port}
mqtt.allow_anonymous = true
log.console = true
log.console.level = error
log.file = false
"""

_READY_TIMEOUT_S = 60.0
"""As RabbitMQ's: a machine that is busy starts slowly, and is measured all the same."""
_RABBITMQ_AMQP_CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
tcp_listen_options.nodelay = true
tcp_listen_options.backlog = 1024
log.console = true
log.console.level = error
log.file = false
"""

_REFERENCE_CONFIGURATION = """\
data_dir: "{dir}/data"
queues:
  defaults:
    durability: DURABILITY
"""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """A broker of the bench. ``missing`` says why it cannot run here; empty when it can."""

    name: str
    target: Target
    missing: str = ""
    optional: bool = False
    """Skipped, with the reason, where it cannot be started."""
    amqp: bool = False
    """Measured over AMQP 0.9.1, on its second port."""


def mosquitto() -> Peer:
    """Eclipse Mosquitto from the PATH."""
    target = Target(
        name="mosquitto",
        description="Eclipse Mosquitto, tuned for throughput",
        start=StartHook(
            command=("mosquitto", "-c", "{dir}/mosquitto.conf"),
            version=("mosquitto", "-h"),
            files={"mosquitto.conf": _MOSQUITTO_CONFIGURATION},
        ),
    )
    missing = "" if shutil.which("mosquitto") else "mosquitto is not on the PATH (Debian: apt-get install mosquitto)"
    return Peer(name="mosquitto", target=target, missing=missing)


def reference() -> Peer:
    """The project's own broker in a process of its own, with as many deliveries in flight as the others may have."""
    target = load_target("reference")
    hook = target.start
    assert hook is not None
    hook = msgspec.structs.replace(
        hook,
        command=(*hook.command, "--config", "{dir}/bench.yaml"),
        files={**hook.files, "bench.yaml": "mqtt:\n  max_inflight_out: 65535\n"},
    )
    return Peer(name="reference", target=msgspec.structs.replace(target, start=hook))


def reference_queues(durability: str) -> Peer:
    """The project's own broker with durable queues in a temporary folder; ``durability`` as in its configuration."""
    target = Target(
        name=f"reference/{durability}",
        capabilities={"queues": True},
        start=StartHook(
            command=("{python}", "-m", "assay.conformance.adapter", "--config", "{dir}/broker.yaml"),
            port_from="stdout",
            files={"broker.yaml": _REFERENCE_CONFIGURATION.replace("DURABILITY", durability)},
        ),
    )
    return Peer(name=target.name, target=target)


def null_relay() -> Peer:
    """Every packet is read and forwarded: the ceiling of the queue client."""
    return Peer(name="null", target=null_broker.target("--mode", "relay"))


def null_pipe() -> Peer:
    """Bytes pass unread: the client's own ceiling."""
    return Peer(name="null", target=null_broker.target("--mode", "pipe"))


def nats() -> Peer:
    """NATS with its MQTT gateway, the state of consumers in memory."""
    return _shipped("nats", {"nats.conf": _NATS_CONFIGURATION})


def rabbitmq() -> Peer:
    """RabbitMQ with its MQTT plugin, with as many deliveries in flight as the others may have."""
    return _shipped("rabbitmq", {"rabbitmq.conf": _RABBITMQ_CONFIGURATION})


def rabbitmq_queues() -> Peer:
    """RabbitMQ with durable classic queues over AMQP 0.9.1: persistent messages, confirms, manual acknowledgements."""
    peer = _shipped("rabbitmq", {"rabbitmq.conf": _RABBITMQ_QUEUES_CONFIGURATION})
    return msgspec.structs.replace(peer, amqp=True)


def reference_amqp091() -> Peer:
    """The project's own broker over AMQP 0.9.1, as it is configured by itself: what is confirmed is on disk."""
    peer = _shipped("reference-amqp091", {})
    assert peer.target.start is not None
    hook = msgspec.structs.replace(peer.target.start, ready_timeout_s=_READY_TIMEOUT_S)
    target = msgspec.structs.replace(peer.target, start=hook)
    return msgspec.structs.replace(peer, name="reference", target=target, optional=False)


def rabbitmq_amqp091() -> Peer:
    """RabbitMQ over AMQP 0.9.1, with classic queues."""
    peer = _shipped("rabbitmq-amqp091", {"rabbitmq.conf": _RABBITMQ_AMQP_CONFIGURATION})
    return msgspec.structs.replace(peer, name="rabbitmq")


def amqtt() -> Peer:
    """amqtt, which has no options that matter here."""
    return _shipped("amqtt", {})


def _shipped(name: str, files: dict[str, str]) -> Peer:
    """A target of the conformance suites, started likewise, with configuration files for throughput."""
    target = load_target(name)
    assert target.start is not None
    hook = msgspec.structs.replace(target.start, files={**target.start.files, **files})
    return Peer(name=name, target=msgspec.structs.replace(target, start=hook), optional=True)


KNOWN: dict[str, Callable[[], Peer]] = {
    "reference": reference,
    "mosquitto": mosquitto,
    "nats": nats,
    "rabbitmq": rabbitmq,
    "amqtt": amqtt,
}


KNOWN_AMQP091: dict[str, Callable[[], Peer]] = {"reference": reference_amqp091, "rabbitmq": rabbitmq_amqp091}


def peers(names: list[str], known: Mapping[str, Callable[[], Peer]] = KNOWN) -> list[Peer]:
    """Peers by name (see ``KNOWN``), or by the path of a target file. Raises :class:`TargetError`."""
    found = []
    for name in names:
        if name in known:
            found.append(known[name]())
        else:
            target = load_target(name)
            found.append(Peer(name=target.name, target=target))
    return found
