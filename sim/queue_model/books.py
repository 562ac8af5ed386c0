"""The copies of every message, and how the spots that they may be in change."""

from __future__ import annotations

from typing import Final

from assay.sim.queue_model.state import DONE, NEW, NONE, Copy, Kind, Queue, Rules, Sent, Spot

_NEVER: Final = float("inf")


class Books:
    """All queues, and the time."""

    def __init__(self, rules: dict[str, Rules], now: float) -> None:
        self.queues = {name: Queue(name, each) for name, each in rules.items()}
        self.now = now
        self.step = 0
        self.written = 0
        """Everything up to this step survives the end of the process."""
        self.synced = 0
        """Everything up to this step survives a power loss, too."""
        self.lost_power = False

    def add(self, queue: Queue, label: str, key: str | None, routing_key: str, expires_at: float) -> Sent:
        self.step += 1
        sent = Sent(label, self.step, key, routing_key, expires_at)
        queue.messages[sent] = None
        queue.labels.setdefault(label, []).append(sent)
        for group in queue.groups.values():
            group.add(Copy(sent, NEW))
        return sent

    def appeared(self, queue: Queue, sent: Sent) -> None:
        """A message that a crash may have lost is there. A letter may have been written only now."""
        if not sent.unsure:
            return
        sent.unsure = False
        if sent.source is not None or sent.is_delayed:
            self.step += 1
            sent.number = self.step
        if not sent.unneeded:
            for group in queue.groups.values():
                group.copies[sent].spots -= {NONE}

    def fail(self, queue: Queue, group_id: str, copy: Copy, due: float) -> None:
        """A delivery failed: the message is ready again, or that was the last."""
        (spot,) = copy.spots
        if spot.deliveries > queue.rules.max_retries:
            self.give_up(queue, group_id, copy)
        else:
            self.become(copy, Spot(Kind.READY, spot.deliveries, due))

    def give_up(self, queue: Queue, group_id: str, copy: Copy) -> None:
        """To the dead letters, or nowhere when the queue keeps none."""
        if queue.rules.dead_letters is None:
            self.become(copy, DONE)
            return
        self.become(copy, Spot(Kind.MOVING, max(spot.deliveries for spot in copy.spots)))
        self.write_letter(queue, group_id, copy)

    def write_letter(self, queue: Queue, group_id: str, copy: Copy, *, unsure: bool = False) -> None:
        target = self.queues[queue.rules.dead_letters or ""]
        letter = self.add(target, f"{group_id}>{copy.message.label}", None, copy.message.routing_key, _NEVER)
        copy.letter, letter.source = letter, copy
        if unsure:
            letter.unsure = True
            for group in target.groups.values():
                group.copies[letter].spots |= {NONE}

    def become(self, copy: Copy, *spots: Spot) -> None:
        self.step += 1
        copy.before.append((self.step, copy.spots))
        copy.spots = set(spots)
