"""Reference brokers with one fault that shows all over the suites, whatever a case is about.

Unlike the frames of ``meddling_proxy``, what they do to messages keeps to all other rules: identifiers are free, windows
and orders are kept. Chance is that of ``rng``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from conformance.mutants import Patch
from conformance.mutants.output_order import frames_of
from conformance.wire import MalformedPacketError, Publish, decode_packet, encode
from msgspec.structs import replace
from reference_broker.core.broker_state import BrokerState
from reference_broker.core.retained import RetainedStore
from reference_broker.core.session import Session
from reference_broker.mqtt.connection import MqttConnection

Fault = Callable[[Patch, random.Random], None]
_PUBLISH, _PINGRESP = 3, 13
_RETAIN, _DUP, _QOS = 0x01, 0x08, 0x06
_SOME = 0.3
_FEW = 0.05
_ENDED = 0.02


def _output(patch: Patch, change: Callable[[bytes, int], bytes]) -> None:
    """Change every frame, given the version of its connection, on its way out."""

    def make(original: Callable[[MqttConnection], bytes]) -> Callable[[MqttConnection], bytes]:
        return lambda self: b"".join(change(frame, self.version) for frame in frames_of(original(self)))

    patch.wrap(MqttConnection, "take_output", make)


def _deliveries(patch: Patch, change: Callable[[Publish], Publish | None]) -> None:
    """Change messages on their way out; None: they are lost."""

    def changed(frame: bytes, version: int) -> bytes:
        if frame[0] >> 4 != _PUBLISH:
            return frame
        try:
            packet = decode_packet(frame, version)
        except MalformedPacketError:
            return frame
        assert isinstance(packet, Publish)
        other = change(packet)
        return b"" if other is None else encode(other, version)

    _output(patch, changed)


def _flag(patch: Patch, bits: int, *, is_set: bool, qos_only: bool = False) -> None:
    def changed(frame: bytes, _version: int) -> bytes:
        if frame[0] >> 4 != _PUBLISH or (qos_only and not frame[0] & _QOS):
            return frame
        return bytes((frame[0] | bits if is_set else frame[0] & ~bits,)) + frame[1:]

    _output(patch, changed)


def twice(patch: Patch, _rng: random.Random) -> None:
    """Each message is delivered twice, at QoS 1 and 2 under two identifiers."""

    def make(deliver: Callable[..., None]) -> Callable[..., None]:
        def both(self: Session, message: Any, *arguments: Any) -> None:
            deliver(self, message, *arguments)
            deliver(self, message, *arguments)

        return both

    patch.wrap(Session, "deliver", make)
    patch.replace(Session, "can_send_run", lambda *_arguments: 0)


def wrong_topic(patch: Patch, rng: random.Random) -> None:
    """Some messages come on a topic that they were not published to."""
    _deliveries(
        patch, lambda packet: replace(packet, topic=f"{packet.topic}-") if rng.random() < _SOME and packet.topic else packet
    )


def to_others(patch: Patch, rng: random.Random) -> None:
    """Messages are delivered to a client that never asked for them, too, at QoS 0."""

    def make(deliver: Callable[..., None]) -> Callable[..., None]:
        def both(self: Session, message: Any, *arguments: Any) -> None:
            deliver(self, message, *arguments)
            broker = self.connection.broker if self.connection is not None else None
            others = [] if broker is None else [each for each in broker.sessions.values() if each.connection and each is not self]
            if others:
                rng.choice(others).connection.send_publish(0, message, 0, False, False, ())

        return both

    patch.wrap(Session, "deliver", make)
    patch.replace(Session, "can_send_run", lambda *_arguments: 0)


def loses_qos_0(patch: Patch, rng: random.Random) -> None:
    """One message of twenty at QoS 0 is lost."""
    _deliveries(patch, lambda packet: None if packet.qos == 0 and rng.random() < _FEW else packet)


def stale_retained(patch: Patch, _rng: random.Random) -> None:
    """An empty retained message removes none."""
    patch.replace(RetainedStore, "_remove", lambda _self, _topic: None)


def pinged_twice(patch: Patch, _rng: random.Random) -> None:
    """PINGREQ has two answers."""
    _output(patch, lambda frame, _version: frame * 2 if frame[0] >> 4 == _PINGRESP else frame)


def ends_some(patch: Patch, rng: random.Random) -> None:
    """One connection of fifty ends, without a word, at one of its first packets."""
    left: WeakKeyDictionary[MqttConnection, int] = WeakKeyDictionary()

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def receive(self: MqttConnection, data: bytes, now: float) -> None:
            if self not in left:
                left[self] = rng.randint(1, 4) if rng.random() < _ENDED else -1
            left[self] -= 1
            if left[self] == 0:
                self.close_now(now)
            else:
                original(self, data, now)

        return receive

    patch.wrap(MqttConnection, "receive", make)


FAULTS: dict[str, Fault] = {
    "every message twice": twice,
    "some messages on a wrong topic": wrong_topic,
    "messages to other clients, too": to_others,
    "loses 5 % of QoS 0": loses_qos_0,
    "retained messages stay for ever": stale_retained,
    "PINGREQ answered twice": pinged_twice,
    "2 % of connections end": ends_some,
    "RETAIN set on all": lambda patch, _rng: _flag(patch, _RETAIN, is_set=True),
    "RETAIN clear on all": lambda patch, _rng: _flag(patch, _RETAIN, is_set=False),
    "DUP set on all": lambda patch, _rng: _flag(patch, _DUP, is_set=True, qos_only=True),
    "DUP clear on all": lambda patch, _rng: _flag(patch, _DUP, is_set=False),
}


@contextmanager
def planted(name: str, seed: int) -> Iterator[None]:
    """Brokers of this process have the fault within the block."""
    with ExitStack() as stack:
        FAULTS[name](Patch(stack), random.Random(f"{seed} {name}"))
        yield
