"""Publishers of delayed messages, which they may cancel, each told to the oracle as it happens."""

from __future__ import annotations

from functools import partial

from assay.reference_broker.mqtt.queue_topics.addresses import QueueTopics
from assay.reference_broker.queues.jobs.confirms import StoredAs
from assay.reference_broker.routing.message import Message
from assay.sim.queue_model.contents import dressed
from assay.sim.queue_model.delayed import Delayed
from assay.sim.queue_model.life import QUEUE, QueueLife
from assay.sim.queue_model.state import ViolationError


class Delayer:
    """Publishes to the queue of a life, and remembers what it may cancel."""

    def __init__(self, life: QueueLife) -> None:
        self.life = life
        self.kept: list[tuple[str, Delayed]] = []
        """Delay ids, and what they name."""

    def publish(self, delay_s: float, key: str | None = None, priority: int | None = None, dress: str = "") -> None:
        """Publish a message that is due after some time."""
        life = self.life
        life.sent += 1
        label = f"m{life.sent}"
        options = {
            "delay": f"{delay_s * 1000:.0f}ms",
            "partition-key": key,
            "priority": None if priority is None else str(priority),
        }
        message = Message(
            topic=f"$queue/{QUEUE}",
            payload=label.encode(),
            user_properties=tuple((name, value) for name, value in options.items() if value),
        )
        message = dressed(message, dress)
        life.contents.published(message)
        found: list[Delayed] = []

        def stored(kind: StoredAs, delay_id: str) -> None:
            if kind is not StoredAs.DELAYED:
                raise ViolationError(f"{label} is not delayed: it is {delay_id}")
            self.kept.append((delay_id, found[0]))

        outcome = life.outcome(f"delayed {label}")
        QueueTopics(life.engine).publish(message, life.now, outcome, stored)
        lane = 2 if priority is None else priority
        found.append(life.delays.schedule(QUEUE, label, key, lane, life.now + delay_s))
        outcome.accepted(partial(life.delays.confirmed, found[0]))

    def crashed(self, *, power: bool) -> None:
        """After a loss of power ids may be given out again."""
        known = self.life.delays.all
        self.kept = [] if power else [(delay_id, delayed) for delay_id, delayed in self.kept if delayed in known]

    def cancel(self, which: int) -> None:
        """Take one back, be it waiting, fired or taken back; 0 = the newest."""
        life = self.life
        delay_id, delayed = self.kept[len(self.kept) - 1 - which % len(self.kept)]
        outcome = life.outcome(f"cancelling {delayed.label}")
        if life.engine.cancel_delayed(QUEUE, delay_id, life.now, outcome):
            life.delays.cancelled(delayed)
            outcome.accepted(partial(setattr, delayed, "cancel_confirmed", True))
        else:
            life.delays.not_cancelled(delayed)
