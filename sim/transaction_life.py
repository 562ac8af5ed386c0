"""A transaction over two queues on a simulated disk, and what a power loss may leave of it: all or nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from assay.reference_broker.config import Durability, QueuesConfig
from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues import Delivery, Outcome, QueueEngine, QueueError
from assay.reference_broker.queues.delivery.settle_request import SettleRequest
from assay.reference_broker.queues.messages.publish_options import TransactionKey
from assay.reference_broker.queues.transactions.producer_names import OnProducer, ProducerIdentity
from assay.reference_broker.routing.message import Message
from assay.reference_broker.storage.disk import Disk
from assay.reference_broker.storage.queue_store import LogQueueStore

START: Final = 1_700_000_000.0
PARTS: Final = (("q", "one"), ("r", "two"), ("q", "three"))
"""Queue and payload of the messages in the transaction."""
INPUT: Final = "in"
"""The queue of the message that it acknowledges."""
_TURNS = 40


class FoundTransaction(NamedTuple):
    """What a start found: which messages a new group gets, and whether the input is settled."""

    values: dict[str, list[str]]
    input_settled: bool
    problems: tuple[str, ...]


def open_engine(disk: Disk, durability: Durability, now: float = START) -> QueueEngine:
    """Raises :class:`LogError`."""
    config = QueuesConfig(defaults={"partitions": 1, "durability": durability, "retry": {"initial_backoff_s": 0.0}})
    return QueueEngine(config, LogQueueStore(disk), random.Random(1), now)


def turn(engine: QueueEngine, now: float = START) -> None:
    """Turns until nothing is left to do, syncs included."""
    for _ in range(_TURNS):
        engine.tick(now)
        engine.dispatch(now)
        jobs = engine.take_jobs(now)
        for job in jobs:
            job.run()
            engine.job_done(job, None, now)
        deadline = engine.next_deadline()
        if not jobs and (deadline is None or deadline > now):
            return
    raise AssertionError("the engine does not come to rest")


class TransactionLife:
    """One producer: it takes a message, and puts three into two queues, in one transaction."""

    def __init__(self, disk: Disk, durability: Durability, *, commits: bool) -> None:
        self.engine = open_engine(disk, durability)
        self.commits = commits
        self.told: list[QueueError | None] = []
        """What the commit or abort was answered."""
        self._got: list[Delivery] = []

    def prepare(self) -> None:
        """Until the transaction is open and all that it builds on is durable."""
        engine = self.engine
        self._publish(INPUT, "input", ())
        for queue in ("q", "r"):
            self._publish(queue, "before", ())

        def deliver(delivery: Delivery) -> bool:
            self._got.append(delivery)
            return True

        engine.subscribe(INPUT, pattern="", group="g", consumer_id="c", deliver=deliver, now=START)
        turn(engine)
        turn(engine, START + 2)

    def live(self) -> None:
        """The whole transaction, from its producer on."""
        engine = self.engine
        producers: list[ProducerIdentity] = []
        engine.transactions.init_producer("app", START, _producer_collector(producers))
        turn(engine)
        [producer] = producers
        begun: list[str] = []
        engine.transactions.begin(*producer, START, lambda error, name: begun.append(name))
        turn(engine)
        [name] = begun
        options = (
            ("producer-id", str(producer.producer_id)),
            ("producer-epoch", str(producer.epoch)),
            ("transaction-id", name),
        )
        self._publish(*PARTS[0], options)
        turn(engine)
        # The rest and the commit come in one turn, so that everything has to be written at once.
        for queue, value in PARTS[1:]:
            self._publish(queue, value, options)
        request = SettleRequest(
            outcome=Outcome.ACCEPT, message_ids=(self._got[0].message_id,), within=TransactionKey(*producer, name)
        )
        engine.settle(INPUT, request, consumer_id="c", now=START)
        end = engine.transactions.commit if self.commits else engine.transactions.abort
        end(*producer, name, START, self.told.append)
        turn(engine)
        turn(engine, START + 3)

    def _publish(self, queue: str, value: str, options: tuple[tuple[str, str], ...]) -> None:
        topic = f"$queue/{queue}"
        message = Message(topic=topic, payload=value.encode(), user_properties=options)
        QueueTopics(self.engine).publish(message, START)

    def complaints(self, found: FoundTransaction) -> Iterator[str]:
        """What is wrong with what a start found after a power loss now."""
        yield from found.problems
        expected = {queue: ["before", *(value for name, value in PARTS if name == queue)] for queue in ("q", "r")}
        nothing = {queue: ["before"] for queue in expected}
        committed = found.values == expected
        if not committed and found.values != nothing:
            yield f"neither all nor nothing: {found.values}"
        if committed != found.input_settled:
            yield f"the messages are {found.values}, and the input is settled: {found.input_settled}"
        if committed and not self.commits:
            yield "an aborted transaction is there"
        if self.commits and self.told == [None] and not committed:
            yield "a commit that was confirmed is not there"


def examine(disk: Disk, durability: Durability) -> FoundTransaction:
    """Start a broker, look at the queues, use them, and find the same when it is started again."""
    problems: list[str] = []
    first = _look(open_engine(disk, durability), problems)
    disk.unlock()
    engine = open_engine(disk, durability)
    if (again := _look(engine, problems)) != first:
        problems.append(f"opened again, the queues hold {again}, and before {first}")
    if not _works(engine):
        problems.append("a new transaction cannot be committed")
    engine.close(START + 5)
    return FoundTransaction(first[0], first[1], tuple(problems))


def _look(engine: QueueEngine, problems: list[str]) -> tuple[dict[str, list[str]], bool]:
    turn(engine)
    if engine.transactions.list():
        problems.append(f"transactions are undecided: {engine.transactions.list()}")
    values: dict[str, list[str]] = {}
    for queue in ("q", "r", INPUT):
        got: list[Delivery] = []
        group = "g" if queue == INPUT else "look"
        consumer = engine.subscribe(
            queue, pattern="", group=group, consumer_id="look", deliver=_collector(got), now=START
        )
        turn(engine)
        values[queue] = [delivery.message.payload.decode() for delivery in got]
        engine.unsubscribe(consumer, START)
    return values, not values.pop(INPUT)


def _producer_collector(got: list[ProducerIdentity]) -> OnProducer:
    def tell(_: QueueError | None, found: ProducerIdentity | None) -> None:
        if found is not None:
            got.append(found)

    return tell


def _collector(got: list[Delivery]) -> Callable[[Delivery], bool]:
    def deliver(delivery: Delivery) -> bool:
        got.append(delivery)
        return True

    return deliver


def _works(engine: QueueEngine) -> bool:
    """Another transaction of the same producer goes through."""
    producers: list[ProducerIdentity] = []
    begun: list[str] = []
    told: list[QueueError | None] = []
    transactions = engine.transactions
    transactions.init_producer("app", START, _producer_collector(producers))
    turn(engine)
    transactions.begin(*producers[0], START, lambda error, name: begun.append(name))
    turn(engine)
    transactions.commit(*producers[0], begun[0], START, told.append)
    turn(engine)
    return told == [None]
