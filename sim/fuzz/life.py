"""One life: chooses what happens next to a fuzzed broker, until enough packets were sent."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Generic, Protocol, TypeVar

from assay.reference_broker.mqtt.wire.errors import ProtocolError
from assay.sim.fuzz.actions import Action, Advance, Drain, Lose, Open, Probe, Restart, Send, Sync
from assay.sim.fuzz.corpus import Corpus, Feature, Script
from assay.sim.fuzz.driver import DrivenWorld
from assay.sim.fuzz.grammar import Grammar
from assay.sim.fuzz.mutation import chunks, mutate_frames
from assay.sim.fuzz.world import FuzzWorld

SLOTS = 8
_DAMAGE = (0.0, 0.0, 0.02, 0.05, 0.1, 0.3)
"""Share of damaged packets; a client has one of these for its whole life."""
_WAITS_S = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 5.0, 15.0, 100.0, 4_000.0)
_PROBE_EVERY = 40
_MAX_SCRIPT = 120
Damage = Callable[[random.Random, list[bytes], float], list[bytes]]
WorldT = TypeVar("WorldT", bound=DrivenWorld[Any])


class Talk(Protocol):
    """What one client says."""

    def first(self) -> list[bytes]:
        """How it begins."""

    def follow(self, script: Script) -> None:
        """It begins as another did."""

    def frames(self) -> list[bytes]:
        """What it says next."""


class MqttTalk(Grammar):
    """As :class:`Talk`."""

    def follow(self, script: Script) -> None:
        self.version = 5 if b"MQTT\x05" in script[0] else 4


class _Client:
    """The generator's side of one slot."""

    def __init__(
        self, rng: random.Random, corpus: Corpus, talk: Talk, damage: Damage, shares: Sequence[float] = _DAMAGE
    ) -> None:
        self.talk = talk
        self._damaged = damage
        self.damage = rng.choice(shares)
        self.script: list[bytes] = []
        """What it sent so far, before it was cut into chunks."""
        self._rng = rng
        self._plan: deque[bytes] = deque()
        script = corpus.choose(rng) if rng.random() < 0.4 else None
        if script is None:
            self._plan.extend(talk.first())
        else:
            self._plan.extend(script[: rng.randint(1, len(script))])
            self.damage = max(self.damage, 0.05 if shares is _DAMAGE else shares[-2])
            talk.follow(script)
        if rng.random() < 0.02:
            self._plan.clear()
            self._plan.append(rng.randbytes(rng.randint(1, 200)))

    def next_frames(self) -> list[bytes]:
        """What it sends next; packets of a script often come together."""
        frames: list[bytes] = []
        for _ in range(self._rng.choice((1, 1, 1, 1, 2, 3, 6))):
            if self._plan:
                frames.append(self._plan.popleft())
            else:
                frames += self.talk.frames()
        return self._damaged(self._rng, frames, self.damage)


class AnyLife(ABC, Generic[WorldT]):
    """A world and the choices made for it."""

    damage: Damage
    """How frames are damaged."""
    damage_shares: Sequence[float] = _DAMAGE

    def __init__(self, setup_name: str, seed: int, corpus: Corpus) -> None:
        self.setup_name = setup_name
        self.seed = seed
        self.actions: list[Action] = []
        """All that happened, the action that failed included."""
        self.packets = 0
        self._corpus = corpus
        self._rng = random.Random(seed)
        self._clients: dict[int, _Client] = {}

    @abstractmethod
    def _make_world(self) -> WorldT:
        """A broker of its setup."""

    @abstractmethod
    def _make_talk(self, world: WorldT) -> Talk:
        """A new client."""

    @abstractmethod
    def _hear(self, talk: Talk, world: WorldT, number: int) -> Feature:
        """What the broker said to a client, once; and what that looked like, coarsely."""

    @abstractmethod
    def _state_of(self, world: WorldT, number: int) -> Feature:
        """Where a connection stands, coarsely."""

    @abstractmethod
    def _kind_of(self, frame: bytes) -> int:
        """What a frame is."""

    def run(self, packets: int, *, traced: bool = False) -> None:
        """Live for so many packets. Raises :class:`FuzzFailureError`; ``actions`` then ends with the culprit."""
        tracing = self._corpus.tracing() if traced else nullcontext()
        with tracing:
            world = self._make_world()
            steps = 0
            while self.packets < packets:
                steps += 1
                self._do(world, Probe() if steps % _PROBE_EVERY == 0 else self._choose(world), traced)
            self._do(world, Probe(), traced)
            self._do(world, Drain(), traced)

    def _do(self, world: WorldT, action: Action, traced: bool) -> None:
        self.actions.append(action)
        arcs = len(self._corpus.arcs)
        before = self._state_of(world, action.slot) if isinstance(action, Send) else ()
        world.trace_detail = ""
        world.do(action)
        if isinstance(action, Send):
            self.packets += action.packets
            self._learn(world, action, before, new_arcs=traced and len(self._corpus.arcs) > arcs)
        elif isinstance(action, Lose):
            self._clients.pop(action.slot, None)
        elif isinstance(action, Restart):
            self._clients.clear()

    def _learn(self, world: WorldT, action: Send, before: Feature, *, new_arcs: bool) -> None:
        client = self._clients[action.slot]
        answers = self._hear(client.talk, world, action.slot)
        sent = tuple(self._kind_of(frame) for frame in client.script[-action.packets :][:3] if frame)
        after = self._state_of(world, action.slot)
        feature = (self.setup_name, before, sent, answers, after)
        if not self._corpus.note(feature, client.script, self._rng) and new_arcs:
            self._corpus.add(client.script, self._rng)

    # -- choices -----------------------------------------------------------------------------------------------------

    def _choose(self, world: WorldT) -> Action:
        rng = self._rng
        choice = rng.random()
        if choice < 0.02:
            return Advance(seconds=rng.choice(_WAITS_S) * rng.random(), jump=rng.random() < 0.5)
        if choice < 0.03 and self._clients:
            return Lose(slot=rng.choice(sorted(self._clients)))
        if choice < 0.10:
            return Sync(fails=rng.random() < 0.01)
        if choice < (0.15 if world.disk_failed else 0.101) and world.setup.with_disk:
            return Restart(clean=rng.random() < 0.5)
        number = rng.randrange(SLOTS)
        slot = world.slots.get(number)
        if slot is None:
            talk = self._make_talk(world)
            self._clients[number] = _Client(rng, self._corpus, talk, type(self).damage, self.damage_shares)
            return Open(slot=number)
        if slot.connection.closing and rng.random() < 0.9:
            return Lose(slot=number)
        client = self._clients[number]
        frames = client.next_frames()
        if len(client.script) < _MAX_SCRIPT:
            client.script += frames
        return Send(slot=number, chunks=chunks(rng, b"".join(frames)), packets=max(1, len(frames)))


class Life(AnyLife[FuzzWorld]):
    """Of clients of MQTT."""

    damage = staticmethod(mutate_frames)

    def _make_world(self) -> FuzzWorld:
        return FuzzWorld(self.setup_name, self.seed)

    def _make_talk(self, world: FuzzWorld) -> MqttTalk:
        return MqttTalk(self._rng, with_users=bool(world.setup.config.auth.users))

    def _hear(self, talk: Talk, world: FuzzWorld, number: int) -> Feature:
        slot = world.slots[number]
        seen = {(packet.type.value, getattr(packet, "reason_code", 0)) for packet in slot.inbox}
        assert isinstance(talk, MqttTalk)
        talk.receive(slot.inbox)
        slot.inbox.clear()
        return tuple(sorted(seen))[:4]

    def _kind_of(self, frame: bytes) -> int:
        return frame[0] >> 4

    def _state_of(self, world: FuzzWorld, number: int) -> Feature:
        slot = world.slots.get(number)
        if slot is None:
            return ()
        connection = slot.connection
        session = connection.session
        filled: tuple[object, ...] = ()
        if session is not None:
            filled = (
                min(len(session.in_flight), 3),
                min(len(session.queued), 2),
                min(len(session.inbound_qos2), 2),
                bool(session.stalled_consumers),
                session.connection is connection,
            )
        error = connection.error
        broken = error.statement if isinstance(error, ProtocolError) else ""
        reason = int(error.reason) if isinstance(error, ProtocolError) else 0
        return (connection.version, connection.phase.name, broken, reason, *filled)
