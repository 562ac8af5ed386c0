"""The fuzzer: it finds nothing in the broker, finds what is planted, and repeats what it found."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from assay.conformance.wire import Auth, Connack, Connect, Decoder, MalformedPacketError, PacketType, Properties, encode
from assay.reference_broker.core.routing import SubscriptionTree
from assay.reference_broker.mqtt.connections import handlers
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.connections.inbound import Inbound
from assay.reference_broker.mqtt.connections.outbound import Outbound
from assay.reference_broker.mqtt.sessions.mqtt_broker import MqttBroker
from assay.reference_broker.mqtt.sessions.session import Session
from assay.reference_broker.mqtt.wire.packets import Packet, Pingreq, Pingresp, Unsubscribe
from assay.reference_broker.queues.groups.group import ConsumerGroup
from assay.sim.fuzz import campaign
from assay.sim.fuzz.actions import Open, Probe, Replay, ReplayError, Send, load_replay, save_replay
from assay.sim.fuzz.cli import app
from assay.sim.fuzz.corpus import Corpus
from assay.sim.fuzz.failure import FuzzFailureError
from assay.sim.fuzz.grammar import Grammar
from assay.sim.fuzz.life import Life
from assay.sim.fuzz.mutation import chunks, join, mutate, splice, split
from assay.sim.fuzz.scram import ScramLogin
from assay.sim.fuzz.setups import PASSWORD, SETUPS, USER
from assay.sim.fuzz.shrink import repeat, shrink
from assay.sim.fuzz.world import FuzzWorld

SEED = 20_261_128
Patch = Callable[[pytest.MonkeyPatch], None]


def test_twenty_thousand_packets_break_nothing() -> None:
    outcome = campaign.run(SEED, 20_000)
    assert outcome.failure is None, f"seed {SEED}: {outcome.failure}"
    assert outcome.packets >= 20_000
    assert outcome.features > 1_000, "most packets did nothing new: the generator or the guidance is broken"


@pytest.mark.parametrize("setup", list(SETUPS))
def test_every_setup_lives(setup: str) -> None:
    life = Life(setup, SEED, Corpus())
    life.run(1_500)
    assert life.packets >= 1_500


def test_a_seed_always_makes_the_same_life() -> None:
    lives = [Life("plain", 7, Corpus()) for _ in range(2)]
    for life in lives:
        life.run(1_000)
    assert lives[0].actions == lives[1].actions
    other = Life("plain", 8, Corpus())
    other.run(1_000)
    assert other.actions != lives[0].actions


def test_lives_are_traced_and_what_reaches_new_code_is_kept() -> None:
    corpus = Corpus()
    Life("plain", 7, corpus).run(300, traced=True)
    assert len(corpus.arcs) > 300
    assert {Path(code.co_filename).parent.name for code, _, _ in corpus.arcs} >= {"connections", "sessions", "core"}
    assert corpus.scripts


# -- planted bugs ----------------------------------------------------------------------------------------------------


def _raises(patch: pytest.MonkeyPatch) -> None:
    original = handlers.handle

    def handle(connection: MqttConnection, packet: Packet, now: float) -> None:
        if isinstance(packet, Unsubscribe) and len(packet.topic_filters) == 3:
            raise ZeroDivisionError
        original(connection, packet, now)

    patch.setattr(handlers, "handle", handle)


def _keeps_subscriptions(patch: pytest.MonkeyPatch) -> None:
    original = SubscriptionTree.remove

    def remove(self: SubscriptionTree, session: Session, subscription: object) -> None:
        if getattr(subscription, "share_name", None) is None:
            original(self, session, subscription)

    patch.setattr(SubscriptionTree, "remove", remove)


def _queues_without_bound(patch: pytest.MonkeyPatch) -> None:
    original = Session.deliver

    def deliver(self: Session, *arguments: object, **named: object) -> None:
        limit, self.max_queued = self.max_queued, 10**9
        original(self, *arguments, **named)
        self.max_queued = limit

    patch.setattr(Session, "deliver", deliver)


def _talks_after_the_end(patch: pytest.MonkeyPatch) -> None:
    original = MqttConnection.end

    def end(self: MqttConnection) -> None:
        self.send_packet(Pingresp())
        original(self)

    patch.setattr(MqttConnection, "end", end)


def _ignores_the_window(patch: pytest.MonkeyPatch) -> None:
    original = Session.send_queued

    def send_queued(self: Session, now: float) -> None:
        window, self.window = self.window, 65_535
        original(self, now)
        self.window = window

    patch.setattr(Session, "send_queued", send_queued)


def _forgets_a_timer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MqttConnection, "check_keep_alive", lambda _self, _now: None)


def _sends_wrong_bytes(patch: pytest.MonkeyPatch) -> None:
    original = handlers.handle

    def handle(connection: MqttConnection, packet: Packet, now: float) -> None:
        if isinstance(packet, Pingreq):
            connection.send(b"\xd0\x01\0")
        else:
            original(connection, packet, now)

    patch.setattr(handlers, "handle", handle)


def _times_out_twice(patch: pytest.MonkeyPatch) -> None:
    original = ConsumerGroup.due_timeouts
    patch.setattr(ConsumerGroup, "due_timeouts", lambda self, now: original(self, now) * 2)


def _answers_packet_id_0(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Inbound, "_no_packet_id", lambda _self: ZeroDivisionError("packet id"))


def _ignores_the_packet_size(patch: pytest.MonkeyPatch) -> None:
    original = Outbound.send_publish

    def send_publish(self: Outbound, *arguments: object) -> bool:
        limit, self._connection.max_packet_out = self._connection.max_packet_out, 10**9
        sent = original(self, *arguments)
        self._connection.max_packet_out = limit
        return sent

    patch.setattr(Outbound, "send_publish", send_publish)


def _leaves_sessions(patch: pytest.MonkeyPatch) -> None:
    original = MqttBroker.end_session

    def end_session(self: MqttBroker, session: Session, now: float) -> None:
        original(self, session, now)
        if session.will is not None:
            self.sessions.setdefault(session.client_id, session)

    patch.setattr(MqttBroker, "send_will", lambda _self, _session, _now: None)
    patch.setattr(MqttBroker, "end_session", end_session)


PLANTED: dict[str, tuple[Patch, str]] = {
    "an exception": (_raises, "exception ZeroDivisionError"),
    "an exception for packet id 0": (_answers_packet_id_0, "exception ZeroDivisionError"),
    "shared subscriptions stay": (_keeps_subscriptions, "subscription tree"),
    "an unbounded queue": (_queues_without_bound, "bound: queued"),
    "output behind the last packet": (_talks_after_the_end, ""),
    "the window is ignored": (_ignores_the_window, "bound: in flight"),
    "keep alive is not watched": (_forgets_a_timer, "stuck connection"),
    "a malformed packet": (_sends_wrong_bytes, "malformed output"),
    "deliveries time out twice": (_times_out_twice, ""),
    "packets over the client's limit": (_ignores_the_packet_size, "PUBLISH: larger than"),
    "sessions stay": (_leaves_sessions, ""),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found_shrunk_and_repeated(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plant, signature = PLANTED[name]
    plant(monkeypatch)
    outcome = campaign.run(SEED, 120_000, shrink_for_s=3.0)
    assert outcome.failure is not None, f"{name} was not found in {outcome.packets} packets"
    assert outcome.failure.signature.startswith(signature), outcome.failure
    assert outcome.replay is not None
    path = tmp_path / "replay.json"
    save_replay(path, outcome.replay)
    replay = load_replay(path)
    again = repeat(replay)
    assert again is not None
    assert again.signature == outcome.failure.signature
    monkeypatch.undo()
    assert repeat(replay) is None, "the sound broker must survive the same actions"


def test_shrinking_leaves_only_what_the_failure_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    _sends_wrong_bytes(monkeypatch)
    life = Life("plain", SEED, Corpus())
    with pytest.raises(FuzzFailureError, match="malformed output") as caught:
        life.run(5_000)
    replay = Replay(setup="plain", seed=SEED, actions=tuple(life.actions))
    small = shrink(replay, caught.value.signature, budget_s=20.0, clock=time.monotonic)
    assert [type(action) for action in small.actions] in ([Open, Send], [Open, Send, Send])


# -- replay files and the command ------------------------------------------------------------------------------------


def test_a_replay_survives_its_file(tmp_path: Path) -> None:
    life = Life("disk", 3, Corpus())
    life.run(500)
    replay = Replay(setup="disk", seed=3, failure="none", actions=tuple(life.actions))
    path = tmp_path / "deep" / "replay.json"
    save_replay(path, replay)
    assert load_replay(path) == replay
    assert path.read_text().count("\n") > len(replay.actions), "one action a line"


def test_what_is_no_replay_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"setup": "plain"}')
    with pytest.raises(ReplayError, match="no replay"):
        load_replay(path)


def test_the_command_fuzzes_and_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = CliRunner()
    clean = runner.invoke(app, ["mqtt", "--packets", "1000", "--seed", "5", "--out", str(tmp_path)])
    assert clean.exit_code == 0, clean.output
    assert "seed 5" in clean.output
    with monkeypatch.context() as patch:
        _sends_wrong_bytes(patch)
        found = runner.invoke(
            app, ["mqtt", "--packets", "20000", "--seed", "5", "--out", str(tmp_path), "--shrink-for-s", "1"]
        )
        assert found.exit_code == 1
        assert "malformed output" in found.output
        path = tmp_path / "replay-5.json"
        assert path.exists()
        assert runner.invoke(app, ["mqtt", "--replay", str(path)]).exit_code == 1
    fixed = runner.invoke(app, ["mqtt", "--replay", str(path)])
    assert fixed.exit_code == 0
    assert "nothing found" in fixed.output
    assert runner.invoke(app, ["mqtt", "--replay", str(tmp_path / "none")]).exit_code == 2


# -- the generator ---------------------------------------------------------------------------------------------------


def test_the_grammar_speaks_every_packet_of_a_client_in_both_versions() -> None:
    seen: dict[int, set[PacketType]] = {4: set(), 5: set()}
    rng = random.Random(SEED)
    for _ in range(60):
        grammar = Grammar(rng, with_users=True)
        decoder = Decoder(grammar.version)
        seen[grammar.version] |= {packet.type for packet in decoder.feed(b"".join(grammar.first()))}
        for _ in range(120):
            for frame in grammar.frames():
                try:
                    seen[grammar.version] |= {packet.type for packet in Decoder(grammar.version).feed(frame)}
                except MalformedPacketError as error:
                    # A few topics are wrong on purpose.
                    assert "topic name" in str(error), frame.hex()
    from_clients = {PacketType(number) for number in (1, 3, 4, 5, 6, 7, 8, 10, 12, 14)}
    assert seen[4] == from_clients
    assert seen[5] == from_clients | {PacketType.AUTH}


def test_a_user_logs_in_with_scram() -> None:
    world = FuzzWorld("users", 1)
    login = ScramLogin(USER, PASSWORD, "n")
    world.do(Open(slot=0))
    method = "SCRAM-SHA-256"
    first = Properties(authentication_method=method, authentication_data=login.first())
    world.do(Send(slot=0, chunks=(encode(Connect(client_id="c", version=5, properties=first), 5),)))
    (challenge,) = world.slots[0].inbox
    assert isinstance(challenge, Auth)
    data = login.answer(challenge.properties.authentication_data or b"")
    final = Properties(authentication_method=method, authentication_data=data)
    world.do(Send(slot=0, chunks=(encode(Auth(reason_code=0x18, properties=final), 5),)))
    connack = world.slots[0].inbox[-1]
    assert isinstance(connack, Connack)
    assert connack.reason_code == 0
    assert world.slots[0].connection.username == USER
    world.do(Probe())


def test_mutations_stay_bounded_and_cuts_lose_nothing() -> None:
    rng = random.Random(SEED)
    frame = join(0x30, b"\0\1a" + b"x" * 300)
    assert split(frame) == (0x30, b"\0\1a" + b"x" * 300)
    differing = 0
    for _ in range(3_000):
        damaged = mutate(rng, frame)
        assert len(damaged) <= 65_536
        differing += damaged != frame
        assert b"".join(chunks(rng, damaged)) == damaged
        assert len(splice(rng, frame, damaged)) <= 2 * 65_536 + 5
    assert differing > 2_500
