"""The life of a broker on a disk of which one call fails, and what must be found after it.

Queues (``fsync`` and ``interval``), groups, settlements, delays, a transaction, a kept session, retained messages,
segments that are sealed and compacted: each life is the same, so that every call of it can be made to fail.

``python -m assay.sim.errno_life --all`` goes through every call, errno and durability; tests take a sample.
"""

from __future__ import annotations

import argparse
import errno
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol, cast

from assay.reference_broker.config import BrokerConfig, Durability, QueueConfig, QueuesConfig, SessionsConfig
from assay.reference_broker.core.connection import Connection
from assay.reference_broker.mqtt.connections.connection import MqttConnection
from assay.reference_broker.mqtt.wire import packets as p
from assay.reference_broker.mqtt.wire.codec import decode_packet, encode_packet
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues.jobs.errors import LogError, QueueError, QueueOpenError
from assay.reference_broker.storage import pending_log
from assay.reference_broker.storage.disk import Disk
from assay.sim.disk import DiskProfile, SimDisk
from assay.sim.failing_disk import SEAM, FailingDisk, Fault

PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN)
LASTING = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
FOR_EVER = p.Properties(session_expiry_interval=0xFFFFFFFF)
QUEUES = ("f", "i")
HINTS = (".mark", ".idx", ".tix", "cleaner.json", ".tmp", ".compacting", ".swap", "free_bytes", "remove_folder")
"""Files that only make something faster, or copies: what fails with them need not be told of each."""
_ROUNDS = 3
_IN_ROUND = 6


class WrongError(AssertionError):
    """A promise was broken."""


class Client:
    """A client's end of a connection in memory."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        connection = driver.node.accept("test", driver.now)
        assert isinstance(connection, MqttConnection)
        self.connection = connection
        self.inbox: list[p.Packet] = []
        self.acknowledges = True
        self._unread = b""

    @property
    def closed(self) -> bool:
        return self.connection.closing

    def send(self, packet: p.Packet) -> None:
        self._driver.node.receive(self.connection, encode_packet(packet, p.V5), self._driver.now)
        self._driver.turn()

    def lose(self) -> None:
        self._driver.node.connection_lost(self.connection, self._driver.now)
        self._driver.turn()

    def take(self) -> list[p.Packet]:
        taken, self.inbox = self.inbox, []
        return taken

    def numbers(self) -> list[tuple[int, dict[str, str]]]:
        """Of the messages that came, with their user properties."""
        return [
            (int(packet.payload[:6]), dict(packet.properties.user_property))
            for packet in self.inbox
            if isinstance(packet, p.Publish)
        ]

    def flush(self) -> None:
        """End of a turn: read what there is, and acknowledge it."""
        self._unread += self.connection.take_output()
        came: list[p.Packet] = []
        while len(self._unread) >= 2:
            length, at, shift = 0, 1, 0
            while True:
                length |= (self._unread[at] & 0x7F) << shift
                shift += 7
                at += 1
                if self._unread[at - 1] < 0x80:
                    break
            came.append(decode_packet(self._unread[0], self._unread, at, at + length, p.V5))
            self._unread = self._unread[at + length :]
        self.inbox += came
        for packet in came:
            if self.acknowledges and isinstance(packet, p.Publish) and packet.qos:
                self.send(p.Acknowledgement(type=p.PacketType.PUBACK, packet_id=packet.packet_id))


class Driver:
    """A broker whose jobs may fail, and its clients; time is moved by hand."""

    def __init__(self, disk: FailingDisk, durability: Durability, *, reserve_bytes: int = 10_000) -> None:
        kinds = zip(QUEUES, (Durability.FSYNC, Durability.INTERVAL), strict=True)
        config = BrokerConfig(
            sessions=SessionsConfig(durability=durability, segment_bytes=2_500),
            queues=QueuesConfig(
                segment_bytes=1_500,
                disk_reserve_bytes=reserve_bytes,
                configured=tuple(QueueConfig(name=name, partitions=1, durability=kind) for name, kind in kinds),
            ),
        )
        self.now = 1_700_000_000.0
        self.node = BrokerNode(config, cast(Disk, disk), random.Random(3), self.now)
        self.clients: dict[Connection, Client] = {}
        self.notes = [f"{note.place}: {note.problem}" for note in self.node.recovery_notes]
        """What the broker said of its disk."""
        self.most_rounds = 10_000
        """Turns that follow each other without that time passes."""

    def open(self) -> Client:
        client = Client(self)
        self.clients[client.connection] = client
        return client

    def turn(self) -> None:
        """Turns until nothing happens any more."""
        for _ in range(self.most_rounds):
            dirty = self.node.take_dirty(self.now)
            jobs = self.node.take_jobs(self.now)
            for job in jobs:
                error: OSError | None = None
                try:
                    job.run()
                except OSError as failure:
                    error = failure
                self.node.job_done(job, error, self.now)
            for connection in dirty:
                self.clients[connection].flush()
            self.notes += [f"{note.place}: {note.problem}" for note in self.node.take_storage_notes()]
            if not dirty and not jobs:
                return
        raise WrongError(f"a turn does not end in {self.most_rounds} rounds")

    def wait(self, seconds: float) -> None:
        """Move the clock, firing every timer at its time."""
        end = self.now + seconds
        while (deadline := self.node.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.node.tick(self.now)
            self.turn()
        self.now = end


class Ledger(NamedTuple):
    """What the clients know."""

    sent: dict[str, set[int]]
    confirmed: dict[str, set[int]]
    tried: dict[str, set[int]]
    """Settled, whatever was answered."""
    settled: dict[str, set[int]]
    """Settled, and that was confirmed."""


def new_ledger() -> Ledger:
    names = (*QUEUES, "n", "r")
    sent, confirmed, tried, settled = ({name: set[int]() for name in names} for _ in range(4))
    return Ledger(sent, confirmed, tried, settled)


class Life:
    """One broker and what is done with it."""

    def __init__(self, disk: FailingDisk, durability: Durability) -> None:
        self.driver = Driver(disk, durability)
        self.ledger = new_ledger()
        self.number = 0
        self.is_subscribed = False
        """The session that is offline: it is told of its subscription."""
        self.delayed: set[int] = set()
        """They may fire twice where the disk refuses to note that they did."""

    # -- clients -------------------------------------------------------------------------------------------------

    def _kept(self, client_id: str) -> Client | None:
        client = self.driver.open()
        client.acknowledges = True
        connect = p.Connect(version=p.V5, client_id=client_id, clean_start=False, properties=FOR_EVER)
        is_connected = self._connects(client, connect)
        # It may have acknowledged something before it was cut.
        self.ledger.tried["n"] |= {number for number, _ in client.numbers()}
        return client if is_connected else None

    def _connects(self, client: Client, connect: p.Connect) -> bool:
        client.send(connect)
        for _ in range(5):
            if client.inbox or client.closed:
                break
            self.driver.wait(2.0)
        return bool(client.inbox) and not client.closed

    def _client(self, client_id: str) -> Client:
        client = self.driver.open()
        client.acknowledges = client_id != "worker"
        self._connects(client, p.Connect(version=p.V5, client_id=client_id))
        client.take()
        return client

    def publish(self, topic: str, number: int, *pairs: tuple[str, str], retain: bool = False) -> bool:
        """True: it was confirmed. Waits some seconds for it."""
        client = self._client("publisher")
        properties = p.Properties(user_property=pairs)
        payload = b"%06d" % number + bytes(150)
        packet = p.Publish(topic=topic, payload=payload, qos=1, packet_id=7, properties=properties, retain=retain)
        client.send(packet)
        reason = self._answer(client)
        client.lose()
        return reason is not None and reason < 0x80

    def _answer(self, client: Client) -> int | None:
        for _ in range(4):
            for packet in client.take():
                if isinstance(packet, p.Acknowledgement):
                    self._told = dict(packet.properties.user_property)
                    return int(packet.reason)
            if client.closed:
                break
            self.driver.wait(2.5)
        return None

    def _ask(self, client: Client, operation: str, **named: str) -> dict[str, str] | None:
        pairs = tuple((name.replace("_", "-"), value) for name, value in named.items())
        properties = p.Properties(user_property=pairs)
        client.send(p.Publish(topic=f"$txn/{operation}", payload=b"", qos=1, packet_id=9, properties=properties))
        reason = self._answer(client)
        if reason is None or reason >= 0x80:
            return None
        return {name.replace("-", "_"): value for name, value in self._told.items()}

    def next(self, name: str) -> int:
        self.number += 1
        self.ledger.sent[name].add(self.number)
        return self.number

    # -- what happens --------------------------------------------------------------------------------------------

    def live(self) -> None:
        """All of it. Raises :class:`WrongError`, or whatever the broker lets out."""
        self._leave_a_session()
        for turn in range(_ROUNDS):
            for _ in range(_IN_ROUND):
                for name in QUEUES:
                    self._publish_numbered(name, f"$queue/{name}")
                self._publish_numbered("n", "n/1")
            self._publish_numbered("r", "r/1", retain=True)
            self._publish_numbered("f", "$queue/f", ("delay", "3s"))
            self._commit()
            self._consume(turn)
            if turn == 1:
                self._remove_a_queue()
                self._drain_session()
                self._leave_a_session()
            self.driver.wait(2.0)
        self.driver.wait(4.0)

    def _remove_a_queue(self) -> None:
        client = self._client("publisher")
        client.send(p.Publish(topic="$queue/d", payload=b"", qos=1, packet_id=3))
        self._answer(client)
        client.lose()
        with suppress(QueueError):
            self.driver.node.engine.delete_queue("d", self.driver.now)
        self.driver.wait(1.0)

    def _publish_numbered(self, name: str, topic: str, *pairs: tuple[str, str], retain: bool = False) -> None:
        number = self.next(name)
        if pairs:
            self.delayed.add(number)
        counts = name != "n" or self.is_subscribed
        if self.publish(topic, number, *pairs, retain=retain) and counts:
            self.ledger.confirmed[name].add(number)

    def _leave_a_session(self) -> None:
        client = self._kept("offline")
        if client is not None:
            request = p.SubscriptionRequest(topic_filter="n/#", qos=1)
            client.acknowledges = False
            client.send(p.Subscribe(packet_id=1, requests=(request,)))
            self.driver.wait(1.5)
            # Where it could not be drained before, it may have got something already.
            self.ledger.tried["n"] |= {number for number, _ in client.numbers()}
            self.is_subscribed |= any(isinstance(each, p.Suback) and each.reasons == (1,) for each in client.inbox)
            client.lose()

    def _drain_session(self) -> None:
        client = self._kept("offline")
        if client is not None:
            self.driver.wait(2.5)
            self.ledger.tried["n"] |= {number for number, _ in client.numbers()}
            client.lose()

    def _commit(self) -> None:
        client = self._client("producer")
        producer = self._ask(client, "init", transactional_id="app")
        transaction = None if producer is None else self._ask(client, "begin", **producer)
        if producer is None or transaction is None:
            client.lose()
            return
        wrote: dict[str, int] = {}
        for name in QUEUES:
            pairs = tuple((key.replace("_", "-"), value) for key, value in (producer | transaction).items())
            wrote[name] = self.next(name)
            client.send(
                p.Publish(
                    topic=f"$queue/{name}",
                    payload=b"%06d" % wrote[name],
                    qos=1,
                    packet_id=8,
                    properties=p.Properties(user_property=pairs),
                )
            )
            if (self._answer(client) or 0) >= 0x80 or client.closed:
                client.lose()
                return
        if self._ask(client, "commit", **producer, **transaction) is not None:
            for name, number in wrote.items():
                self.ledger.confirmed[name].add(number)
        client.lose()

    def _consume(self, turn: int) -> None:
        client = self._client("worker")
        for packet_id, name in enumerate(QUEUES, 1):
            group = (("consumer-group", "g"),)
            request = p.SubscriptionRequest(topic_filter=f"$queue/{name}", qos=1)
            properties = p.Properties(user_property=group)
            client.send(p.Subscribe(packet_id=packet_id, requests=(request,), properties=properties))
        self.driver.wait(1.5)
        deliveries = client.numbers()
        client.take()
        for number, found in deliveries[:: 1 if turn == 1 else 2]:
            name = found["queue"]
            self.ledger.tried[name].add(number)
            pairs = (("message-id", found["message-id"]), ("group-id", "g"))
            client.send(
                p.Publish(
                    topic=f"$queue/{name}/$ack",
                    payload=b"",
                    qos=1,
                    packet_id=5,
                    properties=p.Properties(user_property=pairs),
                )
            )
            reason = self._answer(client)
            if reason == 0:
                self.ledger.settled[name].add(number)
            if client.closed:
                break
        if not client.closed:
            client.lose()

    # -- what is there afterwards ----------------------------------------------------------------------------------

    def recovers(self) -> Iterator[str]:
        """What does not work again by itself, once nothing fails any more."""
        self.driver.wait(5.0)
        for name, topic in (*((name, f"$queue/{name}") for name in QUEUES), ("n", "n/2"), ("r", "r/2")):
            number = self.next(name)
            if self.publish(topic, number, retain=name == "r"):
                self.ledger.confirmed[name].add(number)
            else:
                yield f"a publish to {topic} is not confirmed: {self.driver.notes[-3:]}"


def found_after(disk: Base, life: Life, durability: Durability, *, power_lost: bool) -> Iterator[str]:
    """Start on what is left, and say what is missing."""
    ledger = life.ledger
    if power_lost:
        assert isinstance(disk, SimDisk)
        disk.power_loss()
    else:
        disk.crash()
    again = Life(FailingDisk(disk), durability)
    driver = again.driver
    driver.wait(5.0)
    worker = driver.open()
    worker.send(p.Connect(version=p.V5, client_id="worker"))
    for packet_id, name in enumerate(QUEUES, 1):
        properties = p.Properties(user_property=(("consumer-group", "g"), ("ack-mode", "auto")))
        request = p.SubscriptionRequest(topic_filter=f"$queue/{name}", qos=1)
        worker.send(p.Subscribe(packet_id=packet_id, requests=(request,), properties=properties))
    # What was with a consumer comes again once its time is over.
    driver.wait(100.0)
    got: dict[str, set[int]] = {name: set() for name in QUEUES}
    for number, found in worker.numbers():
        got[found["queue"]].add(number)
    kept = [name for name in QUEUES if name == "f" or not power_lost]
    for name in kept:
        lost = ledger.confirmed[name] - ledger.tried[name] - got[name]
        if lost:
            yield f"queue {name}: confirmed and lost: {sorted(lost)}"
        if revived := ledger.settled[name] & got[name] - life.delayed:
            yield f"queue {name}: settled, and delivered again: {sorted(revived)}"
    if power_lost and durability is not Durability.FSYNC:
        return
    session = driver.open()
    session.send(p.Connect(version=p.V5, client_id="offline", clean_start=False, properties=FOR_EVER))
    driver.wait(3.0)
    offline = {number for number, _ in session.numbers()}
    if lost := ledger.confirmed["n"] - ledger.tried["n"] - offline:
        yield f"session: confirmed and lost: {sorted(lost)}"
    reader = driver.open()
    reader.send(p.Connect(version=p.V5, client_id="reader"))
    reader.send(p.Subscribe(packet_id=2, requests=(p.SubscriptionRequest(topic_filter="r/#", qos=1),)))
    driver.wait(1.0)
    retained = {number for number, _ in reader.numbers()}
    if ledger.confirmed["r"] and max(retained, default=0) < max(ledger.confirmed["r"]):
        yield f"retained: {sorted(retained)}, though {max(ledger.confirmed['r'])} was confirmed"


class Base(Disk, Protocol):
    """A disk whose process can be killed."""

    def crash(self) -> None: ...


def new_disk() -> SimDisk:
    return SimDisk(random.Random(5), DiskProfile(stall_rate=0))


def complaints(
    fault: Fault,
    durability: Durability,
    *,
    power_lost: bool = False,
    wrap: Callable[[Fault], FailingDisk] | None = None,
) -> list[str]:
    """Live once with the fault; what is wrong with it and with what is found after it. ``wrap``: on another disk."""
    pending_log.SNAPSHOT_OPERATIONS = 12
    disk = FailingDisk(new_disk(), fault) if wrap is None else wrap(fault)
    base = cast(Base, disk.disk)
    wrong: list[str] = []
    is_told = False
    try:
        life = Life(disk, durability)
    except (LogError, QueueOpenError, OSError):
        # It may not start, and says so; the next start finds all that was there before.
        is_told = True
        base.crash()
        disk.fault = None
        life = Life(disk, durability)
    try:
        life.live()
    except (LogError, QueueOpenError, OSError) as error:
        return [f"the broker lets out {error!r}"]
    failed = [f"{call} {path}" for call, path in disk.failed]
    noted = life.driver.notes
    # An open file that may be closed makes room for one that has to be opened at once.
    made_room = fault.call == "open" and fault.number in PASSING and len(failed) == 1
    # What a system may answer to who removes a folder as if it were a file: then what is in it is removed. All files of
    # a data directory have a suffix, and no folder of this life has.
    is_a_folder = (
        fault.call == "remove"
        and fault.number in (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOENT)
        and all("." not in each.rpartition("/")[2] for each in failed)
    )
    if (
        failed
        and not noted
        and not is_told
        and not made_room
        and not is_a_folder
        and not all(any(hint in each for hint in HINTS) for each in failed)
    ):
        wrong.append(f"nothing is said of {failed}")
    disk.fault = None
    if fault.number in PASSING:
        wrong += life.recovers()
    return wrong + list(found_after(base, life, durability, power_lost=power_lost))


def calls(durability: Durability) -> dict[str, int]:
    """How often each call is made in a life without a fault, which has to be a good one."""
    pending_log.SNAPSHOT_OPERATIONS = 12
    base = new_disk()
    disk = FailingDisk(base)
    life = Life(disk, durability)
    life.live()
    counts = dict(disk.counts)
    wrong = [*life.recovers(), *found_after(base, life, durability, power_lost=False)]
    if wrong or life.ledger.sent != life.ledger.confirmed:
        raise WrongError(f"without a fault: {wrong}, {life.ledger}")
    return counts


def main() -> None:
    """Every call, or a sample, with every errno."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    found = 0
    for durability in (Durability.FSYNC, Durability.INTERVAL):
        counts = calls(durability)
        chosen = [
            Fault(call, at, number, times)
            for call in sorted(SEAM & counts.keys())
            for at in range(1, counts[call] + 1)
            for number in (*PASSING, *LASTING)
            for times in (1, 3)
        ]
        if not asked.all:
            chosen = random.Random(asked.seed).sample(chosen, asked.count)
        for fault in chosen:
            wrong = complaints(fault, durability)
            if wrong:
                found += 1
                sys.stdout.write(f"{durability} {fault} {errno.errorcode[fault.number]}: {wrong}\n")
    sys.stdout.write(f"{found} lives went wrong\n")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
