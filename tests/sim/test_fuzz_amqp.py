"""The fuzzer of AMQP 0.9.1 finds nothing in the broker, and finds what was planted in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from assay.conformance.wire.amqp091 import Assembler, MalformedFrameError
from assay.reference_broker.amqp091 import consuming, publishing
from assay.reference_broker.amqp091.channel import Channel
from assay.reference_broker.amqp091.connection import AmqpConnection
from assay.reference_broker.amqp091.consuming import Consuming
from assay.reference_broker.amqp091.publishing import Publishing
from assay.reference_broker.amqp091.service import Amqp091
from assay.reference_broker.amqp091.topology import VirtualHost
from assay.sim.fuzz import campaign
from assay.sim.fuzz.actions import Open, Probe, Send, load_replay, save_replay
from assay.sim.fuzz.amqp_grammar import AmqpGrammar
from assay.sim.fuzz.amqp_life import AmqpLife
from assay.sim.fuzz.amqp_mutation import mutate_amqp, mutate_frame
from assay.sim.fuzz.amqp_world import FROM_SERVERS, AmqpWorld
from assay.sim.fuzz.cli import app
from assay.sim.fuzz.corpus import Corpus
from assay.sim.fuzz.setups import AMQP_SETUPS
from assay.sim.fuzz.shrink import repeat

SEED = 20_261_129
Patch = Callable[[pytest.MonkeyPatch], None]


def test_the_broker_survives_a_campaign() -> None:
    outcome = campaign.run(SEED, 4_000, protocol="amqp091")
    assert outcome.failure is None, f"seed {SEED}: {outcome.failure}"
    assert outcome.packets >= 4_000
    assert outcome.features > 400, "most frames did nothing new: the generator or the guidance is broken"


@pytest.mark.parametrize("setup", list(AMQP_SETUPS))
def test_every_setup_lives(setup: str) -> None:
    life = AmqpLife(setup, SEED, Corpus())
    life.run(500)
    assert life.packets >= 500


def test_a_seed_always_makes_the_same_life() -> None:
    lives = [AmqpLife("amqp-plain", 7, Corpus()) for _ in range(2)]
    for life in lives:
        life.run(400)
    assert lives[0].actions == lives[1].actions


def test_the_grammar_speaks_every_method_of_a_client_and_every_type_of_value() -> None:
    rng = random.Random(SEED)
    heard: set[str] = set()
    letters: set[str] = set()
    for _ in range(40):
        grammar = AmqpGrammar(rng)
        grammar.receive([])
        assembler = Assembler()
        for frame in grammar.first():
            heard |= {said.name for said in assembler.feed(frame) if hasattr(said, "name")}
        for _ in range(60):
            for frame in grammar.frames():
                try:
                    heard |= {said.name for said in Assembler().feed(frame) if hasattr(said, "name")}
                except MalformedFrameError:
                    # Some tables are deeper than the suite reads, and some frames are nothing.
                    continue
        letters |= {grammar._value(2).letter for _ in range(60)}
    asked = {"tx.select", "tx.commit", "tx.rollback", "confirm.select", "basic.publish", "basic.consume", "basic.get",
             "basic.ack", "basic.nack", "basic.reject", "basic.recover", "basic.recover-async", "basic.qos",
             "basic.cancel", "queue.declare", "queue.bind", "queue.unbind", "queue.purge", "queue.delete",
             "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind", "channel.open", "channel.flow",
             "channel.close", "connection.start-ok", "connection.tune-ok", "connection.open", "connection.close",
             "connection.update-secret"}  # fmt: skip
    assert asked <= heard, asked - heard
    assert letters == set("tbBsuIilfdDSxFATV")
    assert {"basic.deliver", "connection.tune"} <= FROM_SERVERS


def test_damage_stays_bounded() -> None:
    rng = random.Random(SEED)
    grammar = AmqpGrammar(rng)
    frames = [frame for _ in range(60) for frame in grammar.frames()]
    differing = sum(mutate_frame(rng, frame) != frame for frame in frames)
    assert differing > len(frames) * 0.8
    assert sum(map(len, mutate_amqp(rng, frames, 0.5))) < 40 * sum(map(len, frames))


def test_the_control_client_is_served_beside_others() -> None:
    world = AmqpWorld("amqp-plain", 1)
    world.do(Open(slot=0))
    world.do(Send(slot=0, chunks=(b"AMQP\x00\x00\x09\x01\x07garbage",)))
    for _ in range(3):
        world.do(Probe())
    assert world.slots[0].said_close


# -- planted bugs ----------------------------------------------------------------------------------------------------


def _raises(patch: pytest.MonkeyPatch) -> None:
    original = Consuming.cancel

    def cancel(self: Consuming, tag: str, no_wait: bool, now: float) -> None:
        if tag == "t3" and no_wait:
            raise ZeroDivisionError
        original(self, tag, no_wait, now)

    patch.setattr(Consuming, "cancel", cancel)


def _miscounts_content(patch: pytest.MonkeyPatch) -> None:
    def drop(self: Channel) -> None:
        self._content = None

    patch.setattr(Channel, "_drop_content", drop)


def _skips_tags(patch: pytest.MonkeyPatch) -> None:
    original = Consuming.qos

    def qos(self: Consuming, *values: Any) -> None:
        self._next_tag += 1
        original(self, *values)

    patch.setattr(Consuming, "qos", qos)


def _confirms_twice(patch: pytest.MonkeyPatch) -> None:
    original = Channel.send

    def send(self: Channel, name: str, *values: Any) -> None:
        original(self, name, *values)
        if name == "basic.ack" and values[0] == 3:
            original(self, name, *values)

    patch.setattr(Channel, "send", send)


def _waits_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AmqpConnection, "beat", lambda _self, _now: None)


def _keeps_exclusive_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VirtualHost, "queues_of", lambda _self, _owner: ())


def _ignores_frame_max(patch: pytest.MonkeyPatch) -> None:
    original = publishing.content_frames
    patch.setattr(
        consuming, "content_frames", lambda channel, header, body, _most: original(channel, header, body, 1 << 20)
    )


def _keeps_consumers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Amqp091, "left", lambda _self, _vhost, _record, _consumer, _now: None)


def _does_too_much(patch: pytest.MonkeyPatch) -> None:
    original = Consuming.flow

    def flow(self: Consuming, **values: Any) -> None:
        for number in range(500_000):
            _nothing(number)
        original(self, **values)

    patch.setattr(Consuming, "flow", flow)


def _nothing(_number: int) -> None: ...


def _gives_twice(patch: pytest.MonkeyPatch) -> None:
    original = Consuming.deliver

    def deliver(self: Consuming, consumer: Any, delivery: Any) -> bool:
        taken = original(self, consumer, delivery)
        if taken and consumer.tag == "control" and delivery.message.payload.endswith(b"7"):
            original(self, consumer, delivery)
        return taken

    patch.setattr(Consuming, "deliver", deliver)


def _forgets_frames_that_wait(patch: pytest.MonkeyPatch) -> None:
    """Those behind a request that ended the connection stayed counted: it was read no more while it closed."""

    def go_on(self: Channel) -> None:
        waiting, self._waiting = self._waiting, None
        while waiting and self.connection.channels.get(self.number) is self:
            kind, payload = waiting.popleft()
            self.on_frame(kind, payload, self.connection.broker.now)
            self._wait_behind(waiting)

    patch.setattr(Channel, "_go_on", go_on)


def _keeps_what_was_transacted(patch: pytest.MonkeyPatch) -> None:
    original = Publishing.rollback

    def rollback(self: Publishing, now: float) -> None:
        connection = self._channel.connection
        counts = connection.transacted_count, connection.transacted_bytes
        original(self, now)
        connection.transacted_count, connection.transacted_bytes = counts

    patch.setattr(Publishing, "rollback", rollback)


PLANTED: dict[str, tuple[Patch, str]] = {
    "an exception": (_raises, "exception ZeroDivisionError"),
    "content is miscounted": (_miscounts_content, "content miscounted"),
    "delivery tags skip": (_skips_tags, "basic."),
    "a publish is confirmed twice": (_confirms_twice, "basic.ack: publish"),
    "heartbeats are not watched": (_waits_for_ever, "stuck connection"),
    "exclusive queues stay": (_keeps_exclusive_queues, "exclusive to nobody"),
    "frames over the agreed size": (_ignores_frame_max, "larger than frame-max"),
    "consumers stay": (_keeps_consumers, ""),
    "a turn without end": (_does_too_much, "too many steps"),
    "a message comes twice": (_gives_twice, "control served wrongly"),
    "frames that wait are not let go of": (_forgets_frames_that_wait, ""),
    "transactions keep what they held": (_keeps_what_was_transacted, "transactions miscounted"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_and_repeated(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant, signature = PLANTED[name]
    plant(monkeypatch)
    outcome = campaign.run(SEED, 40_000, shrink_for_s=1.0, protocol="amqp091")
    assert outcome.failure is not None, f"{name} was not found in {outcome.packets} frames"
    assert outcome.failure.signature.startswith(signature), outcome.failure
    assert outcome.replay is not None
    path = tmp_path / "replay.json"
    save_replay(path, outcome.replay)
    replay = load_replay(path)
    again = repeat(replay)
    assert again is not None, outcome.failure
    assert again.signature == outcome.failure.signature
    monkeypatch.undo()
    assert repeat(replay) is None, "the sound broker must survive the same actions"


def test_the_command_fuzzes(tmp_path: Path) -> None:
    clean = CliRunner().invoke(app, ["amqp091", "--packets", "300", "--seed", "5", "--out", str(tmp_path)])
    assert clean.exit_code == 0, clean.output
    assert "seed 5" in clean.output
