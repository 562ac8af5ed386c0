"""A replicated cluster in SimPy: nodes of stations, partitions with leaders, followers that fetch, a node that dies.

Granularity is the produce request, which carries as many messages as a producer collected for a partition. Offsets
count messages. A request passes client network, NIC, processor and log of the leader; followers fetch what is new of
all partitions that a node leads, in one answer, and tell with the next fetch what they have (durably, if every write is
synced). What is committed depends on the acknowledgement policy. A node that dies is noticed by the controller after a
time; it is taken out of the in-sync replicas, and its partitions get leaders one by one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from msgspec import Meta
from simpy import Environment, Event

from assay.sim.kernel import substream
from assay.sim.models.model import ModelError, Part
from assay.sim.models.stations import GroupCommit, Station, Steps

MAX_REQUESTS = 400_000
MAX_BATCH = 1_000_000
_SAMPLE_S = 0.01
_Job = tuple[float, Callable[[], object]]


class Acks(StrEnum):
    """When a producer is told that its messages are safe."""

    NONE = "none"
    """At once: it does not ask."""
    LEADER = "leader"
    """When the leader has them."""
    ALL = "all"
    """When all in-sync replicas have them, and these are min-ISR at least."""
    QUORUM = "quorum"
    """When a majority of the replicas has them, as in Raft."""


class ClusterParameters(Part, frozen=True, kw_only=True):
    """A cluster, its load, and the node that dies."""

    nodes: Annotated[int, Meta(ge=1, le=64)]
    replication_factor: Annotated[int, Meta(ge=1, le=9)]
    min_isr: Annotated[int, Meta(ge=1, le=9)]
    acks: Acks
    partitions: Annotated[int, Meta(ge=1, le=1_000)]
    messages_per_s: Annotated[float, Meta(gt=0, le=1e8)]
    message_bytes: Annotated[int, Meta(ge=1, le=10_000_000)]
    producers: Annotated[int, Meta(ge=1, le=10_000)]
    linger_s: Annotated[float, Meta(ge=0, le=10)]
    """A producer collects the messages of a partition for so long; the wait counts as latency."""
    consumer_groups: Annotated[int, Meta(ge=0, le=100)]
    """Each reads every message from the leader once it is committed."""
    fsync_s: Annotated[float, Meta(ge=0, le=10)]
    """Of each write, those that wait together; 0 = the operating system writes some time later."""
    disk_bytes_per_s: Annotated[float, Meta(gt=0)]
    nic_bytes_per_s: Annotated[float, Meta(gt=0)]
    """In each direction."""
    cores: Annotated[int, Meta(ge=1, le=256)]
    request_cpu_s: Annotated[float, Meta(ge=0, le=1)]
    message_cpu_s: Annotated[float, Meta(ge=0, le=1)]
    client_latency_s: Annotated[float, Meta(ge=0, le=10)]
    """One way."""
    node_latency_s: Annotated[float, Meta(ge=0, le=10)]
    """One way, between nodes of a rack."""
    racks: Annotated[int, Meta(ge=1, le=64)]
    rack_latency_s: Annotated[float, Meta(ge=0, le=10)]
    """One way, between racks, in addition."""
    max_fetch_bytes: Annotated[int, Meta(ge=1)]
    """Of all partitions together, in one answer to a follower."""
    lag_time_max_s: Annotated[float, Meta(gt=0, le=3_600)]
    """A follower that has not caught up for so long is no in-sync replica any more."""
    detection_s: tuple[Annotated[float, Meta(ge=0, le=3_600)], Annotated[float, Meta(ge=0, le=3_600)]]
    """Until the controller knows that a node died: uniform between these."""
    election_s: Annotated[float, Meta(ge=0, le=60)]
    """Of one partition; one after the other."""
    retry_s: Annotated[float, Meta(gt=0, le=60)]
    """A client that was refused or cut off asks again after this time."""
    warm_up_s: Annotated[float, Meta(ge=0, le=60)]
    kill_at_s: Annotated[float, Meta(ge=0, le=3_600)]
    """0 = no node dies."""
    restart_at_s: Annotated[float, Meta(ge=0, le=3_600)]
    """It comes back; 0 = never."""
    settle_s: Annotated[float, Meta(ge=0, le=3_600)]
    """After the last partition is writable again, until the cluster counts as settled."""
    horizon_s: Annotated[float, Meta(gt=0, le=3_600)]

    @property
    def batch_messages(self) -> float:
        """Messages of a request on average."""
        return max(1.0, self.messages_per_s / (self.producers * self.partitions) * self.linger_s)

    @property
    def requests_per_s(self) -> float:
        return self.messages_per_s / self.batch_messages

    def problems(self) -> list[str]:
        """What contradicts itself."""
        found = []
        if self.replication_factor > self.nodes:
            found.append(f"replication_factor {self.replication_factor} needs as many nodes, not {self.nodes}")
        if self.min_isr > self.replication_factor:
            found.append("min_isr is above replication_factor: nothing could be acknowledged")
        if self.detection_s[0] > self.detection_s[1]:
            found.append("detection_s must ascend")
        if self.restart_at_s and self.restart_at_s <= self.kill_at_s:
            found.append("restart_at_s must come after kill_at_s")
        led = -(-self.partitions // self.nodes)
        over_s = self.kill_at_s + self.detection_s[1] + led * self.election_s + self.settle_s
        if self.kill_at_s and self.horizon_s <= over_s:
            found.append(f"horizon_s must be above {over_s:g}: until the death, its consequences and settle_s are over")
        if self.horizon_s <= self.warm_up_s:
            found.append("horizon_s must be above warm_up_s")
        if self.requests_per_s * self.horizon_s > MAX_REQUESTS:
            most = f"{self.requests_per_s * self.horizon_s:,.0f} requests; at most {MAX_REQUESTS:,} are simulated"
            found.append(f"{most}: shorten horizon_s, raise linger_s, or use fewer producers or partitions")
        return found


class Request:
    """Messages of one partition that are sent together."""

    __slots__ = ("completed_s", "count", "delivered_s", "due_s", "ended", "partition")

    def __init__(self, partition: Partition, count: int, due_s: float) -> None:
        self.partition, self.count, self.due_s = partition, count, due_s
        self.completed_s = math.nan
        self.delivered_s = math.nan
        self.ended = False
        """Acknowledged or lost."""


class Node:
    """One life of a node: a new one is made when it comes back."""

    def __init__(self, env: Environment, parameters: ClusterParameters, index: int) -> None:
        self.index = index
        self.rack = index % parameters.racks
        self.alive = True
        self.outstanding: dict[Request, None] = {}
        self.appended = env.event()
        self.nic_in: Station[_Job] = Station(env, _length, self._end)
        self.nic_out: Station[_Job] = Station(env, _length, self._end)
        self.cpu: Station[_Job] = Station(env, _length, self._end, parameters.cores)
        fsync_s, disk = parameters.fsync_s, parameters.disk_bytes_per_s

        def sync_s(jobs: list[_Job]) -> float:
            return fsync_s + sum(job[0] for job in jobs) / disk

        self.disk: GroupCommit[_Job] = GroupCommit(env, sync_s, self._end, MAX_BATCH)
        self._env = env

    def _end(self, job: _Job) -> None:
        if self.alive:
            job[1]()

    def use(self, station: Station[_Job] | GroupCommit[_Job], amount: float) -> Event:
        """For processes: happens when the station is through with it; never, if the node dies."""
        event = self._env.event()
        station.put((amount, event.succeed))
        return event

    def tell_followers(self) -> None:
        """There is something to fetch."""
        event, self.appended = self.appended, self._env.event()
        event.succeed()


def _one_is_gone(*nodes: Node) -> bool:
    return not all(node.alive for node in nodes)


def _length(job: _Job) -> float:
    return job[0]


class Partition:
    """Offsets of every replica: what it wrote, what is durable there, and what the leader knows of it."""

    def __init__(self, index: int, replicas: list[int]) -> None:
        self.index = index
        self.replicas = replicas
        self.leader: int = replicas[0]
        self.online = True
        self.isr = dict.fromkeys(replicas)
        self.end = dict.fromkeys(replicas, 0)
        self.durable = dict.fromkeys(replicas, 0)
        self.known = dict.fromkeys(replicas, 0)
        self.end_at_fetch = dict.fromkeys(replicas, 0)
        self.fetched_s = dict.fromkeys(replicas, 0.0)
        self.caught_up_s = dict.fromkeys(replicas, 0.0)
        self.acknowledged = 0
        """Highest offset that a producer was told to be safe."""
        self.pending: deque[tuple[int, Request]] = deque()
        """Requests that wait to be committed, with their last offset."""


class ClusterWorld:
    """One run. ``requests`` has every request with its fate; ``lost`` messages were acknowledged and are gone."""

    def __init__(self, parameters: ClusterParameters, seed: int) -> None:
        if problems := parameters.problems():
            raise ModelError("; ".join(problems))
        self.parameters = parameters
        self.env = Environment()
        self.requests: list[Request] = []
        self.lost = 0
        self.recovered_s = math.nan
        self.times_s: list[float] = []
        self.lag_messages: list[float] = []
        """Of the slowest in-sync follower, mean over partitions, at ``times_s``."""
        self.isr_sizes: list[float] = []
        self.writable: list[float] = []
        """Share of the partitions that can take messages, at ``times_s``."""
        count = parameters.nodes
        self.nodes = [Node(self.env, parameters, index) for index in range(count)]
        self.partitions = [
            Partition(index, [(index + step) % count for step in range(parameters.replication_factor)])
            for index in range(parameters.partitions)
        ]
        self._arrivals = substream(seed, "models/cluster/arrivals")
        self._faults = substream(seed, "models/cluster/faults")

    def run(self) -> None:
        """Play the whole time."""
        parameters, env = self.parameters, self.env
        env.process(self._produce())
        env.process(self._watch())
        env.process(self._shrink())
        for follower in self.nodes:
            for leader in self.nodes:
                if follower is not leader and parameters.replication_factor > 1:
                    env.process(self._fetch(follower, leader))
        if parameters.kill_at_s:
            env.process(self._fail())
        env.run(until=parameters.horizon_s)

    def _produce(self) -> Steps:
        parameters, chance = self.parameters, self._arrivals
        rate = parameters.requests_per_s
        whole, part = divmod(parameters.batch_messages, 1)
        while True:
            yield self.env.timeout(chance.expovariate(rate))
            partition = self.partitions[int(chance.random() * len(self.partitions))]
            count = int(whole) + (chance.random() < part)
            request = Request(partition, count, self.env.now - chance.random() * parameters.linger_s)
            self.requests.append(request)
            self.send(request)

    def _later(self, delay_s: float, action: Callable[[], object]) -> None:
        def act(_: Event) -> None:
            action()

        self.env.timeout(delay_s).callbacks.append(act)

    def can_take(self, partition: Partition) -> bool:
        """Whether its producers are served: there is a leader, and as many in-sync replicas as are asked for."""
        if not (partition.online and self.nodes[partition.leader].alive):
            return False
        if self.parameters.acks is Acks.ALL:
            return len(partition.isr) >= self.parameters.min_isr
        if self.parameters.acks is Acks.QUORUM:
            return 2 * sum(self.nodes[each].alive for each in partition.replicas) > len(partition.replicas)
        return True

    def send(self, request: Request) -> None:
        """On its way from the client, or again a little later if it is known that nobody can take it."""
        parameters, partition = self.parameters, request.partition
        node = self.nodes[partition.leader]
        if parameters.acks is Acks.NONE:
            request.completed_s = self.env.now
            if not self.can_take(partition):
                self.lost += request.count
                request.ended = True
                return
        elif not self.can_take(partition):
            self._later(parameters.retry_s, lambda: self.send(request))
            return
        node.outstanding[request] = None
        size = request.count * parameters.message_bytes
        work_s = parameters.request_cpu_s + request.count * parameters.message_cpu_s

        def arrived() -> None:
            if node.alive:
                node.nic_in.put((size / parameters.nic_bytes_per_s, handled))

        def handled() -> None:
            node.cpu.put((work_s, lambda: self._append(node, request)))

        self._later(parameters.client_latency_s, arrived)

    def _append(self, node: Node, request: Request) -> None:
        partition, index = request.partition, node.index
        if not self.can_take(partition) or self.nodes[partition.leader] is not node:
            del node.outstanding[request]
            self._later(self.parameters.retry_s, lambda: self.send(request))
            return
        end = partition.end[index] = partition.end[index] + request.count
        partition.pending.append((end, request))
        node.tell_followers()

        def durable() -> None:
            if partition.durable[index] < end <= partition.end[index]:
                partition.durable[index] = end
            self._advance(partition)

        if self.parameters.fsync_s:
            node.disk.put((request.count * self.parameters.message_bytes, durable))
        else:
            durable()

    def committed(self, partition: Partition) -> int:
        """The offset up to which messages are acknowledged."""
        own = partition.durable[partition.leader]
        if self.parameters.acks is Acks.ALL:
            if len(partition.isr) < self.parameters.min_isr:
                return 0
            return min(own, *(partition.known[each] for each in partition.isr if each != partition.leader), own)
        if self.parameters.acks is Acks.QUORUM:
            known = [own, *(partition.known[each] for each in partition.replicas if each != partition.leader)]
            return sorted(known, reverse=True)[len(known) // 2]
        return own

    def _advance(self, partition: Partition) -> None:
        pending, upto = partition.pending, 0
        if pending:
            upto = self.committed(partition)
        parameters, node = self.parameters, self.nodes[partition.leader]
        while pending and pending[0][0] <= upto:
            end, request = pending.popleft()
            partition.acknowledged = max(partition.acknowledged, end)
            request.ended = True
            node.outstanding.pop(request, None)
            if parameters.acks is not Acks.NONE:
                request.completed_s = self.env.now + parameters.client_latency_s
            if parameters.consumer_groups:
                self._deliver(node, request)

    def _deliver(self, node: Node, request: Request) -> None:
        parameters = self.parameters
        size = request.count * parameters.message_bytes * parameters.consumer_groups

        def sent() -> None:
            request.delivered_s = self.env.now + parameters.client_latency_s

        node.nic_out.put((size / parameters.nic_bytes_per_s, sent))

    def latency_s(self, first: Node, second: Node) -> float:
        """One way between two nodes."""
        far = self.parameters.rack_latency_s if first.rack != second.rack else 0.0
        return self.parameters.node_latency_s + far

    def _fetch(self, follower: Node, leader: Node) -> Steps:
        env = self.env
        me, other = follower.index, leader.index
        way_s = self.latency_s(follower, leader)
        shared = [each for each in self.partitions if me in each.replicas and other in each.replicas]
        if not shared:
            return
        while True:
            led = [each for each in shared if each.leader == other and each.online]
            have = [each.durable[me] for each in led]
            yield env.timeout(way_s)
            if _one_is_gone(leader, follower):
                return
            for partition, offset in zip(led, have, strict=True):
                if partition.leader == other:
                    self._fetched(partition, me, offset)
            # The request waits at the leader until there is something, or the leader leads other partitions.
            while not (taken := self._news(led, me, other)):
                yield leader.appended
                if _one_is_gone(leader, follower):
                    return
                if led != [each for each in shared if each.leader == other and each.online]:
                    break
            else:
                yield from self._answer(follower, leader, way_s, taken)

    def _news(self, led: list[Partition], me: int, other: int) -> list[tuple[Partition, int]]:
        """What a follower lacks, by partition, as far as one answer holds it."""
        room = max(1, self.parameters.max_fetch_bytes // self.parameters.message_bytes)
        taken: list[tuple[Partition, int]] = []
        for partition in led:
            news = min(room, partition.end[other] - partition.end[me]) if partition.leader == other else 0
            if news > 0:
                taken.append((partition, partition.end[me] + news))
                room -= news
        return taken

    def _answer(self, follower: Node, leader: Node, way_s: float, taken: list[tuple[Partition, int]]) -> Steps:
        """From the leader's NIC to the follower's log."""
        parameters, me, other = self.parameters, follower.index, leader.index
        size = parameters.message_bytes
        count = sum(end - partition.end[me] for partition, end in taken)
        yield leader.use(leader.nic_out, count * size / parameters.nic_bytes_per_s)
        yield self.env.timeout(way_s)
        yield follower.use(follower.nic_in, count * size / parameters.nic_bytes_per_s)
        yield follower.use(follower.cpu, parameters.request_cpu_s + count * parameters.message_cpu_s)
        current = [(partition, end) for partition, end in taken if partition.leader == other]
        for partition, end in current:
            partition.end[me] = end
        if parameters.fsync_s:
            yield follower.use(follower.disk, count * size)
        for partition, end in current:
            if partition.leader == other:
                partition.durable[me] = end

    def _fetched(self, partition: Partition, follower: int, offset: int) -> None:
        now = self.env.now
        if offset >= partition.end_at_fetch[follower]:
            partition.caught_up_s[follower] = partition.fetched_s[follower]
        if offset >= partition.end[partition.leader]:
            partition.caught_up_s[follower] = now
        partition.fetched_s[follower] = now
        partition.end_at_fetch[follower] = partition.end[partition.leader]
        changed = partition.known[follower] != offset
        partition.known[follower] = offset
        if follower not in partition.isr and offset >= self.committed(partition):
            partition.isr[follower] = None
            changed = True
        if changed:
            self._advance(partition)

    def _shrink(self) -> Steps:
        limit_s = self.parameters.lag_time_max_s
        while True:
            yield self.env.timeout(limit_s / 2)
            for partition in self.partitions:
                leader = partition.leader
                for each in [each for each in partition.isr if each != leader]:
                    behind = partition.known[each] < partition.end[leader]
                    if behind and self.env.now - partition.caught_up_s[each] > limit_s and self.nodes[leader].alive:
                        del partition.isr[each]
                self._advance(partition)

    def _fail(self) -> Steps:
        parameters, env = self.parameters, self.env
        yield env.timeout(parameters.kill_at_s)
        victim = self.nodes[0]
        victim.alive = False
        for request in victim.outstanding:
            if parameters.acks is Acks.NONE:
                self.lost += 0 if request.ended else request.count
                request.ended = True
            else:
                self._later(parameters.client_latency_s + parameters.retry_s, partial(self.send, request))
        for partition in self.partitions:
            if partition.leader == 0:
                partition.pending.clear()
        yield env.timeout(self._faults.uniform(*parameters.detection_s))
        for partition in self.partitions:
            partition.isr.pop(0, None)
            if partition.leader != 0:
                self._advance(partition)
        for partition in self.partitions:
            if partition.leader == 0:
                yield env.timeout(parameters.election_s)
                self._elect(partition)
        self.recovered_s = env.now
        if parameters.restart_at_s > env.now:
            yield env.timeout(parameters.restart_at_s - env.now)
            self._restart()

    def _elect(self, partition: Partition) -> None:
        """The in-sync replica that has most, as followers of one leader differ by what is under way."""
        living = [each for each in partition.isr if self.nodes[each].alive]
        if self.parameters.acks is Acks.QUORUM:
            living = [each for each in partition.replicas if self.nodes[each].alive]
        if not living:
            partition.online = False
            return
        leader = partition.leader = max(living, key=lambda each: partition.end[each])
        end = partition.end[leader]
        self.lost += max(0, partition.acknowledged - end)
        partition.acknowledged = min(partition.acknowledged, end)
        for each in partition.replicas:
            partition.end[each] = min(partition.end[each], end)
            partition.durable[each] = min(partition.durable[each], end)
            partition.known[each] = 0
            partition.end_at_fetch[each] = end
            partition.caught_up_s[each] = self.env.now
        partition.durable[leader] = end
        for node in self.nodes:
            if node.alive:
                node.tell_followers()

    def _restart(self) -> None:
        node = self.nodes[0] = Node(self.env, self.parameters, 0)
        for partition in self.partitions:
            if 0 in partition.end:
                partition.end[0] = partition.durable[0]
        for other in self.nodes[1:]:
            self.env.process(self._fetch(node, other))
            self.env.process(self._fetch(other, node))

    def _watch(self) -> Steps:
        count = len(self.partitions)
        while True:
            yield self.env.timeout(_SAMPLE_S)
            self.times_s.append(self.env.now)
            self.lag_messages.append(sum(map(_lag, self.partitions)) / count)
            self.isr_sizes.append(sum(len(each.isr) for each in self.partitions) / count)
            self.writable.append(sum(map(self.can_take, self.partitions)) / count)

    def utilisations(self) -> dict[str, float]:
        """Share of the time that the busiest station of each kind was busy."""
        lasted_s = self.env.now
        living = [node for node in self.nodes if node.alive]
        kinds: dict[str, Callable[[Node], Any]] = {
            "nic in": lambda node: node.nic_in.busy_s,
            "nic out": lambda node: node.nic_out.busy_s,
            "processor": lambda node: node.cpu.busy_s / self.parameters.cores,
            "disk": lambda node: node.disk.busy_s,
        }
        return {name: max(map(busy_s, living)) / lasted_s for name, busy_s in kinds.items()}


def _lag(partition: Partition) -> float:
    ends = [partition.end[each] for each in partition.isr if each != partition.leader]
    return max((partition.end[partition.leader] - end for end in ends), default=0)
