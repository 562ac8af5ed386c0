"""Drives the workload's clients in simulated time: dials, moves bytes, rings their timers."""

from __future__ import annotations

from collections.abc import Callable

from assay.faults.workload import WorkloadClient
from assay.sim.kernel import Alarm, Kernel
from assay.sim.network import RETRANSMIT_S, Conditions, Link, NetworkProfile
from assay.sim.node import SimNode

SYN_RETRY_S = 1.0
"""Until a dial that nobody answers is tried again."""


class SimClient:
    """One client of the workload and its current connection."""

    def __init__(
        self,
        client: WorkloadClient,
        node: SimNode,
        kernel: Kernel,
        conditions: Conditions,
        profile: NetworkProfile,
        after_turn: Callable[[], None],
    ) -> None:
        self.client = client
        self._node = node
        self._kernel = kernel
        self._conditions = conditions
        self._profile = profile
        self._after_turn = after_turn
        self._link: Link | None = None
        self._stuck: Link | None = None
        """A connection whose bytes are held up, also when the client has given it up."""
        self._dialling = False
        self._dials = 0
        self._rng = kernel.stream(f"dial/{client.client_id}")
        self._alarm = Alarm(kernel, self._ring)

    @property
    def link(self) -> Link | None:
        """The current connection."""
        return self._link

    def pump(self) -> None:
        """After anything the client did: send, close, dial, set its timer."""
        client, now = self.client, self._kernel.now
        while True:
            link = self._link
            if link is not None:
                link.to_node.send(client.take_output())
                if client.closing:
                    link.close_from_client()
                    self._link = None
                    client.connection_lost(now)
                    continue
            break
        if not self._dialling and self._link is None and client.wants_connection(now):
            self._dialling = True
            self._kernel.after(2 * self._rng.uniform(*self._profile.latency_s), self._dialled)
        self._alarm.set(client.next_deadline())
        self._after_turn()

    def received(self, data: bytes) -> None:
        """Bytes from the node."""
        self.client.receive(data, self._kernel.now)
        self.pump()

    def disconnected(self) -> None:
        """The node closed, or the network reset the connection."""
        self._link = None
        self.client.connection_lost(self._kernel.now)
        self.pump()

    def reset(self) -> None:
        """The network resets the connection."""
        if self._link is not None:
            self._link.reset()

    def stick(self) -> None:
        """What the client sends on its connection is held up from now on."""
        if self._link is not None:
            self._stuck = self._link
            self._link.to_node.stick()

    def leave(self) -> None:
        """The client gives the connection up that is stuck, and connects anew; the old one's bytes come then."""
        link, client = self._stuck, self.client
        if link is None or link is not self._link:
            self._stuck = None
            return
        link.leave()
        self._link = None
        client.connection_lost(self._kernel.now)
        self.pump()

    def _come_unstuck(self) -> None:
        """The new connection's first bytes are about to arrive: so are the old one's, before or after."""
        link, self._stuck = self._stuck, None
        if link is not None:
            self._kernel.after(self._rng.uniform(0, 2 * self._profile.latency_s[1]), link.to_node.unstick)

    def _ring(self) -> None:
        self.client.tick(self._kernel.now)
        self.pump()

    def _dialled(self) -> None:
        """The dial reached the node's machine, or should have."""
        if self._conditions.partitioned(self.client.client_id):
            self._conditions.when_changed(self._redial)
        elif not self._node.powered:
            self._kernel.after(SYN_RETRY_S, self._dialled)
        elif not self._node.up:
            self._kernel.after(self._profile.refuse_s, self._refused)
        else:
            self._connect()

    def _redial(self) -> None:
        self._kernel.after(self._rng.uniform(0, RETRANSMIT_S), self._dialled)

    def _refused(self) -> None:
        self._dialling = False
        self._kernel.trace(f"refused {self.client.client_id}")
        self.client.connection_lost(self._kernel.now)
        self.pump()

    def _connect(self) -> None:
        self._dialling = False
        self._dials += 1
        name = f"{self.client.client_id}/{self._dials}"
        self._kernel.trace(f"connected {name}")
        link = Link(self._kernel, self._conditions, self._profile, self.client.client_id, name)
        link.to_client.target = self
        self._link = link
        self._node.accept(link, self.client.protocol)
        self.client.connection_made(self._kernel.now)
        self.pump()
        self._come_unstuck()
