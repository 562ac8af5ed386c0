"""What the bench measures, and what is aimed at. A case yields one figure for each of its lines."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Case(StrEnum):
    """A workload; ``--case`` selects by these names."""

    IDLE = "idle"
    """Memory goes first: a broker that has freed memory would take new connections into it unseen. Then latency."""
    OPEN_LOOP = "open-loop"
    QOS_0 = "qos0"
    QOS_1 = "qos1"
    QOS_2 = "qos2"
    MIXED = "mixed"
    """As devices send: payloads of 10 to 1,000 bytes over 1,000 topics in random order, or each on a new topic."""
    FAN_OUT = "fan-out"
    FAN_IN = "fan-in"
    SUBSCRIPTIONS = "subscriptions"
    STORM = "storm"
    QUEUE = "queue"
    """Durable queues: publish -> deliver -> ``$ack``, all confirmed; over AMQP 0.9.1 with confirms and manual acks."""
    QUEUE_BATCH = "queue-batch"
    """The same, a turn's deliveries settled together: ``offsets`` on ``$ack``, or an ack of multiple deliveries."""
    QUEUE_KEYED = "queue-keyed"
    """As ``queue``, with a key on each message: 100 keys in turn over 10 partitions, in order per key. RabbitMQ's queue
    has no partitions: its messages carry the same key as a header, and one queue keeps all of them in order."""

    IDLE_CHANNELS = "idle-channels"
    """AMQP 0.9.1, as all below; memory goes first here, too."""
    TRANSIENT = "transient"
    """Without confirms and acknowledgements; messages alike, and mixed."""
    PERSISTENT = "persistent"
    """Durable queues, confirms and manual acknowledgements, one for each or for several; messages alike, and mixed."""
    FANOUT = "fanout"
    TOPIC = "topic"
    """One of many patterns matches each message."""
    GET = "get"
    CONNECTS = "connects"


AMQP = (Case.IDLE_CHANNELS, Case.TRANSIENT, Case.PERSISTENT, Case.FANOUT, Case.TOPIC, Case.GET, Case.CONNECTS)
"""Cases of ``bench amqp091``, in their order."""
QUEUES = (Case.QUEUE, Case.QUEUE_BATCH, Case.QUEUE_KEYED)
PUB_SUB = (Case.QOS_0, Case.QOS_1, Case.QOS_2)
COMPARED = tuple(case for case in Case if case not in QUEUES and case not in AMQP)
"""Cases that every MQTT broker can be asked for."""


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """What the first broker should reach on a line."""

    times: float = 0.0
    """So many times better than the peer; 0 = no comparison is aimed at."""
    peer: str = ""
    """Which peer; empty = each of them."""
    per_cpu: bool = False
    """What is compared is what a second of the broker's processor time moves, in place of the rate."""
    at_least: float | None = None
    at_most: float | None = None
    share_of: str = ""
    """Name of another line; ``at_least`` is then a share of what a second of the broker's processor moves there."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One figure of a case: a row of the table for each broker."""

    name: str
    """As in metrics: ``<broker>.<name>.<metric>``."""
    case: Case
    title: str
    unit: str
    metric: str
    higher_is_better: bool = True
    timed_client: bool = True
    """Whether the client's load can limit the figure."""
    aims: tuple[Aim, ...] = ()


def _rate(name: str, case: Case, title: str, *aims: Aim) -> Line:
    return Line(name=name, case=case, title=title, unit="messages/s", metric="messages_per_s", aims=aims)


_AHEAD = Aim(times=1.0)
FILTER_COUNTS = (10, 1_000, 100_000)


def filters_line(count: int) -> str:
    """Name of the line that publishes to known topics beside ``count`` filters."""
    return f"filters_{count}"


_FLAT = Aim(share_of=filters_line(FILTER_COUNTS[0]), at_least=0.8)
_QUEUE_AIM = Aim(times=2.0, peer="rabbitmq")
_AMQP_CPU_AIM = Aim(times=1.0, peer="rabbitmq", per_cpu=True)
_TRANSIENT_AIMS = (Aim(times=3.0, peer="rabbitmq"), _AMQP_CPU_AIM)
_PERSISTENT_AIMS = (Aim(times=2.0, peer="rabbitmq"), _AMQP_CPU_AIM)
_OPEN_AIM = Aim(times=1.0, peer="mosquitto")

LINES: tuple[Line, ...] = (
    Line(
        name="idle",
        case=Case.IDLE,
        title="memory per connection, {idle} idle",
        unit="KB",
        metric="kb_per_connection",
        higher_is_better=False,
        timed_client=False,
        aims=(Aim(at_most=20.0),),
    ),
    *(
        Line(
            name=f"open_loop_qos{qos}_{metric.removesuffix('_ms')}",
            case=Case.OPEN_LOOP,
            title=f"{title} to deliver, QoS {qos}, {{open_rate}}/s",
            unit="ms",
            metric=metric,
            higher_is_better=False,
            timed_client=False,
            aims=(_OPEN_AIM,) if metric == "p99_ms" else (),
        )
        for qos in (0, 1)
        for metric, title in (("p50_ms", "p50"), ("p99_ms", "p99"), ("p999_ms", "p99.9"))
    ),
    _rate("qos0", Case.QOS_0, "1 -> 1, QoS 0", Aim(times=5.0, peer="mosquitto"), _AHEAD),
    _rate("qos1", Case.QOS_1, "1 -> 1, QoS 1", Aim(times=5.0, peer="mosquitto"), _AHEAD),
    _rate("qos2", Case.QOS_2, "1 -> 1, QoS 2", Aim(times=3.0, peer="mosquitto"), _AHEAD),
    _rate("mixed_qos0", Case.MIXED, "1 -> 1, 1,000 topics, any size, QoS 0", _AHEAD),
    _rate("mixed_qos1_to_0", Case.MIXED, "likewise, QoS 1 in, QoS 0 out", _AHEAD),
    _rate("mixed_qos1", Case.MIXED, "likewise, QoS 1", _AHEAD),
    _rate("new_qos0", Case.MIXED, "1 -> 1, every topic new, any size, QoS 0", _AHEAD),
    _rate("new_qos1", Case.MIXED, "likewise, QoS 1", _AHEAD),
    _rate("fan_out_qos0", Case.FAN_OUT, "1 -> {crowd}, QoS 0, deliveries", _AHEAD),
    _rate("fan_out_qos1", Case.FAN_OUT, "1 -> {crowd}, QoS 1, deliveries", _AHEAD),
    _rate("fan_out_single", Case.FAN_OUT, "1 -> {crowd}, QoS 0, one at a time, deliveries", _AHEAD),
    _rate("fan_in_qos0", Case.FAN_IN, "{crowd} -> 1, QoS 0", _AHEAD),
    _rate("fan_in_qos1", Case.FAN_IN, "{crowd} -> 1, QoS 1", _AHEAD),
    _rate(filters_line(10), Case.SUBSCRIPTIONS, "beside 10 filters, 3 deliveries a message", _AHEAD),
    _rate(filters_line(1_000), Case.SUBSCRIPTIONS, "beside 1 000 filters", _AHEAD, _FLAT),
    _rate(filters_line(100_000), Case.SUBSCRIPTIONS, "beside 100 000 filters", _AHEAD, _FLAT),
    _rate("filters_cold", Case.SUBSCRIPTIONS, "beside the most filters, every topic new", _AHEAD),
    _rate("filters_churn", Case.SUBSCRIPTIONS, "beside the most filters, others come and go", _AHEAD),
    Line(
        name="subscribe",
        case=Case.SUBSCRIPTIONS,
        title="SUBSCRIBE up to the most filters",
        unit="filters/s",
        metric="filters_per_s",
    ),
    Line(
        name="storm_max",
        case=Case.STORM,
        title="CONNECT to DISCONNECT at most",
        unit="CONNECTs/s",
        metric="connects_per_s",
        aims=(Aim(at_least=2_000.0),),
    ),
    Line(
        name="storm_open",
        case=Case.STORM,
        title="CONNECTs at {storm_rate}/s",
        unit="CONNECTs/s",
        metric="connects_per_s",
        timed_client=False,
        aims=(Aim(at_least=1_960.0),),
    ),
    Line(
        name="storm_p99",
        case=Case.STORM,
        title="p99 to CONNACK at {storm_rate}/s",
        unit="ms",
        metric="p99_ms",
        higher_is_better=False,
        timed_client=False,
    ),
    _rate("queue", Case.QUEUE, "queue, each message settled", Aim(at_least=53_665.0), _QUEUE_AIM),
    _rate("queue_batch", Case.QUEUE_BATCH, "queue, settled in batches", Aim(at_least=53_665.0), _QUEUE_AIM),
    _rate("queue_keyed", Case.QUEUE_KEYED, "queue, a key each, each settled", Aim(at_least=53_665.0), _QUEUE_AIM),
    _rate("amqp_transient", Case.TRANSIENT, "1 -> 1, transient, no acks", *_TRANSIENT_AIMS),
    _rate("amqp_transient_mixed", Case.TRANSIENT, "likewise, mixed", *_TRANSIENT_AIMS),
    _rate("amqp_persistent", Case.PERSISTENT, "1 -> 1, persistent, confirms, an ack each", *_PERSISTENT_AIMS),
    _rate("amqp_persistent_multiple", Case.PERSISTENT, "likewise, an ack for several", *_PERSISTENT_AIMS),
    _rate("amqp_persistent_mixed", Case.PERSISTENT, "likewise, mixed, an ack each", *_PERSISTENT_AIMS),
    _rate("amqp_fan_out", Case.FANOUT, "1 -> {amqp_crowd}, transient, deliveries", *_TRANSIENT_AIMS),
    _rate("amqp_topic", Case.TOPIC, "topic exchange, {bindings} bindings, transient", *_TRANSIENT_AIMS),
    _rate("amqp_get", Case.GET, "gets, no acks", _AMQP_CPU_AIM),
    Line(
        name="amqp_connects",
        case=Case.CONNECTS,
        title="connections with a channel, there and back",
        unit="connections/s",
        metric="connections_per_s",
        aims=(_AMQP_CPU_AIM,),
    ),
    Line(
        name="amqp_idle",
        case=Case.IDLE_CHANNELS,
        title="memory of a connection and its channel, {idle} idle",
        unit="KB",
        metric="kb_per_connection",
        higher_is_better=False,
        timed_client=False,
        aims=(Aim(times=1.0, peer="rabbitmq"),),
    ),
)


def lines_of(case: Case) -> tuple[Line, ...]:
    """Lines of a case, in the order of the table."""
    return tuple(line for line in LINES if line.case is case)
