"""FluxMQ's views of the broker as a whole, and GoQueue's figures: sessions, subscriptions, tenants; reload."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from importlib import metadata
from typing import Annotated

import msgspec
from fastapi import Query

from assay.reference_broker.api.problems import Code, RequestError
from assay.reference_broker.api.topics import queue_in, topic_out
from assay.reference_broker.api.turns import in_portions
from assay.reference_broker.config import ConfigError, Scope, TenantConfig, TenantQuotas
from assay.reference_broker.http.areas import Area, Asked, Body, Call, Limit, Name
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.queues import QueueError, QueueErrorCode, QueueStats
from assay.reference_broker.queues.groups.delivery import DelayStats, QueueUsage
from assay.reference_broker.queues.messages.address import is_dead_letter
from assay.reference_broker.queues.queue.priority_figures import PriorityFigures

AREA = Area("overview", "Sessions, subscriptions, figures, tenants; reading the configuration again.")
_Q = QueueErrorCode


# -- sessions and subscriptions of MQTT ------------------------------------------------------------------------------


class SessionSubscription(msgspec.Struct, frozen=True, kw_only=True):
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    consumer_group: str
    subscription_id: int


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A session of MQTT."""

    client_id: str
    username: str | None
    state: str
    """``connected`` or ``disconnected``."""
    connected: bool
    expiry_interval: float | None
    """Seconds that it outlives its connection; none = for ever."""
    disconnected_at: float
    """Unix seconds; 0 = connected."""
    receive_maximum: int
    has_will: bool
    subscription_count: int
    inflight_count: int
    offline_queue_depth: int
    dropped: int
    tenant: str | None
    subscriptions: list[SessionSubscription]
    """In a list of sessions: none."""


class Sessions(msgspec.Struct, frozen=True, kw_only=True):
    sessions: list[SessionView]
    next_page_token: str


class SubscriptionView(msgspec.Struct, frozen=True, kw_only=True):
    filter: str
    subscriber_count: int
    max_qos: int


class Subscriptions(msgspec.Struct, frozen=True, kw_only=True):
    subscriptions: list[SubscriptionView]
    next_page_token: str


class SubscriptionClient(msgspec.Struct, frozen=True, kw_only=True):
    client_id: str
    qos: int


class SubscriptionClients(msgspec.Struct, frozen=True, kw_only=True):
    filter: str
    clients: list[SubscriptionClient]
    next_page_token: str


def _view(session: Session, *, whole: bool) -> SessionView:
    return SessionView(
        client_id=session.client_id,
        username=session.username,
        state="connected" if session.connection is not None else "disconnected",
        connected=session.connection is not None,
        expiry_interval=None if session.expiry_s == float("inf") else session.expiry_s,
        disconnected_at=session.disconnected_at,
        receive_maximum=session.receive_maximum,
        has_will=session.will is not None,
        subscription_count=len(session.subscriptions),
        inflight_count=len(session.in_flight),
        offline_queue_depth=len(session.queued),
        dropped=session.dropped,
        tenant=None if session.tenant is None else session.tenant.name,
        subscriptions=[
            SessionSubscription(
                filter=topic_filter,
                qos=each.qos,
                no_local=each.no_local,
                retain_as_published=each.retain_as_published,
                retain_handling=each.retain_handling,
                consumer_group=session.consumer_groups.get(topic_filter, ""),
                subscription_id=each.identifier,
            )
            for topic_filter, each in session.subscriptions.items()
        ]
        if whole
        else [],
    )


@AREA.get("/sessions", Scope.ADMIN)
async def list_sessions(
    call: Asked,
    state: Annotated[str, Query(pattern="^(connected|disconnected)?$")] = "",
    limit: Limit = 100,
    prefix: Annotated[str, Query(max_length=512)] = "",
    page_token: Annotated[str, Query(max_length=65_535)] = "",
) -> Sessions:
    """Sessions of MQTT, by client id from behind ``page_token`` on; without their subscriptions."""
    call.caller.administer("list")
    sessions = call.service.turn()[0].node.state.sessions
    wanted = (
        name
        for name, session in sessions.items()
        if name > page_token
        and name.startswith(prefix)
        and (not state or (session.connection is not None) == (state == "connected"))
    )
    found = heapq.nsmallest(limit, wanted)
    return Sessions(
        sessions=[_view(sessions[name], whole=False) for name in found],
        next_page_token=found[-1] if len(found) == limit else "",
    )


@AREA.get("/sessions/{client_id}", Scope.ADMIN, errors=(_Q.UNKNOWN_MEMBER,))
async def get_session(call: Asked, client_id: Name) -> SessionView:
    """A session of MQTT with its subscriptions."""
    call.caller.administer("list")
    session = call.service.turn()[0].node.state.sessions.get(client_id)
    if session is None:
        raise QueueError(_Q.UNKNOWN_MEMBER, f"there is no session {client_id[:80]!r}")
    return _view(session, whole=True)


@AREA.get("/subscriptions", Scope.ADMIN)
async def list_subscriptions(
    call: Asked,
    limit: Limit = 100,
    prefix: Annotated[str, Query(max_length=65_535)] = "",
    page_token: Annotated[str, Query(max_length=65_535)] = "",
) -> Subscriptions:
    """Filters that clients of MQTT have subscribed to, in their order, and how many clients each has."""
    call.caller.administer("list")
    found: dict[str, tuple[int, int]] = {}
    async for session in in_portions(list(call.service.turn()[0].node.state.sessions.values()), 500):
        for topic_filter, each in session.subscriptions.items():
            if topic_filter > page_token and topic_filter.startswith(prefix):
                count, qos = found.get(topic_filter, (0, 0))
                found[topic_filter] = (count + 1, max(qos, each.qos))
    names = heapq.nsmallest(limit, found)
    return Subscriptions(
        subscriptions=[
            SubscriptionView(filter=name, subscriber_count=found[name][0], max_qos=found[name][1]) for name in names
        ],
        next_page_token=names[-1] if len(names) == limit else "",
    )


@AREA.get("/subscriptions/{topic_filter}/clients", Scope.ADMIN)
async def list_subscribers(
    call: Asked,
    topic_filter: Name,
    limit: Limit = 100,
    page_token: Annotated[str, Query(max_length=65_535)] = "",
) -> SubscriptionClients:
    """Clients of MQTT that have subscribed to one filter, which is written with %2F and %23."""
    call.caller.administer("list")
    sessions = call.service.turn()[0].node.state.sessions
    names = heapq.nsmallest(
        limit, (name for name, each in sessions.items() if name > page_token and topic_filter in each.subscriptions)
    )
    return SubscriptionClients(
        filter=topic_filter,
        clients=[
            SubscriptionClient(client_id=name, qos=sessions[name].subscriptions[topic_filter].qos) for name in names
        ],
        next_page_token=names[-1] if len(names) == limit else "",
    )


# -- figures ---------------------------------------------------------------------------------------------------------


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    current: int
    """Over MQTT and AMQP."""
    mqtt: int
    mqtt_maximum: int


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    received: int
    sent: int


class QueueTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Of the queues that the caller may read; counters are since the start."""

    queues: int
    depth: int
    in_flight: int
    delayed: int
    dead_letters: int
    enqueued: int
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    rejected: int
    timed_out: int
    dead_lettered: int
    claimed: int
    refused: int
    capture_failures: int
    capture_dropped: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    uptime_seconds: float
    connections: Connections
    messages: Moved
    bytes: Moved
    sessions: int
    subscriptions: int
    retained_messages: int
    queues: QueueTotals


class QueueFigures(msgspec.Struct, frozen=True, kw_only=True):
    queues: list[QueueStats]
    unusable: list[str]
    """Found and not opened, since something of them is damaged; only told on the first page."""
    next_page_token: str


@AREA.get("/stats/queues", Scope.READ)
async def list_queue_stats(
    call: Asked,
    limit: Limit = 100,
    prefix: Annotated[str, Query(max_length=512)] = "",
    page_token: Annotated[str, Query(max_length=1_024)] = "",
    dead_letters: bool = False,
) -> QueueFigures:
    """Figures of the queues that the caller may read, by name from behind ``page_token`` on; with ``dead_letters``
    those of dead letters as well."""
    caller, engine = call.caller, call.service.engine

    def told(names: list[str]) -> list[tuple[str, str]]:
        return [
            (name, known)
            for name in names
            if (dead_letters or not is_dead_letter(name))
            and caller.reads(name)
            and (known := caller.told(name)).startswith(prefix)
            and known > page_token
        ]

    wanted = heapq.nsmallest(limit, told(engine.queues()), key=lambda pair: pair[1])
    found: list[QueueStats] = []
    async for name, known in in_portions(wanted):
        with contextlib.suppress(QueueError):  # it has gone meanwhile
            found.append(msgspec.structs.replace(call.service.engine.stats(name), queue=known))
    return QueueFigures(
        queues=found,
        unusable=[] if page_token else [known for _, known in told(engine.unusable_queues())],
        next_page_token=wanted[-1][1] if len(wanted) == limit else "",
    )


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    healthy: bool
    leader: bool
    uptime_seconds: float


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """This node, which is alone."""

    node_id: str
    cluster_mode: bool
    is_leader: bool
    nodes: list[ClusterNode]


class SessionCounts(msgspec.Struct, frozen=True, kw_only=True):
    connected: int
    total: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    version: str
    sessions: SessionCounts
    stats: Stats
    cluster: Cluster


@AREA.get("/reliability/stats", Scope.READ)
async def reliability_stats(call: Asked) -> QueueTotals:
    """What became of deliveries, of all topics that the caller may read."""
    counts = dict.fromkeys(QueueTotals.__struct_fields__, 0)
    async for name in in_portions(call.service.engine.queues()):
        engine = call.service.engine
        if not call.caller.reads(name) or not engine.exists(name):
            continue
        try:
            stats = engine.stats(name)
        except QueueError:
            continue
        counts["queues"] += 1
        for field in QueueTotals.__struct_fields__[1:]:
            if hasattr(stats, field):
                counts[field] += getattr(stats, field)
            else:
                counts[field] += sum(getattr(group, field) for group in stats.groups)
    return QueueTotals(**counts)


@AREA.get("/stats", Scope.READ)
async def broker_stats(call: Asked) -> Stats:
    """Figures of the broker."""
    totals = await reliability_stats(call)
    driver, now = call.service.turn()
    state = driver.node.state
    traffic = state.traffic
    return Stats(
        uptime_seconds=round(now - state.sys_topics.started_at, 3),
        connections=Connections(
            current=driver.node.connection_count, mqtt=traffic.connected, mqtt_maximum=traffic.max_connected
        ),
        messages=Moved(received=traffic.publishes_received, sent=traffic.publishes_sent),
        bytes=Moved(received=traffic.bytes_received, sent=traffic.bytes_sent),
        sessions=len(state.sessions),
        subscriptions=traffic.subscriptions,
        retained_messages=len(state.retained),
        queues=totals,
    )


@AREA.get("/cluster", Scope.READ)
async def cluster(call: Asked) -> Cluster:
    """The nodes: this one."""
    driver, now = call.service.turn()
    node = driver.node
    uptime = round(now - node.state.sys_topics.started_at, 3)
    alone = ClusterNode(id=node.config.node, healthy=True, leader=True, uptime_seconds=uptime)
    return Cluster(node_id=alone.id, cluster_mode=False, is_leader=True, nodes=[alone])


@AREA.get("/overview", Scope.READ)
async def overview(call: Asked) -> Overview:
    """All of it in one."""
    state = call.service.turn()[0].node.state
    return Overview(
        node=state.config.node,
        version=metadata.version("assay-mq"),
        sessions=SessionCounts(connected=state.traffic.connected, total=len(state.sessions)),
        stats=await broker_stats(call),
        cluster=await cluster(call),
    )


class DelayFigures(msgspec.Struct, frozen=True, kw_only=True):
    topics: dict[str, DelayStats]


@AREA.get("/delay/stats", Scope.READ)
async def delay_stats(call: Asked) -> DelayFigures:
    """Delayed messages by topic, of those that have or had any."""
    found: dict[str, DelayStats] = {}
    async for name in in_portions(call.service.engine.queues()):
        engine = call.service.engine
        if call.caller.reads(name) and engine.exists(name):
            stats = engine.stats(name).delays
            if stats != DelayStats():
                found[topic_out(call.caller.told(name))] = stats
    return DelayFigures(topics=found)


@AREA.get("/priority/stats", Scope.READ, errors=(_Q.UNKNOWN_QUEUE,))
async def priority_stats(call: Asked, topic: Annotated[str, Query(max_length=1_024)] = "") -> PriorityFigures:
    """Figures by topic, partition and priority; of one topic, or of all that the caller may read."""
    caller = call.caller
    if topic:
        names = [caller.queue(queue_in(call, topic), Scope.READ)]
    else:
        names = [name for name in call.service.engine.queues() if caller.reads(name)]
    found: dict[str, object] = {}
    async for name in in_portions(names):
        driver, now = call.service.turn()
        if topic or driver.node.engine.exists(name):
            figures = driver.node.engine.priority_figures(name, now)
            found[topic_out(caller.told(name))] = figures.topics[name]
    return PriorityFigures(topics=found)  # type: ignore[arg-type]


# -- tenants ---------------------------------------------------------------------------------------------------------


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    users: list[str]
    clients: list[str]
    quotas: TenantQuotas
    usage: QueueUsage
    connections: int


class TenantList(msgspec.Struct, frozen=True, kw_only=True):
    tenants: list[TenantView]


def _tenant(call: Call, config: TenantConfig) -> TenantView:
    state = call.service.broker
    tenant = None if state.tenants is None else state.tenants.named(config.name)
    prefix = f"{config.name}."
    usage = state.engine.usage(lambda queue: queue.removeprefix("$dlq/").startswith(prefix))
    return TenantView(
        name=config.name,
        users=list(config.users),
        clients=list(config.clients),
        quotas=config.quotas,
        usage=usage,
        connections=0 if tenant is None else tenant.connections,
    )


@AREA.twin("/admin/tenants", "goqueue_tenants")
@AREA.get("/tenants", Scope.ADMIN)
async def list_tenants(call: Asked) -> TenantList:
    """Tenants, their quotas, and what they use. They are configured: change the file, and have it read again."""
    call.caller.administer("list")
    return TenantList(tenants=[_tenant(call, each) for each in call.service.broker.config.queues.tenants])


@AREA.twin("/admin/tenants/{tenant}", "goqueue_tenant")
@AREA.get("/tenants/{tenant}", Scope.ADMIN, errors=(_Q.UNKNOWN_MEMBER,))
async def get_tenant(call: Asked, tenant: Name) -> TenantView:
    """One tenant."""
    call.caller.administer("list")
    for each in call.service.broker.config.queues.tenants:
        if each.name == tenant:
            return _tenant(call, each)
    raise QueueError(_Q.UNKNOWN_MEMBER, f"there is no tenant {tenant[:80]!r}")


# -- administration of GoQueue's topics, and the configuration -------------------------------------------------------


class ScaleRequest(msgspec.Struct, frozen=True, kw_only=True):
    count: Annotated[int, msgspec.Meta(ge=1)]


class Scaled(msgspec.Struct, frozen=True, kw_only=True):
    topic_name: str
    old_partition_count: int
    new_partition_count: int
    partitions_added: int
    success: bool = True


@AREA.post("/admin/topics/{topic}/partitions", Scope.ADMIN, errors=(_Q.UNKNOWN_QUEUE, _Q.LIMIT, _Q.STORAGE_FAILED))
async def scale_topic(call: Asked, topic: Name, wanted: Body[ScaleRequest]) -> Scaled:
    """Let a topic in use have so many partitions in all."""
    name = call.caller.administered(queue_in(call, topic), "partitions")
    before = call.service.engine.queue_config(name)[0].partitions
    await call.service.finished(lambda engine, now, confirm: engine.add_partitions(name, wanted.count, now, confirm))
    after = call.service.engine.queue_config(name)[0].partitions
    return Scaled(
        topic_name=topic, old_partition_count=before, new_partition_count=after, partitions_added=after - before
    )


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    needs_restart: list[str]
    """Sections that differ as well, and hold from the next start on."""


@AREA.post("/reload", Scope.ADMIN, errors=(_Q.BAD_OPTION, Code.UNSUPPORTED))
async def reload(call: Asked) -> Reloaded:
    """Read users, tokens, access rules and tenants again; answered once all there is was held against them."""
    call.caller.administer("reload")
    again = call.service.turn()[0].read_again
    if again is None:
        raise RequestError(Code.UNSUPPORTED, "this broker was not started from a configuration file")
    reviewed = asyncio.Event()
    try:
        ignored = again(reviewed.set)
    except (ConfigError, OSError) as error:
        raise QueueError(_Q.BAD_OPTION, f"the configuration is not read again: {error}") from error
    await reviewed.wait()
    return Reloaded(needs_restart=ignored)
