"""Messages are held against the schema of their queue: rejected, dead-lettered or marked, however they come."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from assay.reference_broker.config import BrokerConfig, QueueConfig, QueuesConfig, SchemaCheckConfig, SchemaMode
from assay.reference_broker.node import BrokerNode
from assay.reference_broker.queues import Delivery, PublishOptions, QueueAddress, QueueError, QueueErrorCode
from assay.reference_broker.queues.queue.enqueue_path import SCHEMA_ERROR
from assay.reference_broker.routing.message import Message
from assay.reference_broker.routing.properties import Kind, MessageProperties, Typed
from assay.reference_broker.schemas.errors import SchemaErrorCode
from tests.schemas.test_registry import A, B

NOW = 1_700_000_000.0
GOOD, BAD = b'{"a": 1}', b'{"a": "x"}'


class Bench:
    """A broker with one queue that checks, in memory."""

    def __init__(self, mode: SchemaMode = SchemaMode.REJECT, **more: Any) -> None:
        checks = SchemaCheckConfig(subject="s", mode=mode, **more)
        queue = QueueConfig(name="q", partitions=1, schema=checks, topics=("plain/#",))
        config = BrokerConfig(queues=QueuesConfig(configured=(queue,)))
        self.node = BrokerNode(config, None, random.Random(1), NOW)
        self.engine = self.node.engine
        self.register("s", A)

    def register(self, subject: str, schema: str) -> None:
        told: list[Any] = []
        log = self.node.schemas
        log.change(lambda: log.registry.register(subject, schema, NOW), lambda error, found: told.append(error))
        self.turn()
        assert told == [None]

    def turn(self) -> None:
        for _ in range(3):
            self.node.take_dirty(NOW)
            for job in self.node.take_jobs(NOW):
                job.run()
                self.node.job_done(job, None, NOW)

    def publish(self, payload: bytes, options: PublishOptions | None = None, **fields: Any) -> QueueErrorCode | None:
        told: list[QueueError | None] = []
        message = Message(topic="$queue/q", payload=payload, **fields)
        try:
            self.engine.publish(QueueAddress(queue="q", routing_key=""), message, NOW, told.append, None, options)
        except QueueError as error:
            told.append(error)
        self.turn()
        assert len(told) == 1
        return None if told[0] is None else told[0].code

    def contents(self, queue: str = "q") -> list[Message]:
        got: list[Message] = []

        def deliver(delivery: Delivery) -> bool:
            got.append(delivery.message)
            return True

        self.engine.subscribe(queue, pattern="", group="g", consumer_id="c", deliver=deliver, now=NOW)
        self.turn()
        return got


def test_a_misfit_is_rejected() -> None:
    bench = Bench()
    assert [bench.publish(payload) for payload in (GOOD, BAD, b"{", b"", b"\xff", b"[]")] == [
        None,
        *[QueueErrorCode.MISFIT] * 5,
    ]
    assert [message.payload for message in bench.contents()] == [GOOD]
    assert (bench.node.schema_checks.checked, bench.node.schema_checks.misfits) == (6, 5)


def test_a_misfit_becomes_a_dead_letter_with_its_reason() -> None:
    bench = Bench(SchemaMode.DEAD_LETTER)
    assert [bench.publish(payload) for payload in (GOOD, BAD)] == [None, None]
    assert [message.payload for message in bench.contents()] == [GOOD]
    (letter,) = bench.contents("$dlq/q")
    reason = letter.user_property("_dlq_reason")
    assert letter.payload == BAD
    assert reason is not None
    assert reason.startswith("SCHEMA_INVALID: schema 1: at /a:")
    produced = PublishOptions(producer_id=1, producer_epoch=0, sequence=0)
    assert bench.publish(BAD, produced) is QueueErrorCode.MISFIT, "it would be part of no transaction"


def test_a_misfit_is_marked_and_nobody_else_marks() -> None:
    bench = Bench(SchemaMode.MARK)
    forged = ((SCHEMA_ERROR, "forged"), ("a", "b"))
    for payload in (GOOD, BAD):
        assert bench.publish(payload, user_properties=forged) is None
    good, bad = bench.contents()
    assert good.user_properties == (("a", "b"),)
    assert dict(bad.user_properties)[SCHEMA_ERROR].startswith("schema 1: at /a:")


def test_a_letter_that_fits_meanwhile_can_be_sent_back_and_another_cannot() -> None:
    bench = Bench(SchemaMode.DEAD_LETTER)
    log = bench.node.schemas
    bench.publish(BAD)
    for replayed in (0, 1):
        told: list[Any] = []
        bench.engine.dead_letters.replay("q", None, NOW, told.append)
        for _ in range(4):
            bench.engine.tick(NOW)
            bench.turn()
        assert [(each.replayed, each.failed) for each in told] == [(replayed, 1 - replayed)]
        log.change(lambda: log.registry.set_level("s", "NONE"), lambda *_: None)
        bench.turn()
        bench.register("s", B)
    assert [message.payload for message in bench.contents()] == [BAD]


@pytest.mark.parametrize("is_payload", [True, False])
def test_a_message_names_its_schema(is_payload: bool) -> None:
    bench = Bench(require_id=True)
    log = bench.node.schemas
    log.change(lambda: log.registry.set_level("", "NONE"), lambda *_: None)
    bench.turn()
    bench.register("s", B)
    bench.register("t", '{"title": "other"}')

    def named(number: int, payload: bytes) -> QueueErrorCode | None:
        if is_payload:
            return bench.publish(b"\0" + number.to_bytes(4, "big") + payload)
        return bench.publish(payload, user_properties=(("schema-id", str(number)),))

    assert bench.publish(GOOD) is QueueErrorCode.MISFIT, "it names none"
    assert [named(1, GOOD), named(1, BAD), named(2, BAD)] == [None, QueueErrorCode.MISFIT, None]
    assert [named(3, GOOD), named(9, GOOD)] == [QueueErrorCode.MISFIT] * 2, "of another subject, of none"
    assert bench.publish(b"\0\0\0") is QueueErrorCode.MISFIT
    assert bench.publish(GOOD, user_properties=(("schema-id", "one"),)) is QueueErrorCode.MISFIT
    header = MessageProperties(headers=(("schema-id", Typed(Kind.I32, 1)),))
    assert bench.publish(GOOD, properties=header) is None


def test_every_way_into_the_queue_is_checked() -> None:
    bench = Bench()
    messages = [Message(topic="$queue/q", payload=BAD if number % 3 == 0 else GOOD) for number in range(30)]
    told: list[QueueError | None] = []
    bench.engine.publish_many(QueueAddress(queue="q", routing_key=""), messages, NOW, told.append)
    for payload in (GOOD, BAD):
        bench.engine.capture(Message(topic="plain/a", payload=payload), NOW)
    assert bench.publish(BAD, PublishOptions(delay_ms=1_000)) is QueueErrorCode.MISFIT
    bench.turn()
    assert [error and error.code for error in told] == [QueueErrorCode.MISFIT]
    assert [message.payload for message in bench.contents()] == [GOOD] * 21


def test_a_subject_without_a_schema_takes_nothing_and_settings_change_at_run_time() -> None:
    bench = Bench()
    bench.engine.update_queue("q", {"schema": {"subject": "unknown"}}, NOW)
    assert bench.publish(GOOD) is QueueErrorCode.MISFIT
    bench.engine.update_queue("q", {"schema": {"subject": ""}}, NOW)
    assert bench.publish(BAD) is None
    bench.engine.update_queue("q", {"schema": None}, NOW)
    assert bench.publish(BAD) is QueueErrorCode.MISFIT


def test_a_broker_without_the_validator_takes_nothing_there() -> None:
    bench = Bench()
    bench.engine.agenda.misfit = None
    assert bench.publish(GOOD) is QueueErrorCode.MISFIT


def test_a_check_costs_its_publisher_by_the_size_of_the_message() -> None:
    bench = Bench(SchemaMode.MARK)
    bench.engine.take_cost()
    bench.publish(msgspec.json.encode({"a": "x" * 65_536}))
    assert bench.engine.take_cost() >= 16


def test_a_queue_without_a_schema_never_asks() -> None:
    bench = Bench()
    bench.engine.publish(QueueAddress(queue="free", routing_key=""), Message(topic="$queue/free", payload=BAD), NOW)
    bench.turn()
    assert bench.node.schema_checks.checked == 0
    assert SchemaErrorCode.INCOMPATIBLE.status == 409
