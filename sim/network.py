"""A simulated network: ordered byte streams between clients and one node, with the faults of a scenario.

As on TCP, a stream never loses, repeats or reorders bytes: a lost segment arrives a retransmission timeout later and
holds up what follows, a partition holds everything until it heals, and only a reset ends the stream with bytes lost.
Chunks may arrive cut in two at any place.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import msgspec

from assay.faults.fault_kinds import Direction
from assay.sim.kernel import Kernel

SEGMENT_BYTES: Final = 1_460
RETRANSMIT_S: Final = 0.2
"""First retransmission timeout; it doubles with each loss of the same segment."""
MAX_RETRANSMITS: Final = 6


class NetworkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A healthy link: loopback or a local network."""

    latency_s: tuple[float, float] = (0.00005, 0.0004)
    """One way, drawn uniformly per chunk."""
    cut_rate: float = 0.05
    """Share of chunks that arrive in two pieces."""
    refuse_s: float = 0.0005
    """Until a dial to a node that is down is refused."""


class Impairment(msgspec.Struct, frozen=True, kw_only=True):
    """What one active fault does to the links of some clients."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    loss_rate: float = 0.0
    bytes_per_s: float = 0.0
    """0 = no limit."""
    partitioned: bool = False
    clogged: bool = False
    """As partitioned, and new connections get through; what piled up comes all at once."""
    direction: Direction = Direction.BOTH

    @property
    def holds(self) -> bool:
        return self.partitioned or self.clogged


_Item = bytes | Callable[[], None]
"""What travels through a stream: bytes, or its end."""


class Endpoint(Protocol):
    """One end of a connection."""

    def received(self, data: bytes) -> None:
        """Bytes arrived."""

    def disconnected(self) -> None:
        """The other end closed, or the connection was reset."""


Way = tuple[str, Direction]
"""The connections of a client, by its name, one way."""


class Conditions:
    """The impairments that are active now, by the clients they hit and the way."""

    def __init__(self) -> None:
        self._active: dict[int, tuple[frozenset[str], Impairment]] = {}
        self._number = 0
        self._healed: list[Callable[[], None]] = []
        self._by_way: dict[Way, list[Impairment]] = {}

    def of(self, way: Way) -> list[Impairment]:
        """What is active there; the list stays the same object."""
        if way not in self._by_way:
            self._by_way[way] = self._now(way)
        return self._by_way[way]

    def _now(self, way: Way) -> list[Impairment]:
        client, direction = way
        return [
            impairment
            for clients, impairment in self._active.values()
            if client in clients and impairment.direction in (direction, Direction.BOTH)
        ]

    def add(self, clients: Iterable[str], impairment: Impairment) -> int:
        """Begin a fault; returns its handle."""
        self._number += 1
        self._active[self._number] = (frozenset(clients), impairment)
        self._changed()
        return self._number

    def remove(self, handle: int) -> None:
        """End a fault. Streams that a partition held are told."""
        del self._active[handle]
        self._changed()
        waiting, self._healed = self._healed, []
        for callback in waiting:
            callback()

    def _changed(self) -> None:
        for way, active in self._by_way.items():
            active[:] = self._now(way)

    def partitioned(self, client: str) -> bool:
        """Whether that client gets no new connection: its handshake goes both ways."""
        return any(client in clients and impairment.partitioned for clients, impairment in self._active.values())

    def when_changed(self, callback: Callable[[], None]) -> None:
        """Call once, when the next fault ends."""
        self._healed.append(callback)


class Stream:
    """One direction of a connection."""

    def __init__(self, kernel: Kernel, conditions: Conditions, profile: NetworkProfile, way: Way, name: str) -> None:
        self.name = name
        self.target: Endpoint | None = None
        self.in_flight_bytes = 0
        """Sent and not yet arrived."""
        self._kernel = kernel
        self._conditions = conditions
        self._profile = profile
        self._impairments = conditions.of(way)
        self._rng = kernel.stream(f"net/{name}")
        self._free_at = 0.0
        self._last_arrival = 0.0
        self._under_way: deque[_Item] = deque()
        """What was launched, in order: each arrival takes the first, so that ties cannot reorder."""
        self._held: deque[_Item] = deque()
        """What a partition holds; only what arrived before anything under way."""
        self._stuck = False
        self._must_retransmit = False
        """A partition held something back: the sender notices its end a little later."""
        self._ended = False
        self._waiting = False
        self.on_arrival: Callable[[], None] | None = None
        """Called after bytes arrived: for a sender that waits for it."""

    def send(self, data: bytes) -> None:
        """Put bytes on their way. Nothing arrives after :meth:`cut`."""
        if self._ended or not data:
            return
        self.in_flight_bytes += len(data)
        rate = self._profile.cut_rate
        if rate and len(data) > 1 and self._rng.random() < rate:
            at = self._rng.randrange(1, len(data))
            self._launch(data[:at], at)
            self._launch(data[at:], len(data) - at)
        else:
            self._launch(data, len(data))

    def _launch(self, item: _Item, size: int) -> None:
        self._under_way.append(item)
        self._kernel.at(self._arrival(size), self._arrive)

    def _arrival(self, size: int) -> float:
        now = self._kernel.now
        rng = self._rng
        low, high = self._profile.latency_s
        latency = low + (high - low) * rng.random()
        departure = now
        for impairment in self._impairments:
            if impairment.latency_s:
                latency += impairment.latency_s + rng.uniform(-impairment.jitter_s, impairment.jitter_s)
            if impairment.bytes_per_s:
                departure = max(departure, self._free_at) + size / impairment.bytes_per_s
                self._free_at = departure
            if impairment.loss_rate:
                latency += self._retransmission_s(impairment.loss_rate, size)
        arrival = max(departure + latency, self._last_arrival)
        self._last_arrival = arrival
        return arrival

    def _retransmission_s(self, rate: float, size: int) -> float:
        """Delay of the unluckiest segment."""
        worst = 0.0
        for _ in range(-(-size // SEGMENT_BYTES)):
            delay, timeout = 0.0, RETRANSMIT_S
            for _ in range(MAX_RETRANSMITS):
                if self._rng.random() >= rate:
                    break
                delay += timeout
                timeout *= 2
            worst = max(worst, delay)
        return worst

    def _arrive(self) -> None:
        if self._ended:
            return
        item = self._under_way.popleft()
        if self._held or self._is_blocked():
            self._must_retransmit |= any(each.partitioned for each in self._impairments)
            self._held.append(item)
            self._await_heal()
        else:
            self._deliver(item)

    def _is_blocked(self) -> bool:
        return self._stuck or (bool(self._impairments) and any(each.holds for each in self._impairments))

    def stick(self) -> None:
        """Hold what arrives from now on, until :meth:`unstick`."""
        self._stuck = True

    def unstick(self) -> None:
        """What is held arrives at once."""
        self._stuck = False
        while self._held and not self._is_blocked():
            self._deliver(self._held.popleft())

    def _deliver(self, item: _Item) -> None:
        if not isinstance(item, bytes):
            item()
        elif self.target is not None:
            self.in_flight_bytes -= len(item)
            self._kernel.trace(self.name, item)
            self.target.received(item)
            if self.on_arrival is not None:
                self.on_arrival()

    def _await_heal(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._conditions.when_changed(self._healed)

    def _healed(self) -> None:
        self._waiting = False
        if self._ended or not self._held:
            return
        if self._is_blocked():
            self._await_heal()
            return
        if not self._must_retransmit:
            self.unstick()
            return
        self._must_retransmit = False
        held, self._held = self._held, deque()
        # The sender notices the healing with its next retransmission. What was sent meanwhile has its arrivals planned
        # already; they take the held items first.
        self._last_arrival = max(self._last_arrival, self._kernel.now + self._rng.uniform(0, RETRANSMIT_S))
        self._under_way.extendleft(reversed(held))
        for item in held:
            self._kernel.at(self._arrival(len(item) if isinstance(item, bytes) else 0), self._arrive)

    def finish(self, action: Callable[[], None]) -> None:
        """Call ``action`` once everything sent so far has arrived, or never if the stream is cut before."""
        if not self._ended:
            self._launch(action, 0)

    def cut(self) -> None:
        """Drop what is under way; nothing arrives any more."""
        self._ended = True
        self._held.clear()
        self._under_way.clear()
        self.in_flight_bytes = 0


class Link:
    """A connection between a client and the node: two streams, and how they end."""

    def __init__(self, kernel: Kernel, conditions: Conditions, profile: NetworkProfile, client: str, name: str) -> None:
        self.name = name
        self.to_node = Stream(kernel, conditions, profile, (client, Direction.TO_BROKER), f"{name}>")
        self.to_client = Stream(kernel, conditions, profile, (client, Direction.TO_CLIENTS), f"{name}<")
        self._kernel = kernel
        self._client_told = False
        self._node_told = False

    @property
    def open(self) -> bool:
        return not (self._client_told and self._node_told)

    def close_from_client(self) -> None:
        """The client closed in good order: the node sees all its bytes, then the end."""
        self._client_told = True
        self.to_client.cut()
        self.to_node.finish(self._tell_node)

    def close_from_node(self) -> None:
        """The node closed in good order: the client sees all its bytes, then the end."""
        self._node_told = True
        self.to_node.cut()
        self.to_client.finish(self._tell_client)

    def leave(self) -> None:
        """The client has given it up and says nothing: the node goes on with what is under way, and with nobody."""
        self._client_told = True
        self.to_client.cut()

    def reset(self) -> None:
        """Both ends are told at once, and bytes under way are lost."""
        self._kernel.trace(f"reset {self.name}")
        self.to_node.cut()
        self.to_client.cut()
        self._tell_node()
        self._tell_client()

    def node_died(self, *, silently: bool, rng: random.Random) -> None:
        """The node's process is gone.

        After a kill the operating system still sends what it was given, or not: a reset may overtake it. With the whole
        machine gone the client hears nothing; :meth:`node_is_back` answers it.
        """
        self._node_told = True
        self.to_node.cut()
        if silently:
            self.to_client.cut()
        elif rng.random() < 0.5:
            self.to_client.finish(self._tell_client)
        else:
            self.to_client.cut()
            self._kernel.after(rng.uniform(0, 0.001), self._tell_client)

    def node_is_back(self, delay_s: float) -> None:
        """The restarted machine knows nothing of this connection and resets it at the client's next retransmission."""
        self._kernel.after(delay_s, self._tell_client)

    def _tell_node(self) -> None:
        if not self._node_told:
            self._node_told = True
            self.to_node.cut()
            if self.to_node.target is not None:
                self.to_node.target.disconnected()

    def _tell_client(self) -> None:
        if not self._client_told:
            self._client_told = True
            self.to_client.cut()
            if self.to_client.target is not None:
                self.to_client.target.disconnected()
